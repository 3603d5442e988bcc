"""Lines of keys in TOML texts: by hand, and of random structures in random styles whose lines are known."""

import json
import random
import tomllib
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from antiphon.config.toml_lines import KeyPath, find_lines, nearest_line

TEXT = '''# first
title = "a # b" # = c
[server]
tls.cert = "x"
"tls".'key file' = """
[not.a.table]
""""

[[models]]
name = 'small'
options = { stop = [ "]",
  "}" ], top.k = 1 }

[[models]]
upstreams = [
  # the first
  { url = "a", }

  , { url = 1979-05-27 07:32:00 },
]
[models.prices.input]
eur = 1
[models.prices]
usd = 2
'''.replace('"a", }', '"a" }').replace("\n\n  ,", ",\n\n ")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("server",), 3),
        (("server", "tls"), 4),
        (("server", "tls", "cert"), 4),
        (("server", "tls", "key file"), 5),
        (("models",), 9),
        (("models", 0), 9),
        (("models", 0, "name"), 10),
        (("models", 0, "options", "stop"), 11),
        (("models", 0, "options", "stop", 1), 12),
        (("models", 0, "options", "top", "k"), 12),
        (("models", 1), 14),
        (("models", 1, "upstreams", 0, "url"), 17),
        (("models", 1, "upstreams", 1), 19),
        (("models", 1, "prices", "input", "eur"), 22),
        (("models", 1, "prices"), 23),
        (("models", 1, "prices", "usd"), 24),
    ],
)
def test_every_key_has_its_line(path: KeyPath, line: int) -> None:
    assert find_lines(TEXT)[path] == line


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("models", 1, "engine"), 14),
        (("models", 0, "options", "seed"), 11),
        (("models", 0, "name", "length"), 10),
        (("models", 2, "name"), 9),
        (("server", "tls", "key"), 4),
        (("store", "url"), 1),
    ],
)
def test_what_is_missing_has_the_line_of_the_table_around_it(path: KeyPath, line: int) -> None:
    assert nearest_line(find_lines(TEXT), path) == line


# Random texts

words = st.text(alphabet="ab \"'\\#[]{}=,.\né\t", max_size=8)
names = st.sampled_from(["a", "b-1", "c_c", "7"]) | words
scalars = words | st.sampled_from([0, -1, 2.5, float("inf"), True, False, datetime(1979, 5, 27, 7, 32)])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3) | st.lists(st.dictionaries(names, inner), max_size=3)
    ),
    max_leaves=12,
)
tables = st.dictionaries(names, values, max_size=5)


class Writer:
    """Writes a table in random styles, and knows the line of everything in it."""

    def __init__(self, dice: random.Random) -> None:
        self.text = ""
        self.lines: dict[KeyPath, int] = {}
        self.dice = dice

    def put(self, text: str) -> None:
        self.text += text

    def note(self, path: KeyPath) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def pick(self, *choices: str) -> str:
        return self.dice.choice(choices)

    def end_line(self) -> None:
        self.put(self.pick("\n", "\n\n", " # [x]\n", '\t# """ = {\n', "\r\n"))

    def gap(self) -> None:
        """Between the elements of an array."""
        self.put(self.pick("", " ", "\n", " # ], '''\n\n  "))

    def write_table(self, path: KeyPath, keys: tuple[str, ...], table: dict[str, Any], bracket: str = "[") -> None:
        """A table: its own values, and its tables with headers of their own behind or before them."""
        nested = {key: value for key, value in table.items() if self.dice.random() < 0.5 and is_table(value)}
        arrays = {key: value for key, value in table.items() if self.dice.random() < 0.5 and is_table_array(value)}
        own = {key: value for key, value in table.items() if key not in nested and key not in arrays}
        is_late = bool(nested) and bracket == "[" and bool(keys) and self.dice.random() < 0.3
        if not is_late:
            self.write_own(path, keys, own, bracket, is_needed=not nested)
        for key, value in nested.items():
            self.write_table((*path, key), (*keys, key), value)
        if is_late:
            self.lines.pop(path, None)  # its own header counts
            self.write_own(path, keys, own, bracket, is_needed=True)
            self.note_above(path)
        for key, value in arrays.items():
            for index, each in enumerate(value):
                self.write_table((*path, key, index), (*keys, key), each, "[[")

    def write_own(self, path: KeyPath, keys: tuple[str, ...], own: dict[str, Any], bracket: str, *, is_needed: bool) -> None:
        if keys and (own or is_needed or bracket == "[[" or self.dice.random() < 0.5):
            self.put(self.pick("", "  "))
            self.note_above(path)
            self.note(path)
            self.put(bracket + self.key(keys) + bracket.replace("[", "]"))
            self.end_line()
        for key, value in own.items():
            self.put(self.pick("", "\t"))
            self.write_pair(path, (key,), value, is_dotted=True)

    def note_above(self, path: KeyPath) -> None:
        for depth in range(1, len(path)):
            self.note(path[:depth])

    def write_pair(self, above: KeyPath, keys: tuple[str, ...], value: Any, *, is_dotted: bool) -> None:
        if is_dotted and is_table(value) and value and self.dice.random() < 0.5:
            for key, inner in value.items():
                self.write_pair(above, (*keys, key), inner, is_dotted=True)
            return
        for depth in range(1, len(keys) + 1):
            self.note((*above, *keys[:depth]))
        self.put(self.key(keys) + self.pick("=", " = ", "\t= "))
        self.write_value((*above, *keys), value)
        self.end_line()

    def key(self, keys: tuple[str, ...]) -> str:
        return self.pick(".", " . ", ".\t").join(self.quoted(key) for key in keys)

    def quoted(self, key: str) -> str:
        styles = [json.dumps(key, ensure_ascii=False), "".join(f"\\u{ord(letter):04x}" for letter in key).join('""')]
        if (key.isascii() and key.replace("-", "_").isidentifier()) or key.isdecimal():
            styles.append(key)
        if "'" not in key and "\n" not in key:
            styles.append(f"'{key}'")
        return self.dice.choice(styles)

    def write_value(self, path: KeyPath, value: Any) -> None:
        match value:
            case dict():
                self.write_inline(path, value)
            case list():
                self.write_array(path, value)
            case str():
                self.put(self.string(value))
            case bool():
                self.put(str(value).lower())
            case datetime():
                self.put(value.isoformat(self.pick("T", " ")))
            case _:
                self.put(str(value))

    def write_inline(self, path: KeyPath, table: dict[str, Any]) -> None:
        self.put("{" + self.pick("", " "))
        for number, (key, value) in enumerate(table.items()):
            self.put(self.pick(",", " , ") if number else "")
            self.note((*path, key))
            self.put(self.quoted(key) + self.pick("=", " = "))
            self.write_value((*path, key), value)
        self.put(self.pick("", " ") + "}")

    def write_array(self, path: KeyPath, array: list[Any]) -> None:
        self.put("[")
        for index, value in enumerate(array):
            self.gap()
            self.note((*path, index))
            self.write_value((*path, index), value)
            self.gap()
            self.put("," if index < len(array) - 1 else self.pick("", ","))
        self.gap()
        self.put("]")

    def string(self, text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"""', '""\\"')
        styles = [json.dumps(text, ensure_ascii=False), f'"""\n{escaped}"""', f'"""\\\n  \n{escaped}"""']
        if text[:1] in ("\t", " ", "\n"):
            styles.pop()  # a backslash at the end of a line takes all space behind it
        if "'''" not in text:
            styles.append(f"'''\n{text}'''")
        if "'" not in text and "\n" not in text:
            styles.append(f"'{text}'")
        return self.dice.choice(styles)


def is_table(value: Any) -> bool:
    return isinstance(value, dict)


def is_table_array(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_table, value))


def paths_in(value: Any, above: KeyPath = ()) -> set[KeyPath]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {above} | {path for key, inner in pairs for path in paths_in(inner, (*above, key))}


@given(tables, st.randoms(use_true_random=False))
def test_the_lines_of_a_random_text_are_those_it_was_written_in(table: dict[str, Any], dice: random.Random) -> None:
    writer = Writer(dice)
    writer.write_table((), (), table)
    assert tomllib.loads(writer.text) == table
    assert find_lines(writer.text) == writer.lines
    assert {(), *writer.lines} == paths_in(table)


@given(tables, st.randoms(use_true_random=False), st.integers(0), st.integers(1, 9))
def test_what_is_left_of_a_text_has_the_keys_that_it_is_read_to_have(
    table: dict[str, Any], dice: random.Random, start: int, length: int
) -> None:
    writer = Writer(dice)
    writer.write_table((), (), table)
    start %= len(writer.text) + 1
    text = writer.text[:start] + writer.text[start + length :]
    try:
        left = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert {(), *find_lines(text)} == paths_in(left)
