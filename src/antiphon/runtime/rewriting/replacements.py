"""Rules applied to a text: what the process of the rules does (`rule_process`)."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from antiphon.runtime.rewriting.annotations import Edit, Edits

_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})(.*)")

_INLINE_CODE = re.compile(r"``[^\n]*?``|`[^`\n]+`")


class Replacement(NamedTuple):
    """A rule: matches of `pattern` become `template`, as `re.sub` replaces them."""

    pattern: "re.Pattern[str]"
    template: str


class TextTooLong(ValueError):
    """The rules made a text longer than it may become."""


def apply_rules(text: str, rules: Sequence[Replacement], skip_code: bool, max_chars: int) -> tuple[str, list[Edits]]:
    """
    The text after all rules, one after another, and what each of them changed.

    Args:
        skip_code: whether code in Markdown stays as it is.

    Raises:
        TextTooLong: it grew beyond `max_chars`.
    """
    edits = []
    for rule in rules:
        text, changes = _apply_rule(text, rule, skip_code, max_chars)
        edits.append(changes)
    return text, edits


def _apply_rule(text: str, rule: Replacement, skip_code: bool, max_chars: int) -> tuple[str, Edits]:
    pieces: list[str] = []
    edits: list[Edit] = []
    copied_to, size = 0, len(text)
    for start, end in prose(text) if skip_code else ((0, len(text)),):
        for match in rule.pattern.finditer(text, start, end):
            # Not `sub`: each replacement is recorded, so that annotations can be moved.
            words = match.expand(rule.template)
            if words == match[0]:
                continue
            size += len(words) - len(match[0])
            if size > max_chars:
                raise TextTooLong
            pieces += (text[copied_to : match.start()], words)
            edits.append(Edit(match.start(), match.end(), len(words)))
            copied_to = match.end()
    return "".join((*pieces, text[copied_to:])), edits


def prose(text: str) -> Iterator[tuple[int, int]]:
    """The parts of a Markdown text that are no code, as places of their start and end."""
    copied_to = 0
    for start, end in code_places(text):
        if copied_to < start:
            yield copied_to, start
        copied_to = end
    if copied_to < len(text):
        yield copied_to, len(text)


def code_places(text: str) -> Iterator[tuple[int, int]]:
    """
    Where code stands in a Markdown text.

    Source: CommonMark 0.31.2, 4.5 and 6.1. Code that is only indented is taken for prose, as lists are indented too.
    """
    fence, fence_start, at = "", 0, 0
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not match[2].strip():
                yield fence_start, at + len(line)
                fence = ""
        # CommonMark, 4.5: the info string of a fence of backticks has no backticks.
        elif match and not (match[1][0] == "`" and "`" in match[2]):
            fence, fence_start = match[1], at
        else:
            yield from ((at + code.start(), at + code.end()) for code in _INLINE_CODE.finditer(line))
        at += len(line)
    if fence:  # A fence that is never closed reaches to the end.
        yield fence_start, len(text)


def code_blocks(text: str) -> list[str]:
    """The pieces of code in a Markdown text."""
    return [text[start:end].strip() for start, end in code_places(text)]
