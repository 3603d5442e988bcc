"""
Compares two sessions with the same client events: how soon each turn was answered, how long, and in which words.

A turn ends where either session answered: so a response that is missing in one session doesn't shift those after it.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct, structs

from antiphon.runtime.recording.answers import RecordedAnswer, find_answers, find_transcripts
from antiphon.runtime.recording.events import IN
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.mixing import read_wav
from antiphon.runtime.recording.transcript import read_turns
from antiphon.runtime.replay.questions import RecordedQuestion, find_questions
from antiphon.runtime.replay.steps import DownloadedRecording

LATENCIES = ("begins_ms", "first_text_ms", "first_audio_ms")
"""The fields of `TurnAnswer` that count from the end of what the person said."""

_EARLY_S = 0.5
"""How long before the end of a speech its response may begin; an earlier one answers what was said before."""

# In scripts without spaces, each character counts as a word.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[\w'’])+")


class TurnAnswer(Struct, frozen=True):
    """
    The response to a turn; several responses are taken together.

    Attributes:
        begins_ms: from the end of what the person said to the start of the response; negative if it began before, None
            if the person had said nothing. `first_text_ms` and `first_audio_ms` are the same for the first text and
            audio, None without any.
        sound_ms: the duration of its audio.
        answers: the number of responses.
        reason: how the last of them ended; None if it didn't.
        interrupted: whether any of them was interrupted.
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
        asked: what the person said; None if unknown.
        speech_s: from when to when the person spoke, in seconds of the recording; None without speech.
        recorded: None if the recorded session has no response; `replayed` is the same for the replay.
        change: `replayed` minus `recorded`, for `LATENCIES` and `sound_ms`; None where either is missing.
        words: the number of words in the recorded response.
        word_errors: how many words to delete, insert or replace to get the replayed response.
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
        recording: the recorded session.
        replay_lines: the events of the replay, from both sides.
    """
    record = recording.record
    rates_hz = {name: read_wav(file).rate_hz for name, file in recording.files.items() if name.endswith(".wav")}
    questions = find_questions(recording.lines, recording.files)
    find = find_transcripts if record.mode == "transcription" else partial(find_answers, protocol=record.protocol, rates_hz=rates_hz)
    sides = [_SessionSide(questions, lines, find(lines)) for lines in (recording.lines, replay_lines)]
    answered_indexes = sorted({index for side in sides for index in side.answers_by_question})
    texts = _texts([sides[0].question_ends_s[index] if index >= 0 else 0.0 for index in answered_indexes], recording.lines)
    turns = []
    for number, index in enumerate(answered_indexes):
        # Questions that neither session answered belong to the turn that follows.
        since = max(0, answered_indexes[number - 1] + 1 if number else 0)
        speech_s = _speech_interval_s(questions[since : index + 1], sides[0].question_ends_s[since : index + 1])
        turns.append(_compare_turn(texts.get(number), speech_s, *(side.turn_answer(index) for side in sides)))
    return turns


class _SessionSide:
    """
    One of the two sessions.

    Attributes:
        question_ends_s: when each question ended; None where it was not sent.
        answers_by_question: the responses to each question, by its index; -1 for those before any question.
    """

    def __init__(self, questions: Sequence[RecordedQuestion], lines: Sequence[EventLine], answers: Iterable[RecordedAnswer]) -> None:
        sent_at_s = [line.at_s for line in lines if line.direction == IN]
        self.question_ends_s = [question.end_at_s(sent_at_s) for question in questions]
        self.answers_by_question: dict[int, list[RecordedAnswer]] = {}
        for answer in answers:
            earlier_indexes = [
                index
                for index, end_s in enumerate(self.question_ends_s)
                if end_s is not None and end_s - self._tolerance_s(questions[index]) <= answer.at_s
            ]
            self.answers_by_question.setdefault(max(earlier_indexes, default=-1), []).append(answer)

    @staticmethod
    def _tolerance_s(question: RecordedQuestion) -> float:
        return 0.0 if question.speech_s is None else min(_EARLY_S, question.speech_s)

    def turn_answer(self, index: int) -> TurnAnswer | None:
        """The response to the question of that index; None if there is none."""
        answers = self.answers_by_question.get(index)
        if not answers:
            return None
        end_s = self.question_ends_s[index] if index >= 0 else None

        def latency_ms(times_s: Iterable[float | None]) -> float | None:
            first_s = min((at_s for at_s in times_s if at_s is not None), default=None)
            return None if first_s is None or end_s is None else round(1000 * (first_s - end_s), 1)

        return TurnAnswer(
            begins_ms=latency_ms(answer.at_s for answer in answers),
            first_text_ms=latency_ms(answer.first_text_s for answer in answers),
            first_audio_ms=latency_ms(answer.first_audio_s for answer in answers),
            sound_ms=round(sum(answer.audio_ms for answer in answers), 1),
            text=" ".join(answer.text.strip() for answer in answers if answer.text.strip()),
            answers=len(answers),
            reason=answers[-1].reason,
            interrupted=any(answer.is_interrupted for answer in answers),
        )


def _texts(ends_s: Sequence[float | None], lines: Iterable[EventLine]) -> Mapping[int, str]:
    """What the person said, as far as it is known, by turn."""
    texts_by_turn: dict[int, list[str]] = {}
    for turn in read_turns(lines):
        if turn.role == "person" and turn.has_text:
            number = next((number for number, end_s in enumerate(ends_s) if end_s is not None and end_s >= turn.at_s), len(ends_s) - 1)
            texts_by_turn.setdefault(number, []).append(turn.text)
    return {number: " ".join(texts) for number, texts in texts_by_turn.items()}


def _speech_interval_s(questions: Sequence[RecordedQuestion], ends_s: Sequence[float | None]) -> tuple[float, float] | None:
    spans = [
        (end_s - question.speech_s, end_s)
        for question, end_s in zip(questions, ends_s, strict=True)
        if question.speech_s is not None and end_s is not None
    ]
    return (round(max(0.0, spans[0][0]), 2), round(spans[-1][1], 2)) if spans else None


def _compare_turn(
    question: str | None, speech_s: tuple[float, float] | None, old_answer: TurnAnswer | None, new_answer: TurnAnswer | None
) -> TurnComparison:
    old_words, new_words = (split_words(answer.text) if answer is not None else () for answer in (old_answer, new_answer))
    return TurnComparison(
        asked=question,
        speech_s=speech_s,
        recorded=old_answer,
        replayed=new_answer,
        change={name: _difference(getattr(old_answer, name, None), getattr(new_answer, name, None)) for name in (*LATENCIES, "sound_ms")},
        same=old_answer is not None and new_answer is not None and old_answer.text == new_answer.text,
        words=len(old_words),
        word_errors=count_word_errors(old_words, new_words),
    )


def _difference(old: float | None, new: float | None) -> float | None:
    return None if old is None or new is None else round(new - old, 1)


def split_words(text: str) -> Sequence[str]:
    """The words of a text, without punctuation."""
    return _WORD.findall(text.lower().replace("’", "'"))


def count_word_errors(old_words: Sequence[str], new_words: Sequence[str]) -> int:
    """The word-level edit distance: deletions, insertions and replacements."""
    row = list(range(len(new_words) + 1))
    for count, word in enumerate(old_words, start=1):
        diagonal, row[0] = row[0], count
        for column, other in enumerate(new_words, start=1):
            diagonal, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, diagonal + (word != other))
    return row[-1]


class Spread(Struct, frozen=True):
    """
    The values of all turns that have one; both None if none has.

    Attributes:
        p50: the median.
        worst: the largest.
    """

    p50: float | None
    worst: float | None


class ComparisonSummary(Struct, frozen=True):
    """
    All turns of both sessions; mappings are by `recorded` and `replayed`.

    Attributes:
        same: the number of turns with the same text in both.
        waits: for each of `LATENCIES`; also the `change` of turns that have it in both.
        unanswered: the number of turns without a response.
        wer: `word_errors` per word of the recorded responses; None if those have no words.
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
    """The summary of all turns."""
    sides: Mapping[str, Sequence[TurnAnswer | None]] = {
        "recorded": [turn.recorded for turn in turns],
        "replayed": [turn.replayed for turn in turns],
    }
    present = {side: [one for one in answers if one is not None] for side, answers in sides.items()}
    all_words, errors = sum(turn.words for turn in turns), sum(turn.word_errors for turn in turns)
    waits: dict[str, dict[str, Spread]] = {}
    for name in LATENCIES:
        waits[name] = {side: _spread(getattr(one, name) for one in answers) for side, answers in present.items()}
        waits[name]["change"] = _spread(turn.change[name] for turn in turns)
    return ComparisonSummary(
        turns=len(turns),
        same=sum(turn.same for turn in turns),
        waits=waits,
        sound_ms={side: round(sum(one.sound_ms for one in answers), 1) for side, answers in present.items()},
        interrupted={side: sum(one.interrupted for one in answers) for side, answers in present.items()},
        unanswered={side: sum(one is None for one in answers) for side, answers in sides.items()},
        words=all_words,
        word_errors=errors,
        wer=round(errors / all_words, 4) if all_words else None,
    )


def _spread(values: Iterable[float | None]) -> Spread:
    present = [value for value in values if value is not None]
    return Spread(round(statistics.median(present), 1), max(present)) if present else Spread(None, None)


def to_dict(turns: Sequence[TurnComparison]) -> dict[str, object]:
    """The comparison as plain values, for JSON."""
    return {"turns": turns, "summary": structs.asdict(summarize(turns))}
