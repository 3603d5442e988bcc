"""The transcript of a recording: who said what and when, how soon the model answered, and where it was interrupted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal
from unicodedata import east_asian_width

from msgspec import Struct, field

from antiphon.audio import SAMPLE_BYTES
from antiphon.records import SessionRecord
from antiphon.runtime.recording.answers import AnswerReader, RecordedAnswer
from antiphon.runtime.recording.events import IN, INTERNAL, OUT, EventFields, PartFields, find_media
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.timeline import Timeline, track_rates_hz

TurnRole = Literal["person", "model"]

_SPEECH_MARK, _AUDIO_MARK, _IMAGE_MARK = "(said something)", "(sound)", "(picture)"


class Interruption(Struct, frozen=True):
    """
    Where an answer was cut short.

    Attributes:
        at_s: when the person stopped hearing it, or reading on.
        heard_ms: how much of its audio was heard; None without audio.
        heard: the words up to there, without one that was cut in two. Within a piece of audio their place is estimated.
    """

    at_s: float
    heard_ms: float | None
    heard: str


class TranscriptTurn(Struct):
    """
    What one side said in a turn.

    Attributes:
        at_s: when it began; of the model, see `answer_times_s`.
        until_s: of the model, when it ended.
        latency_s: of the model, the time from the end of the question to the first output; None without output, and in
            full duplex, where no event says when a question ends.
        reason: of the model, how the response ended; None if it didn't.
        interrupted: of the model, where it was cut short; None if it was not.
    """

    role: TurnRole = field(name="who")  # the names in the JSON of `antiphon sessions show --json`
    text: str
    at_s: float
    until_s: float | None = None
    latency_s: float | None = field(name="first_s", default=None)
    reason: str | None = None
    interrupted: Interruption | None = None

    @property
    def has_text(self) -> bool:
        """Whether the text is what was said, not just a placeholder."""
        return self.text != _SPEECH_MARK

    @property
    def heard_text(self) -> str:
        """The text as far as it was heard."""
        return self.text if self.interrupted is None else self.interrupted.heard


class TimedTurn(Struct):
    """
    A turn, and when each of its words was heard.

    Attributes:
        marks: when so many characters of `heard_text` had been said, on the clock of `Timeline`; ascending in both.
            Without audio, when the text came.
    """

    turn: TranscriptTurn
    marks: Sequence[tuple[int, float]]


def read_turns(lines: Iterable[EventLine]) -> list[TranscriptTurn]:
    """The turns of a session, in the order in which they began."""
    return [timed_turn.turn for timed_turn in read_timed_turns(list(lines))]


def read_timed_turns(lines: Sequence[EventLine]) -> list[TimedTurn]:
    """The turns of a session with the times of their words, in the order in which they began."""
    rates_hz = track_rates_hz(lines)
    reader = _TurnReader(Timeline(lines, rates_hz), rates_hz)
    for line in lines:
        reader.read(line)
    return sorted(reader.timed_turns(), key=lambda timed_turn: timed_turn.turn.at_s)


def answer_times_s(answer: RecordedAnswer, timeline: Timeline) -> tuple[float, float | None]:
    """
    When an answer began and ended for the person, on the clock of `Timeline`.

    It begins when its first audio is played; without audio, when its first text came; without either, when the server
    began it. It ends when the last audio is over that was played; without audio, when the response ended, None if it
    didn't.
    """
    heard_ms = timeline.heard_ms(answer.id)
    if heard_ms is None:
        return answer.at_s if answer.first_text_s is None else answer.first_text_s, answer.ended_at_s
    start_s, end_s = timeline.answer_at_s(answer.id, 0), timeline.answer_at_s(answer.id, heard_ms, is_end=True)
    return answer.at_s if start_s is None else round(start_s, 4), None if end_s is None else round(end_s, 4)


class _SpokenTurn(Struct):
    """What a person said aloud, from when to when in all of the client's audio; None if unknown."""

    turn: TranscriptTurn
    start_ms: float | None
    end_ms: float | None


class _TurnReader:
    """Collects the turns in events of either protocol."""

    def __init__(self, timeline: Timeline, rates_hz: Mapping[str, int]) -> None:
        self._timeline = timeline
        self._rates_hz = rates_hz
        self._written_turns: list[TranscriptTurn] = []
        self._spoken_turns: dict[str, _SpokenTurn] = {}
        self._answers = AnswerReader(rates_hz=rates_hz)
        self._latencies_s: dict[str, float] = {}
        self._speech_ms: dict[str, tuple[float, float | None]] = {}  # by item: where speech starts and ends
        self._speech_started_at_s: dict[str, float] = {}
        self._input_ms = self._buffer_start_ms = 0.0
        self._question_at_s: float | None = None
        self._at_s = 0.0
        self._handlers: dict[str, dict[str, Callable[[EventFields], None]]] = {
            IN: {
                "conversation.item.create": self._on_item,
                "response.create": self._on_question,
                "input_audio_buffer.commit": self._on_question,
                "input.append": self._on_append,
            },
            OUT: {
                "input_audio_buffer.speech_started": self._on_speech_started,
                "input_audio_buffer.speech_stopped": self._on_speech_stopped,
                "input_audio_buffer.committed": self._on_committed,
                "input_audio_buffer.cleared": self._on_cleared,
                "conversation.item.input_audio_transcription.completed": self._on_transcript,
            },
            INTERNAL: {"input_transcript": self._on_input_transcript},
        }

    def read(self, line: EventLine) -> None:
        """Read the next event."""
        self._at_s = line.at_s
        if line.direction == IN:
            self._count_input(line)
        handle = self._handlers.get(line.direction, {}).get(line.fields.get("type", ""))
        if handle is not None:
            handle(line.fields)
        if line.direction == OUT and (answer := self._answers.read(line.at_s, line.fields)) is not None:
            self._on_answer(answer)

    def timed_turns(self) -> Iterable[TimedTurn]:
        """All turns in which something was said, and all answers."""
        for written_turn in self._written_turns:
            if written_turn.text:
                yield TimedTurn(written_turn, [(0, written_turn.at_s)])
        for spoken_turn in self._spoken_turns.values():
            if spoken_turn.turn.text:
                yield TimedTurn(spoken_turn.turn, self._speech_marks(spoken_turn))
        for answer in self._answers.answers.values():
            yield self._answer_turn(answer)

    def _count_input(self, line: EventLine) -> None:
        for media in find_media(line.event):
            if media.file in self._rates_hz:
                self._input_ms += media.bytes * 1000 / (SAMPLE_BYTES * self._rates_hz[media.file])

    # What the person said

    def _on_question(self, _event: EventFields) -> None:
        self._question_at_s = self._at_s

    def _add_written_turn(self, text: str) -> None:
        self._written_turns.append(TranscriptTurn("person", text, self._at_s))

    def _on_item(self, event: EventFields) -> None:
        item = event["item"]
        if item.get("role") == "user":
            self._add_written_turn(_message_text(item.get("content")))

    def _on_append(self, event: EventFields) -> None:
        messages = event["input"].get("messages")
        if messages:
            self._question_at_s = self._at_s
            self._add_written_turn(_message_text(messages[-1].get("content")))

    def _on_speech_started(self, event: EventFields) -> None:
        self._speech_started_at_s[event["item_id"]] = self._at_s
        if "audio_start_ms" in event:
            self._speech_ms[event["item_id"]] = event["audio_start_ms"], None

    def _on_speech_stopped(self, event: EventFields) -> None:
        self._on_question(event)
        if "audio_end_ms" in event and (speech := self._speech_ms.get(event["item_id"])) is not None:
            self._speech_ms[event["item_id"]] = speech[0], event["audio_end_ms"]

    def _on_committed(self, event: EventFields) -> None:
        item_id = event["item_id"]
        start_ms, end_ms = self._speech_ms.get(item_id, (self._buffer_start_ms, None))
        end_ms = self._input_ms if end_ms is None else end_ms
        self._buffer_start_ms = self._input_ms
        self._add_spoken_turn(item_id, _SPEECH_MARK, start_ms, end_ms, self._speech_started_at_s.get(item_id, self._at_s))

    def _add_spoken_turn(self, item_id: str, text: str, start_ms: float | None, end_ms: float | None, known_at_s: float) -> None:
        started_at_s = self._timeline.input_at_s(start_ms) if start_ms is not None else None
        # Audio that was sent faster than it plays lies later on the time line than it came.
        at_s = known_at_s if started_at_s is None else min(started_at_s, known_at_s)
        self._spoken_turns[item_id] = _SpokenTurn(TranscriptTurn("person", text, round(at_s, 4)), start_ms, end_ms)

    def _on_cleared(self, _event: EventFields) -> None:
        self._buffer_start_ms = self._input_ms

    def _on_transcript(self, event: EventFields) -> None:
        if event["item_id"] in self._spoken_turns and (transcript := event.get("transcript")):
            self._spoken_turns[event["item_id"]].turn.text = transcript

    def _on_input_transcript(self, event: EventFields) -> None:
        """The server heard the words, and the client did not ask for them, or has no event for them."""
        if event.get("item_id"):
            self._on_transcript(event)
        elif transcript := event.get("transcript"):
            id = f"input_{len(self._spoken_turns)}"
            self._add_spoken_turn(id, transcript, event.get("start_ms"), event.get("end_ms"), self._at_s)

    def _speech_marks(self, spoken_turn: _SpokenTurn) -> Sequence[tuple[int, float]]:
        start_s = self._timeline.input_at_s(spoken_turn.start_ms) if spoken_turn.start_ms is not None else None
        end_s = self._timeline.input_at_s(spoken_turn.end_ms, is_end=True) if spoken_turn.end_ms is not None else None
        if start_s is None or end_s is None:
            return [(0, spoken_turn.turn.at_s)]
        return [(0, start_s), (len(spoken_turn.turn.text), max(start_s, end_s))]

    # What the model said

    def _on_answer(self, answer: RecordedAnswer) -> None:
        # Only the event that brought the first output tells how soon it came.
        if answer.first_output_s == self._at_s and self._question_at_s is not None:
            self._latencies_s.setdefault(answer.id, round(self._at_s - self._question_at_s, 4))

    def _answer_turn(self, answer: RecordedAnswer) -> TimedTurn:
        marks = _audio_marks(answer)
        start_s, end_s = answer_times_s(answer, self._timeline)
        turn = TranscriptTurn("model", answer.text, start_s, end_s, self._latencies_s.get(answer.id), answer.reason)
        heard_ms = self._timeline.heard_ms(answer.id)
        if answer.is_interrupted:
            turn.interrupted = _interruption(answer, marks, heard_ms, self._at_s if end_s is None else end_s)
        if heard_ms is None:
            return TimedTurn(turn, [(0, start_s)])
        length = len(turn.heard_text)
        until = [mark for mark in marks if mark[0] < length and mark[1] < heard_ms]
        heard_marks = [*until, (length, min(heard_ms, answer.audio_ms))]
        times = [self._timeline.answer_at_s(answer.id, at_ms, is_end=at_ms > 0) for _, at_ms in heard_marks]
        return TimedTurn(turn, [(count, at_s) for (count, _), at_s in zip(heard_marks, times, strict=True) if at_s is not None])


def _interruption(answer: RecordedAnswer, marks: Sequence[tuple[int, float]], heard_ms: float | None, end_s: float) -> Interruption:
    if heard_ms is None:  # it was only written, and all that came was shown
        return Interruption(end_s, None, answer.text)
    return Interruption(end_s, round(heard_ms, 1), _heard_text(answer.text, marks, heard_ms))


def _audio_marks(answer: RecordedAnswer) -> Sequence[tuple[int, float]]:
    """After how much of a response's audio so many of its characters are said; ascending in both."""
    marks = [(0, 0.0)]
    for count, at_ms in (*answer.text_marks, (len(answer.text), answer.audio_ms)):
        if count > marks[-1][0] and at_ms > marks[-1][1]:
            marks.append((count, at_ms))
    if len(answer.text) > marks[-1][0]:  # the last words came after all audio
        marks[-1] = len(answer.text), marks[-1][1]
    return marks


def _heard_text(text: str, marks: Sequence[tuple[int, float]], heard_ms: float) -> str:
    """The whole words that are said in so much audio."""
    for (count, at_ms), (next_count, next_ms) in pairwise(marks):
        if heard_ms < next_ms:
            length = int(count + (next_count - count) * max(0.0, heard_ms - at_ms) / (next_ms - at_ms))
            return text[: word_start(text, length)].rstrip()
    return text


def word_start(text: str, position: int) -> int:
    """Where the word begins that a cut at `position` would divide; `position` if it divides none."""
    start = position
    while 0 < start < len(text) and not any(each.isspace() or is_wide(each) for each in text[start - 1 : start + 1]):
        start -= 1
    return start


def is_wide(character: str) -> bool:
    """Whether a character takes two columns, as those of scripts without spaces do. Source: Unicode, UAX #11."""
    return east_asian_width(character) in "WF"


def _message_text(content: str | Sequence[PartFields] | None) -> str:
    """The text of a message, with placeholders for its images and audio."""
    if content is None or isinstance(content, str):
        return content or ""
    marks = {
        "image": _IMAGE_MARK,
        "image_url": _IMAGE_MARK,
        "input_image": _IMAGE_MARK,
        "video": _IMAGE_MARK,
        "audio": _AUDIO_MARK,
        "input_audio": _AUDIO_MARK,
    }
    texts = (part.get("text") or part.get("transcript") or marks.get(part.get("type", ""), "") for part in content)
    return " ".join(text for text in texts if text)


ROLE_NAMES: Mapping[TurnRole, str] = {"person": "Person", "model": "Model"}
"""The speakers' names in transcripts and subtitles."""


def render_transcript(record: SessionRecord, turns: Iterable[TranscriptTurn]) -> str:
    """A session in Markdown, for people to read."""
    facts = f"{record.protocol}, {record.mode}, model `{record.model}`, {record.duration_ms / 1000:.1f} s, ended: {record.reason or '?'}"
    ends = [f"The recording ends before the session: {record.truncated}."] if record.truncated else []
    lines = [f"**{_format_time(turn.at_s)} {ROLE_NAMES[turn.role]}**{_latency_note(turn)}: {render_text(turn)}" for turn in turns]
    return "\n\n".join([f"# Session {record.id}", facts, *lines, *ends]) + "\n"


def render_text(turn: TranscriptTurn) -> str:
    """What was said in a turn; of an answer that was interrupted, up to where it was heard."""
    stop = turn.interrupted
    if stop is None:
        return turn.text or "(nothing)"
    unheard = turn.text[len(stop.heard) :].strip()
    note = f"interrupted at {stop.at_s:.2f} s" + ("" if stop.heard_ms is None else f", after {stop.heard_ms / 1000:.2f} s of sound")
    return f"{stop.heard or '(nothing)'} [{note}{f'; not heard: {unheard}' if unheard else ''}]"


def _latency_note(turn: TranscriptTurn) -> str:
    return "" if turn.latency_s is None else f" (after {turn.latency_s:.2f} s)"


def _format_time(at_s: float) -> str:
    return f"{int(at_s // 60):02}:{at_s % 60:04.1f}"
