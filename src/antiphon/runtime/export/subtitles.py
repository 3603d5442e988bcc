"""
Subtitles of a recording, in WebVTT and SubRip (SRT): what each side said, while it can be heard.

A cue has up to two lines of 42 columns and stays for up to 7 s, as broadcasters do it. Where only the text is known, it
stays for as long as people need to read it.

Sources: W3C WebVTT, https://www.w3.org/TR/webvtt1/; Netflix, "English Timed Text Style Guide". SubRip has no
specification.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from antiphon.runtime.recording.transcript import ROLE_NAMES, TimedTurn, TurnRole, is_wide

LINE_COLUMNS, CUE_LINES = 42, 2
MAX_CUE_S, MIN_CUE_S = 7.0, 1.0
READING_RATE = 17
"""Characters that people read in a second."""

_SENTENCE_COLUMNS = 16
"""A sentence as long as this ends its cue."""

_SENTENCE_END = re.compile(r"[.!?…。！？]['\"”’)\]]*$")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INTERRUPTED_MARK = "—"


class Cue(Struct, frozen=True):
    """
    Text and when it is shown, in seconds after the start of the recording.

    Attributes:
        lines: without the speaker's name.
    """

    start_s: float
    end_s: float
    role: TurnRole
    lines: tuple[str, ...]


class _Word(NamedTuple):
    """A word, or a character of a script without spaces, with its place in the text."""

    start: int
    end: int
    text: str
    columns: int


def make_cues(turns: Iterable[TimedTurn]) -> list[Cue]:
    """The cues of a recording, in the order in which they begin."""
    cues: list[Cue] = []
    for timed_turn in turns:
        cues += _turn_cues(timed_turn)
    cues.sort(key=lambda cue: cue.start_s)
    by_role: dict[TurnRole, list[Cue]] = {"person": [], "model": []}
    for cue in cues:
        by_role[cue.role].append(cue)
    return sorted((cue for side in by_role.values() for cue in _without_overlaps(side)), key=lambda cue: cue.start_s)


def _turn_cues(timed_turn: TimedTurn) -> Iterator[Cue]:
    turn, clock = timed_turn.turn, _WordClock(timed_turn.marks)
    text = _CONTROLS.sub(" ", turn.heard_text)
    if turn.interrupted is not None and text:
        text += _INTERRUPTED_MARK
    words, name_columns = list(_split_words(text)), len(ROLE_NAMES[turn.role]) + 2
    while words:
        count, lines = _fill_cue(words, name_columns, clock)
        start_s, end_s = clock.at_s(words[0].start), clock.at_s(words[count - 1].end)
        yield Cue(start_s, min(max(end_s, start_s + MIN_CUE_S), start_s + MAX_CUE_S), turn.role, lines)
        words = words[count:]


class _WordClock:
    """When each character of a turn is said; where only a beginning is known, at the pace at which people read."""

    def __init__(self, marks: Sequence[tuple[int, float]]) -> None:
        self._counts = [count for count, _ in marks]
        self._times_s = [at_s for _, at_s in marks]
        self._is_written = len(marks) == 1

    def at_s(self, position: int) -> float:
        """When so many characters have been said."""
        if self._is_written:
            return self._times_s[0] + position / READING_RATE
        index = bisect_right(self._counts, position) - 1
        if index >= len(self._counts) - 1:
            return self._times_s[-1]
        begin, end = self._counts[index], self._counts[index + 1]
        return self._times_s[index] + (self._times_s[index + 1] - self._times_s[index]) * (position - begin) / (end - begin)


def _split_words(text: str) -> Iterator[_Word]:
    start = 0
    for end in range(1, len(text) + 1):
        word = text[start:end]
        if text[end - 1].isspace():
            start = end
        # A long word, such as an address, is cut, so that it fits what is left of a line.
        elif end == len(text) or text[end].isspace() or _is_breakable(text[end - 1], text[end]) or len(word) >= LINE_COLUMNS // 2:
            yield _Word(start, end, word, _columns(word))
            start = end


def _is_breakable(before: str, after: str) -> bool:
    """Whether a line may end between two characters that no space divides: not before punctuation."""
    return (is_wide(before) or is_wide(after)) and after.isalnum()


def _columns(text: str) -> int:
    return sum(2 if is_wide(character) else 1 for character in text)


def _fill_cue(words: Sequence[_Word], name_columns: int, clock: _WordClock) -> tuple[int, tuple[str, ...]]:
    """How many words go into the next cue, and its lines. The speaker's name stands before the first."""
    lines, columns, used_columns = [""], name_columns, 0
    for count, word in enumerate(words):
        gap = " " if lines[-1] and word.start > words[count - 1].end else ""
        if count and clock.at_s(word.end) - clock.at_s(words[0].start) > MAX_CUE_S:
            return count, tuple(lines)
        if columns + len(gap) + word.columns > LINE_COLUMNS and lines[-1]:
            if len(lines) == CUE_LINES:
                return count, tuple(lines)
            lines, columns, gap = [*lines, ""], 0, ""
        lines[-1] += gap + word.text
        columns += len(gap) + word.columns
        used_columns += len(gap) + word.columns
        if _SENTENCE_END.search(word.text) and used_columns >= _SENTENCE_COLUMNS:
            return count + 1, tuple(lines)
    return len(words), tuple(lines)


def _without_overlaps(cues: Sequence[Cue]) -> Iterator[Cue]:
    """One speaker's cues, each ending before the next begins."""
    for cue, next_start_s in zip(cues, [*(cue.start_s for cue in cues[1:]), float("inf")], strict=False):
        end_s = min(cue.end_s, next_start_s)
        if _ms(end_s) > _ms(cue.start_s):  # WebVTT: a cue ends after it begins
            yield Cue(cue.start_s, end_s, cue.role, cue.lines)


def write_webvtt(cues: Iterable[Cue]) -> str:
    """Subtitles in WebVTT; the speaker is the voice of a cue."""
    blocks = [
        f"{_time(cue.start_s, '.')} --> {_time(cue.end_s, '.')}\n<v {ROLE_NAMES[cue.role]}>" + _escape_webvtt("\n".join(cue.lines))
        for cue in cues
    ]
    return "\n\n".join(["WEBVTT", *blocks]) + "\n"


def _escape_webvtt(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Caption(NamedTuple):
    """What is on the screen from when to when; never two at once."""

    start_s: float
    end_s: float
    text: str


def make_captions(cues: Sequence[Cue]) -> list[Caption]:
    """The cues as captions with the speakers' names: those of both sides at once are one caption."""
    times_s = sorted({at_s for cue in cues for at_s in (cue.start_s, cue.end_s)})
    captions: list[Caption] = []
    first = 0
    for start_s, end_s in pairwise(times_s):
        while first < len(cues) and cues[first].end_s <= start_s:
            first += 1
        visible_cues = [cue for cue in _starting_before(cues, first, end_s) if cue.end_s > start_s]
        if visible_cues and _ms(end_s) > _ms(start_s):
            captions.append(Caption(start_s, end_s, "\n".join(_named_text(cue) for cue in visible_cues)))
    return captions


def _starting_before(cues: Sequence[Cue], first: int, at_s: float) -> Iterator[Cue]:
    for index in range(first, len(cues)):
        if cues[index].start_s >= at_s:
            return
        yield cues[index]


def _named_text(cue: Cue) -> str:
    return f"{ROLE_NAMES[cue.role]}: " + "\n".join(cue.lines)


def write_srt(captions: Iterable[Caption]) -> str:
    """Subtitles in SubRip."""
    blocks = [
        f"{number}\n{_time(caption.start_s, ',')} --> {_time(caption.end_s, ',')}\n{escape_formatting(caption.text)}\n"
        for number, caption in enumerate(captions, start=1)
    ]
    return "\n".join(blocks)


def escape_formatting(text: str) -> str:
    """The text without what players take for formatting, as tags and braces: SubRip has no escape for them."""
    return text.replace("<", "‹").replace(">", "›").replace("{\\", "{ \\")


def _ms(at_s: float) -> int:
    return round(at_s * 1000)


def _time(at_s: float, decimal_mark: str) -> str:
    minutes, ms = divmod(_ms(at_s), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{ms // 1000:02}{decimal_mark}{ms % 1000:03}"
