"""
Text normalized for reading aloud, with the source text of each part.

Markdown is removed and English is verbalized (numbers, dates, abbreviations); other languages are left to the voice.
Code blocks are announced and skipped, emoji are silent. No source text is lost: an `Utterance` gives all of it back, so
that a transcript shows what the model wrote.
"""

import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing

from msgspec import Struct

from antiphon.speech.base import AudioChunk, SentenceContext, Synthesizer
from antiphon.speech.text.normalize_en import normalize
from antiphon.speech.text.numerals_en import cardinal


class SpokenPart(Struct, frozen=True):
    """A stretch of source text, and what is spoken for it."""

    source_text: str
    spoken_text: str


class Utterance:
    """
    A text to speak, and its source text.

    Attributes:
        spoken_text: the text for the voice; empty when there is nothing to say.
    """

    def __init__(self, parts: Iterable[SpokenPart]) -> None:
        self._parts = [part for part in parts if part.source_text or part.spoken_text]
        self.spoken_text = "".join(part.spoken_text for part in self._parts)
        if not any(character.isalnum() for character in self.spoken_text):
            self.spoken_text = ""
            self._parts = [SpokenPart(self._join_source(self._parts), "")]
        self._index = 0  # of the part being spoken
        self._offset = 0  # into its spoken text

    def consume(self, spoken_text: str) -> str:
        """
        The source text of the next spoken words. Source text that is verbalized comes whole, with the first of its
        words.
        """
        remaining = len(spoken_text)
        source_text = ""
        while remaining and self._index < len(self._parts):
            part = self._parts[self._index]
            count = min(remaining, len(part.spoken_text) - self._offset)
            if part.spoken_text == part.source_text:
                source_text += part.source_text[self._offset : self._offset + count]
            elif self._offset == 0:
                source_text += part.source_text
            remaining -= count
            self._offset += count
            if self._offset == len(part.spoken_text):
                self._index, self._offset = self._index + 1, 0
        return source_text

    def drain(self) -> str:
        """The source text that has not been consumed."""
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
"""Characters of thematic breaks, setext underlines and the delimiter rows of tables: a line of only these is silent."""

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

MAX_WORDS_BEFORE = 4
"""How many words spoken before in the sentence a voice gets; more make no difference to its melody."""

_EMOJI = "\U0001f000-\U0001faff\U000e0020-\U000e007f☀-➿⬀-⯿⌀-⏿︎️‍⃣〰〽㊗㊙"

# Inline markup: an image or a link, an address in angle brackets, a tag, a footnote, code, an escape, emphasis, emoji.
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
    Normalizes the text of one answer, clause by clause, as `ClauseSplitter` cuts it.

    Args:
        language: the language's code; only English is verbalized.

    Attributes:
        spoken_before: the last words that were spoken of the sentence so far.
    """

    def __init__(self, language: str = "en") -> None:
        self._is_english = language.lower().startswith("en")
        self.spoken_before = ""
        self._fence = ""  # that closes the open code block
        self._is_line_start = True  # whether the next clause begins a line
        self._is_in_row = False  # whether it continues the row of a table

    def normalize(self, clause: str) -> Utterance:
        """The next clause, normalized."""
        return Utterance([part for line in clause.splitlines(keepends=True) for part in self._line_parts(line)])

    def _line_parts(self, line: str) -> Iterator[SpokenPart]:
        is_line_start, self._is_line_start = self._is_line_start, line.endswith("\n")
        if is_line_start:
            self._is_in_row = False
        if is_line_start and (fence := _FENCE.match(line)) is not None and self._is_fence_toggle(fence):
            yield SpokenPart(line, self._announce_code(fence))
        elif self._fence or (is_line_start and len(line.strip()) >= 3 and not line.strip(_RULE_CHARS)):
            yield SpokenPart(line, "")
        else:
            yield from self._text_parts(line, is_line_start)

    def _is_fence_toggle(self, fence: re.Match[str]) -> bool:
        # CommonMark, 4.5: a closing fence is as long as the opening one at least, with nothing behind it.
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
        position = 0
        for bar in _TABLE_BAR.finditer(body) if self._is_in_row else ():
            yield from self._inline_parts(body[position : bar.start()])
            position = bar.end()
            yield SpokenPart(bar[0], ", " if body[position:].strip() else "")
        yield from self._inline_parts(body[position:])

    def _line_opening(self, line: str) -> tuple[SpokenPart, str]:
        """The markup that a line begins with (heading, list marker, table bar), and the rest of the line."""
        spoken_text = ""
        if (marker := _TABLE_BAR.match(line)) is not None:
            self._is_in_row = True
        elif (marker := _LIST_NUMBER.match(line)) is not None and self._is_english:
            spoken_text = f"{cardinal(int(marker[1]))}: "
        else:
            marker = _HEADING.match(line) or _LIST_MARKER.match(line)
        return (SpokenPart(marker[0], spoken_text), line[marker.end() :]) if marker else (SpokenPart("", ""), line)

    def _inline_parts(self, text: str) -> Iterator[SpokenPart]:
        position = 0
        for mark in _INLINE.finditer(text):
            yield from self._plain_parts(text[position : mark.start()])
            yield SpokenPart(mark[0], self._markup_speech(mark))
            position = mark.end()
        yield from self._plain_parts(text[position:])

    def _markup_speech(self, mark: re.Match[str]) -> str:
        """What is spoken for markup: the text of a link, nothing for most others."""
        if mark["escaped"]:
            return mark["escaped"]
        if mark["address"]:
            return "".join(part.spoken_text for part in self._plain_parts(mark["address"]))
        return "".join(part.spoken_text for part in self._inline_parts(mark["text"] or mark["label"] or ""))

    def _plain_parts(self, text: str) -> Iterator[SpokenPart]:
        if self._is_english:
            return (SpokenPart(source_text, spoken_text) for source_text, spoken_text in normalize(text))
        return iter((SpokenPart(text, text),))


async def synthesize_clause(
    synthesizer: Synthesizer,
    clause: str,
    normalizer: TextNormalizer,
    voice: str | None = None,
    speed: float = 1.0,
    *,
    continues: bool = False,
) -> AsyncGenerator[AudioChunk]:
    """
    The speech of one clause of an answer, as `ClauseSplitter` cuts it; closing the iterator stops the work.

    Args:
        normalizer: the answer's own; it remembers the clauses before.
        continues: whether the sentence goes on after it.

    Returns:
        Chunks whose texts together are the source text, markup included; a chunk of text that isn't spoken has no
        audio.

    Raises:
        ApiError: from the synthesizer.
    """
    utterance = normalizer.normalize(clause)
    spoken_text, context = utterance.spoken_text, SentenceContext(normalizer.spoken_before, continues)
    normalizer.spoken_before = " ".join(f"{context.before} {spoken_text}".split()[-MAX_WORDS_BEFORE:]) if continues else ""
    if spoken_text:
        async with aclosing(synthesizer.synthesize(spoken_text, voice, speed, context)) as chunks:
            async for chunk in chunks:
                yield AudioChunk(chunk.pcm, utterance.consume(chunk.text))
    if rest := utterance.drain():
        yield AudioChunk(b"", rest)
