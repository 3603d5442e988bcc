"""
Text as it is read aloud, and what was written for each part of it.

Markdown is taken away, and English said as it is read; other languages are left to the voice. Blocks of code are named and passed over;
of emoji nothing is said. What was written is never lost: a `Saying` gives it all back, so that a transcript shows what the model wrote.
"""

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from antiphon.speech.text.normalize_en import read
from antiphon.speech.text.numerals_en import cardinal


class Part(Struct, frozen=True):
    """A stretch of text as it was written, and as it is said."""

    written: str
    spoken: str


class Saying:
    """
    What is to be said, and how it was written.

    Attributes:
        spoken: for the voice; empty where there is nothing to say.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = [part for part in parts if part.written or part.spoken]
        self.spoken = "".join(part.spoken for part in self._parts)
        if not any(character.isalnum() for character in self.spoken):
            self.spoken = ""
            self._parts = [Part(self._rest_of(self._parts), "")]
        self._at = 0  # the part that is being said
        self._within = 0  # how many characters of it have been

    def take(self, spoken: str) -> str:
        """What was written for the next words that are heard; all of what is said otherwise comes with the first of its words."""
        left = len(spoken)
        written = ""
        while left and self._at < len(self._parts):
            part = self._parts[self._at]
            count = min(left, len(part.spoken) - self._within)
            if part.spoken == part.written:
                written += part.written[self._within : self._within + count]
            elif self._within == 0:
                written += part.written
            left -= count
            self._within += count
            if self._within == len(part.spoken):
                self._at, self._within = self._at + 1, 0
        return written

    def rest(self) -> str:
        """What was written and has not been taken."""
        parts, self._parts = self._parts[self._at :], self._parts[: self._at]
        if parts and self._within:
            first = parts.pop(0)
            return (first.written[self._within :] if first.spoken == first.written else "") + self._rest_of(parts)
        return self._rest_of(parts)

    @staticmethod
    def _rest_of(parts: Iterable[Part]) -> str:
        return "".join(part.written for part in parts)


_FENCE = re.compile(r"[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n]*\n?")
_HEADING = re.compile(r"[ \t]*#{1,6}[ \t]+")
_MARKER = re.compile(r"[ \t]*(?:[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?|>[ \t]?)+")
_NUMBERED = re.compile(r"[ \t]*(\d{1,3})[.)][ \t]+")
_BAR = re.compile(r"[ \t]*\|[ \t]*")
_RULES = "|:-*_= \t\r\n"
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


class Speakable:
    """
    The text of one answer made speakable, piece by piece, as `clauses` cuts it.

    Args:
        language: its code; only English is said otherwise than it is written.
    """

    def __init__(self, language: str = "en") -> None:
        self._is_english = language.lower().startswith("en")
        self._fence = ""  # what closes the block of code that is open
        self._at_line = True  # whether the next piece begins a line
        self._in_row = False  # whether it goes on with the row of a table

    def take(self, piece: str) -> Saying:
        """The next piece of the text."""
        return Saying([part for line in piece.splitlines(keepends=True) for part in self._line(line)])

    def _line(self, line: str) -> Iterator[Part]:
        begins, self._at_line = self._at_line, line.endswith("\n")
        if begins:
            self._in_row = False
        if begins and (fence := _FENCE.match(line)) is not None and self._toggles(fence):
            yield Part(line, self._announced(fence))
        elif self._fence or (begins and len(line.strip()) >= 3 and not line.strip(_RULES)):
            yield Part(line, "")
        else:
            yield from self._text(line, begins)

    def _toggles(self, fence: re.Match[str]) -> bool:
        return not self._fence or (fence[1].startswith(self._fence) and not fence[2])

    def _announced(self, fence: re.Match[str]) -> str:
        if self._fence:
            self._fence = ""
            return ""
        self._fence = fence[1]
        if not self._is_english:
            return ""
        name = fence[2].lower()
        return f"{_LANGUAGES.get(name, name.capitalize())} code, which I won't read aloud. "

    def _text(self, line: str, begins: bool) -> Iterator[Part]:
        opening, body = self._opening(line) if begins else (Part("", ""), line)
        yield opening
        at = 0
        for bar in _BAR.finditer(body) if self._in_row else ():
            yield from self._inline(body[at : bar.start()])
            at = bar.end()
            yield Part(bar[0], ", " if body[at:].strip() else "")
        yield from self._inline(body[at:])

    def _opening(self, line: str) -> tuple[Part, str]:
        """What a line begins with that is no text, and the text."""
        spoken = ""
        if (marker := _BAR.match(line)) is not None:
            self._in_row = True
        elif (marker := _NUMBERED.match(line)) is not None and self._is_english:
            spoken = f"{cardinal(int(marker[1]))}: "
        else:
            marker = _HEADING.match(line) or _MARKER.match(line)
        return (Part(marker[0], spoken), line[marker.end() :]) if marker else (Part("", ""), line)

    def _inline(self, text: str) -> Iterator[Part]:
        at = 0
        for mark in _INLINE.finditer(text):
            yield from self._plain(text[at : mark.start()])
            yield Part(mark[0], self._within(mark))
            at = mark.end()
        yield from self._plain(text[at:])

    def _within(self, mark: re.Match[str]) -> str:
        """What is said of a mark: the text of a link, and of most nothing."""
        if mark["escaped"]:
            return mark["escaped"]
        if mark["address"]:
            return "".join(part.spoken for part in self._plain(mark["address"]))
        return "".join(part.spoken for part in self._inline(mark["text"] or mark["label"] or ""))

    def _plain(self, text: str) -> Iterator[Part]:
        if self._is_english:
            return (Part(written, spoken) for written, spoken in read(text))
        return iter((Part(text, text),))
