"""How a replay compares with its recording, for people to read."""

from collections.abc import Iterator, Sequence

from antiphon.runtime.replay.compare import WAITS, Compared, Given, Summary, summary

Row = Sequence[str]

_SIDES = ("recorded", "replayed")
_SHOWN_CHARACTERS = 60
_NONE = "-"
_NOTICED_S = 0.1


def rows(turns: Sequence[Compared]) -> Iterator[Row]:
    """A table: of every turn how soon each answer came and what it was, and the middle and the worst of all."""
    yield ("TURN", "", "BEGINS", "TEXT", "SOUND", "LENGTH", "")
    for number, turn in enumerate(turns, start=1):
        yield (str(number), "asked", "", "", "", "", _short(_asked(turn)))
        yield ("", "recorded", *_given(turn.recorded))
        yield ("", "replayed", *_given(turn.replayed))
        yield ("", "change", *(_signed(turn.change[name]) for name in WAITS), _signed(turn.change["sound_ms"], 1000), _wording(turn))
    yield from _spreads(summary(turns))


def _spreads(all_of_them: Summary) -> Iterator[Row]:
    for name in ("p50", "worst"):
        for side in (*_SIDES, "change"):
            values = [getattr(all_of_them.waits[wait][side], name) for wait in WAITS]
            told = map(_signed if side == "change" else _ms, values)
            yield (name if side == "recorded" else "", side, *told, "", "")


def totals(turns: Sequence[Compared]) -> Iterator[Row]:
    """A table of what is counted over all turns."""
    told = summary(turns)
    yield ("", "RECORDED", "REPLAYED")
    yield ("sound", *(f"{told.sound_ms[side] / 1000:.1f} s" for side in _SIDES))
    yield ("interrupted", *(str(told.interrupted[side]) for side in _SIDES))
    yield ("not answered", *(str(told.unanswered[side]) for side in _SIDES))


def verdict(turns: Sequence[Compared]) -> str:
    """A line about the words."""
    told = summary(turns)
    wer = "" if told.wer is None else f"; word error rate {100 * told.wer:.1f} % ({told.word_errors} of {told.words} words)"
    return f"{told.turns} turn{'s' if told.turns != 1 else ''}, {told.same} answered in the same words{wer}"


def _asked(turn: Compared) -> str:
    begins_s, ends_s = turn.speech_s or (0.0, 0.0)  # at no time where it was sent all at once
    spoken = f"({begins_s:.1f}-{ends_s:.1f} s)" if ends_s - begins_s > _NOTICED_S else ""
    return " ".join(part for part in (turn.asked, spoken) if part) or "(nothing yet)"


def _given(given: Given | None) -> Row:
    if given is None:
        return (_NONE, _NONE, _NONE, _NONE, "(no answer)")
    ended = given.reason if given.reason not in ("completed", "end_of_turn", "turn_end", "stop") else None
    marks = "".join(f"[{mark}] " for mark in (ended, f"{given.answers} answers" if given.answers > 1 else None) if mark)
    length = f"{given.sound_ms / 1000:.2f} s" if given.sound_ms else _NONE
    return (*(_ms(getattr(given, name)) for name in WAITS), length, marks + _short(given.text or "(nothing)"))


def _wording(turn: Compared) -> str:
    if turn.same:
        return "the same words"
    return f"{turn.word_errors} of {turn.words} words differ" if turn.words else ""


def _ms(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0f} ms"


def _signed(value: float | None, per_s: int = 0) -> str:
    if value is None:
        return _NONE
    return f"{value / per_s:+.2f} s" if per_s else f"{round(value):+d} ms"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
