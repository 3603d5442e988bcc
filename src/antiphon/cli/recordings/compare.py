"""How a replay compares with its recording, as tables for people."""

from collections.abc import Iterator, Sequence

from antiphon.runtime.replay.compare import LATENCIES, ComparisonSummary, TurnAnswer, TurnComparison, summarize

Row = Sequence[str]

_SIDES = ("recorded", "replayed")
_MAX_CHARACTERS = 60
_NONE = "-"
_MIN_SPEECH_S = 0.1


def rows(turns: Sequence[TurnComparison]) -> Iterator[Row]:
    """A table of every turn: how soon each answer came, and what it was; at the end the median and the worst of all."""
    yield ("TURN", "", "BEGINS", "TEXT", "SOUND", "LENGTH", "")
    for number, turn in enumerate(turns, start=1):
        yield (str(number), "asked", "", "", "", "", _shorten(_format_question(turn)))
        yield ("", "recorded", *_answer_cells(turn.recorded))
        yield ("", "replayed", *_answer_cells(turn.replayed))
        yield (
            "",
            "change",
            *(_format_change(turn.change[name]) for name in LATENCIES),
            _format_change(turn.change["sound_ms"], 1000),
            _format_word_errors(turn),
        )
    yield from _spread_rows(summarize(turns))


def _spread_rows(overall: ComparisonSummary) -> Iterator[Row]:
    for name in ("p50", "worst"):
        for side in (*_SIDES, "change"):
            values = [getattr(overall.waits[wait][side], name) for wait in LATENCIES]
            cells = map(_format_change if side == "change" else _format_ms, values)
            yield (name if side == "recorded" else "", side, *cells, "", "")


def totals(turns: Sequence[TurnComparison]) -> Iterator[Row]:
    """A table of the counts over all turns."""
    summary = summarize(turns)
    yield ("", "RECORDED", "REPLAYED")
    yield ("sound", *(f"{summary.sound_ms[side] / 1000:.1f} s" for side in _SIDES))
    yield ("interrupted", *(str(summary.interrupted[side]) for side in _SIDES))
    yield ("not answered", *(str(summary.unanswered[side]) for side in _SIDES))


def verdict(turns: Sequence[TurnComparison]) -> str:
    """One line about the words."""
    summary = summarize(turns)
    wer = "" if summary.wer is None else f"; word error rate {100 * summary.wer:.1f} % ({summary.word_errors} of {summary.words} words)"
    return f"{summary.turns} turn{'s' if summary.turns != 1 else ''}, {summary.same} answered in the same words{wer}"


def _format_question(turn: TurnComparison) -> str:
    begins_s, ends_s = turn.speech_s or (0.0, 0.0)  # text has no times
    speech = f"({begins_s:.1f}-{ends_s:.1f} s)" if ends_s - begins_s > _MIN_SPEECH_S else ""
    return " ".join(part for part in (turn.asked, speech) if part) or "(nothing yet)"


def _answer_cells(answer: TurnAnswer | None) -> Row:
    if answer is None:
        return (_NONE, _NONE, _NONE, _NONE, "(no answer)")
    reason = answer.reason if answer.reason not in ("completed", "end_of_turn", "turn_end", "stop") else None
    marks = "".join(f"[{mark}] " for mark in (reason, f"{answer.answers} answers" if answer.answers > 1 else None) if mark)
    length = f"{answer.sound_ms / 1000:.2f} s" if answer.sound_ms else _NONE
    return (*(_format_ms(getattr(answer, name)) for name in LATENCIES), length, marks + _shorten(answer.text or "(nothing)"))


def _format_word_errors(turn: TurnComparison) -> str:
    if turn.same:
        return "the same words"
    return f"{turn.word_errors} of {turn.words} words differ" if turn.words else ""


def _format_ms(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0f} ms"


def _format_change(value: float | None, per_s: int = 0) -> str:
    if value is None:
        return _NONE
    return f"{value / per_s:+.2f} s" if per_s else f"{round(value):+d} ms"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
