"""
Two sessions in which a client said the same: how soon each turn was answered, at what length, and in which words.

A turn is what the person said up to something that was answered in either of the two: so an answer that comes in one and not in the other
leaves those after it side by side.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, structs

from antiphon.runtime.recording.events import IN
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.mixing import read_wav
from antiphon.runtime.recording.transcript import read_turns
from antiphon.runtime.replay.answers import RecordedAnswer, find_answers, find_transcripts
from antiphon.runtime.replay.questions import RecordedQuestion, find_questions
from antiphon.runtime.replay.steps import DownloadedRecording

LATENCIES = ("begins_ms", "first_text_ms", "first_audio_ms")
"""What is counted from the end of what the person said."""

_EARLY_S = 0.5
"""How long before the end of what someone says it may be answered; what comes sooner belongs to what was said before."""

# Where words are written without spaces, each character is one.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[\w'’])+")


class TurnAnswer(Struct, frozen=True):
    """
    What was given as the answer to a turn; of several answers, all of them together.

    Attributes:
        begins_ms: from the end of what the person said until the answer began, as `Answer` has it; below 0 where it began before, None
            where nobody had said anything. Likewise `first_text_ms` and `first_audio_ms`, which are None too where there is no such thing.
        sound_ms: how long its sound is.
        answers: how many there were.
        reason: how the last of them ended; None where it didn't.
        interrupted: whether any of them was.
    """

    begins_ms: float | None
    first_text_ms: float | None
    first_audio_ms: float | None
    sound_ms: float
    text: str
    answers: int
    reason: str | None
    interrupted: bool


class TurnComparison(Struct, frozen=True):
    """
    A turn of both sessions.

    Attributes:
        asked: what the person said, where that is known; else None.
        speech_s: from when to when the person spoke, in seconds of the recording; None where nothing was said aloud.
        recorded: None where it was not answered then; likewise `replayed`.
        change: `replayed` less `recorded`, of `WAITS` and `sound_ms`; None of what either has not.
        words: how many the recorded answer has.
        word_errors: how many of them must be left out, put in or replaced to have the other answer.
    """

    asked: str | None
    speech_s: tuple[float, float] | None
    recorded: TurnAnswer | None
    replayed: TurnAnswer | None
    change: Mapping[str, float | None]
    same: bool
    words: int
    word_errors: int


def compare(recording: DownloadedRecording, replay_lines: Sequence[EventLine]) -> Sequence[TurnComparison]:
    """
    Both sessions, turn by turn.

    Args:
        replayed: what came of saying the recording again: its client's events, and the server's.
    """
    record = recording.record
    rates_hz = {name: read_wav(file).rate_hz for name, file in recording.files.items() if name.endswith(".wav")}
    asks = find_questions(recording.lines, recording.files)
    of_mode = find_transcripts if record.mode == "transcription" else partial(find_answers, protocol=record.protocol, rates_hz=rates_hz)
    sides = [_SessionSide(asks, lines, of_mode(lines)) for lines in (recording.lines, replay_lines)]
    answered = sorted({nth for side in sides for nth in side.answers_by_question})
    texts = _texts([sides[0].question_ends_s[nth] if nth >= 0 else 0.0 for nth in answered], recording.lines)
    turns = []
    for at, nth in enumerate(answered):
        since = answered[at - 1] + 1 if at else 0
        speech_s = _speech_interval_s(asks[max(0, since) : nth + 1], sides[0].question_ends_s[max(0, since) : nth + 1])
        turns.append(_compare_turn(texts.get(at), speech_s, *(side.turn_answer(nth) for side in sides)))
    return turns


class _SessionSide:
    """
    One of the two sessions.

    Attributes:
        ends_s: when each of what was asked had been said; None where it wasn't.
        answered: the answers to each of them, by its number; -1 for what came before anything was asked.
    """

    def __init__(self, questions: Sequence[RecordedQuestion], lines: Sequence[EventLine], answers: Iterable[RecordedAnswer]) -> None:
        said_at_s = [line.at_s for line in lines if line.direction == IN]
        self.question_ends_s = [ask.end_at_s(said_at_s) for ask in questions]
        self.answers_by_question: dict[int, list[RecordedAnswer]] = {}
        for answer in answers:
            asked = [
                nth
                for nth, end_s in enumerate(self.question_ends_s)
                if end_s is not None and end_s - self._tolerance_s(questions[nth]) <= answer.at_s
            ]
            self.answers_by_question.setdefault(max(asked, default=-1), []).append(answer)

    @staticmethod
    def _tolerance_s(question: RecordedQuestion) -> float:
        return 0.0 if question.speech_s is None else min(_EARLY_S, question.speech_s)

    def turn_answer(self, index: int) -> TurnAnswer | None:
        """What was answered to that."""
        answers = self.answers_by_question.get(index)
        if not answers:
            return None
        end_s = self.question_ends_s[index] if index >= 0 else None

        def waited(moments: Iterable[float | None]) -> float | None:
            first_s = min((at_s for at_s in moments if at_s is not None), default=None)
            return None if first_s is None or end_s is None else round(1000 * (first_s - end_s), 1)

        return TurnAnswer(
            begins_ms=waited(answer.at_s for answer in answers),
            first_text_ms=waited(answer.first_text_s for answer in answers),
            first_audio_ms=waited(answer.first_audio_s for answer in answers),
            sound_ms=round(sum(answer.audio_ms for answer in answers), 1),
            text=" ".join(answer.text.strip() for answer in answers if answer.text.strip()),
            answers=len(answers),
            reason=answers[-1].reason,
            interrupted=any(answer.is_interrupted for answer in answers),
        )


def _texts(ends_s: Sequence[float | None], lines: Iterable[EventLine]) -> Mapping[int, str]:
    """What is known of what the person said, by turn."""
    found: dict[int, list[str]] = {}
    for turn in read_turns(lines):
        if turn.role == "person" and turn.has_text:
            at = next((at for at, end_s in enumerate(ends_s) if end_s is not None and end_s >= turn.at_s), len(ends_s) - 1)
            found.setdefault(at, []).append(turn.text)
    return {at: " ".join(texts) for at, texts in found.items()}


def _speech_interval_s(questions: Sequence[RecordedQuestion], ends_s: Sequence[float | None]) -> tuple[float, float] | None:
    spoken = [
        (end_s - ask.speech_s, end_s)
        for ask, end_s in zip(questions, ends_s, strict=True)
        if ask.speech_s is not None and end_s is not None
    ]
    return (round(max(0.0, spoken[0][0]), 2), round(spoken[-1][1], 2)) if spoken else None


def _compare_turn(
    question: str | None, speech_s: tuple[float, float] | None, recorded: TurnAnswer | None, replayed: TurnAnswer | None
) -> TurnComparison:
    return TurnComparison(
        asked=question,
        speech_s=speech_s,
        recorded=recorded,
        replayed=replayed,
        change={name: _difference(getattr(replayed, name, None), getattr(recorded, name, None)) for name in (*LATENCIES, "sound_ms")},
        same=recorded is not None and replayed is not None and recorded.text == replayed.text,
        words=len(split_words(recorded.text)) if recorded is not None else 0,
        word_errors=count_word_errors(
            split_words(recorded.text if recorded is not None else ""), split_words(replayed.text if replayed is not None else "")
        ),
    )


def _difference(replayed: float | None, recorded: float | None) -> float | None:
    return None if replayed is None or recorded is None else round(replayed - recorded, 1)


def split_words(text: str) -> Sequence[str]:
    """The words of a text, whatever stands between them."""
    return _WORD.findall(text.lower().replace("’", "'"))


def count_word_errors(recorded: Sequence[str], replayed: Sequence[str]) -> int:
    """How many words must be left out, put in or replaced to make one of the other."""
    row = list(range(len(replayed) + 1))
    for count, word in enumerate(recorded, start=1):
        diagonal, row[0] = row[0], count
        for at, other in enumerate(replayed, start=1):
            diagonal, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, diagonal + (word != other))
    return row[-1]


class Spread(Struct, frozen=True):
    """
    Values of all turns that have them; both None where none has.

    Attributes:
        worst: the largest.
    """

    p50: float | None
    worst: float | None


class ComparisonSummary(Struct, frozen=True):
    """
    All turns of both sessions; of what is in a mapping, by `recorded` and `replayed`.

    Attributes:
        same: how many turns were answered in the same words.
        waits: for each of `WAITS`, also the `change` of turns that have it in both.
        wer: `word_errors` for each of `words`; None where the recorded answers have none.
    """

    turns: int
    same: int
    waits: Mapping[str, Mapping[str, Spread]]
    sound_ms: Mapping[str, float]
    interrupted: Mapping[str, int]
    unanswered: Mapping[str, int]
    words: int
    word_errors: int
    wer: float | None


def summarize(turns: Sequence[TurnComparison]) -> ComparisonSummary:
    """What the turns come to."""
    sides: Mapping[str, Sequence[TurnAnswer | None]] = {
        "recorded": [turn.recorded for turn in turns],
        "replayed": [turn.replayed for turn in turns],
    }
    given = {side: [one for one in answers if one is not None] for side, answers in sides.items()}
    all_words, errors = sum(turn.words for turn in turns), sum(turn.word_errors for turn in turns)
    waits: dict[str, dict[str, Spread]] = {}
    for name in LATENCIES:
        waits[name] = {side: _spread(getattr(one, name) for one in answers) for side, answers in given.items()}
        waits[name]["change"] = _spread(turn.change[name] for turn in turns)
    return ComparisonSummary(
        turns=len(turns),
        same=sum(turn.same for turn in turns),
        waits=waits,
        sound_ms={side: round(sum(one.sound_ms for one in answers), 1) for side, answers in given.items()},
        interrupted={side: sum(one.interrupted for one in answers) for side, answers in given.items()},
        unanswered={side: sum(one is None for one in answers) for side, answers in sides.items()},
        words=all_words,
        word_errors=errors,
        wer=round(errors / all_words, 4) if all_words else None,
    )


def _spread(values: Iterable[float | None]) -> Spread:
    there = [value for value in values if value is not None]
    return Spread(round(statistics.median(there), 1), max(there)) if there else Spread(None, None)


def to_dict(turns: Sequence[TurnComparison]) -> dict[str, Any]:
    """All of it, for programs."""
    return {"turns": turns, "summary": structs.asdict(summarize(turns))}
