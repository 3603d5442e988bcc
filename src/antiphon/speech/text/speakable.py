"""
Text as it is read aloud, and what was written for each part of it.

Markdown is taken away, and English said as it is read; other languages are left to the voice. Blocks of code are named and passed over;
of emoji nothing is said. What was written is never lost: a `Utterance` gives it all back, so that a transcript shows what the model wrote.
"""

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from antiphon.speech.text.normalize_en import normalize
from antiphon.speech.text.numerals_en import cardinal


class SpokenPart(Struct, frozen=True):
    """A stretch of text as it was written, and as it is said."""

    source_text: str
    spoken_text: str


class Utterance:
    """
    What is to be said, and how it was written.

    Attributes:
        spoken: for the voice; empty where there is nothing to say.
    """

    def __init__(self, parts: Iterable[SpokenPart]) -> None:
        self._parts = [part for part in parts if part.source_text or part.spoken_text]
        self.spoken_text = "".join(part.spoken_text for part in self._parts)
        if not any(character.isalnum() for character in self.spoken_text):
            self.spoken_text = ""
            self._parts = [SpokenPart(self._join_source(self._parts), "")]
        self._index = 0  # the part that is being said
        self._offset = 0  # how many characters of it have been

    def consume(self, spoken_text: str) -> str:
        """What was written for the next words that are heard; all of what is said otherwise comes with the first of its words."""
        left = len(spoken_text)
        written = ""
        while left and self._index < len(self._parts):
            part = self._parts[self._index]
            count = min(left, len(part.spoken_text) - self._offset)
            if part.spoken_text == part.source_text:
                written += part.source_text[self._offset : self._offset + count]
            elif self._offset == 0:
                written += part.source_text
            left -= count
            self._offset += count
            if self._offset == len(part.spoken_text):
                self._index, self._offset = self._index + 1, 0
        return written

    def drain(self) -> str:
        """What was written and has not been taken."""
        parts, self._parts = self._parts[self._index :], self._parts[: self._index]
        if parts and self._offset:
            first = parts.pop(0)
            return (first.source_text[self._offset :] if first.spoken_text == first.source_text else "") + self._join_source(parts)
        return self._join_source(parts)

    @staticmethod
    def _join_source(parts: Iterable[SpokenPart]) -> str:
        return "".join(part.source_text for part in parts)


_FENCE = re.compile(r"[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*\n?")
_HEADING = re.compile(r"[ \t]*#{1,6}[ \t]+")
_LIST_MARKER = re.compile(r"[ \t]*(?:[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?|>[ \t]?)+")
_LIST_NUMBER = re.compile(r"[ \t]*(\d{1,3})[.)][ \t]+")
_TABLE_BAR = re.compile(r"[ \t]*\|[ \t]*")
_RULE_CHARS = "|:-*_= \t\r\n"
"""What a line is made of that parts a text, underlines a title, or parts the head of a table from its rows."""

_LANGUAGES = {
    "": "Some",
    "text": "Some",
    "txt": "Some",
    "plaintext": "Some",
    "py": "Python",
    "js": "JavaScript",
    "javascript": "JavaScript",
    "ts": "TypeScript",
    "typescript": "TypeScript",
    "sh": "Shell",
    "bash": "Shell",
    "zsh": "Shell",
    "console": "Shell",
    "cpp": "C plus plus",
    "c++": "C plus plus",
    "cs": "C sharp",
    "csharp": "C sharp",
    "rb": "Ruby",
    "rs": "Rust",
    "yml": "YAML",
    **{name: name.upper() for name in ("json", "html", "css", "sql", "xml", "yaml", "toml", "php")},
}

_EMOJI = "\U0001f000-\U0001faff\U000e0020-\U000e007f☀-➿⬀-⯿⌀-⏿︎️‍⃣〰〽㊗㊙"

# What marks up a line from within: a picture or a link, an address in brackets, a tag, code, emphasis, an escape, emoji.
_INLINE = re.compile(
    r"!?\[(?P<text>[^\[\]\n]*)\]\((?P<target>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?)\)"
    r"|!?\[(?P<label>[^\[\]\n]+)\]\[[^\[\]\n]*\]"
    r"|<(?P<address>(?:https?://|mailto:)[^\s<>]+)>"
    r"|(?P<tag></?[A-Za-z][^<>\n]*>)"
    r"|\[\^?(?P<note>\d{1,3})\]"
    r"|(?P<ticks>`+)"
    r"|\\(?P<escaped>[\\`*_{}\[\]()#+.!|<>~-])"
    r"|(?P<strong>\*\*\*|\*\*|__|~~|(?<!\w)[*_](?=\w|[\"'“(])|(?<=[\w.,!?;:\"'”)])[*_](?!\w))"
    rf"|(?P<emoji>[{_EMOJI}]+)"
)


class TextNormalizer:
    """
    The text of one answer made speakable, piece by piece, as `clauses` cuts it.

    Args:
        language: its code; only English is said otherwise than it is written.
    """

    def __init__(self, language: str = "en") -> None:
        self._is_english = language.lower().startswith("en")
        self._fence = ""  # what closes the block of code that is open
        self._is_line_start = True  # whether the next piece begins a line
        self._is_in_row = False  # whether it goes on with the row of a table

    def normalize(self, clause: str) -> Utterance:
        """The next piece of the text."""
        return Utterance([part for line in clause.splitlines(keepends=True) for part in self._line_parts(line)])

    def _line_parts(self, line: str) -> Iterator[SpokenPart]:
        begins, self._is_line_start = self._is_line_start, line.endswith("\n")
        if begins:
            self._is_in_row = False
        if begins and (fence := _FENCE.match(line)) is not None and self._is_fence_toggle(fence):
            yield SpokenPart(line, self._announce_code(fence))
        elif self._fence or (begins and len(line.strip()) >= 3 and not line.strip(_RULE_CHARS)):
            yield SpokenPart(line, "")
        else:
            yield from self._text_parts(line, begins)

    def _is_fence_toggle(self, fence: re.Match[str]) -> bool:
        return not self._fence or (fence[1].startswith(self._fence) and not fence[2])

    def _announce_code(self, fence: re.Match[str]) -> str:
        if self._fence:
            self._fence = ""
            return ""
        self._fence = fence[1]
        if not self._is_english:
            return ""
        name = fence[2].lower()
        return f"{_LANGUAGES.get(name, name.capitalize())} code, which I won't read aloud. "

    def _text_parts(self, line: str, is_line_start: bool) -> Iterator[SpokenPart]:
        opening, body = self._line_opening(line) if is_line_start else (SpokenPart("", ""), line)
        yield opening
        at = 0
        for bar in _TABLE_BAR.finditer(body) if self._is_in_row else ():
            yield from self._inline_parts(body[at : bar.start()])
            at = bar.end()
            yield SpokenPart(bar[0], ", " if body[at:].strip() else "")
        yield from self._inline_parts(body[at:])

    def _line_opening(self, line: str) -> tuple[SpokenPart, str]:
        """What a line begins with that is no text, and the text."""
        spoken = ""
        if (marker := _TABLE_BAR.match(line)) is not None:
            self._is_in_row = True
        elif (marker := _LIST_NUMBER.match(line)) is not None and self._is_english:
            spoken = f"{cardinal(int(marker[1]))}: "
        else:
            marker = _HEADING.match(line) or _LIST_MARKER.match(line)
        return (SpokenPart(marker[0], spoken), line[marker.end() :]) if marker else (SpokenPart("", ""), line)

    def _inline_parts(self, text: str) -> Iterator[SpokenPart]:
        at = 0
        for mark in _INLINE.finditer(text):
            yield from self._plain_parts(text[at : mark.start()])
            yield SpokenPart(mark[0], self._markup_speech(mark))
            at = mark.end()
        yield from self._plain_parts(text[at:])

    def _markup_speech(self, mark: re.Match[str]) -> str:
        """What is said of a mark: the text of a link, and of most nothing."""
        if mark["escaped"]:
            return mark["escaped"]
        if mark["address"]:
            return "".join(part.spoken_text for part in self._plain_parts(mark["address"]))
        return "".join(part.spoken_text for part in self._inline_parts(mark["text"] or mark["label"] or ""))

    def _plain_parts(self, text: str) -> Iterator[SpokenPart]:
        if self._is_english:
            return (SpokenPart(written, spoken) for written, spoken in normalize(text))
        return iter((SpokenPart(text, text),))
