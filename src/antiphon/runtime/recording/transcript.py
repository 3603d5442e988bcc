"""The transcript of a recording: who said what, and how soon the model answered."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct, field

from antiphon.records import SessionRecord
from antiphon.runtime.recording.answers import AnswerReader, RecordedAnswer
from antiphon.runtime.recording.events import IN, OUT, EventFields, PartFields
from antiphon.runtime.recording.files import EventLine

TurnRole = Literal["person", "model"]

_SPEECH_MARK, _AUDIO_MARK, _IMAGE_MARK = "(said something)", "(sound)", "(picture)"


class TranscriptTurn(Struct):
    """
    What one side said in a turn.

    Attributes:
        at_s: when it began.
        latency_s: of the model, the time from the end of the question to the first output; None without output, and in
            full duplex, where no event says when a question ends.
        reason: of the model, how the response ended; None if it didn't.
    """

    role: TurnRole = field(name="who")  # the names in the JSON of `antiphon sessions show --json`
    text: str
    at_s: float
    latency_s: float | None = field(name="first_s", default=None)
    reason: str | None = None

    @property
    def has_text(self) -> bool:
        """Whether the text is what was said, not just a placeholder."""
        return self.text != _SPEECH_MARK


def read_turns(lines: Iterable[EventLine]) -> list[TranscriptTurn]:
    """The turns of a session, in the order in which they began."""
    reader = _TurnReader()
    for line in lines:
        reader.read(line)
    return [turn for turn in reader.turns if turn.text or turn.role == "model"]


class _TurnReader:
    """Collects the turns in events of either protocol."""

    def __init__(self) -> None:
        self.turns: list[TranscriptTurn] = []
        self._answers = AnswerReader()
        self._model_turns: dict[str, TranscriptTurn] = {}
        self._spoken_turns: dict[str, TranscriptTurn] = {}
        self._speech_started_at_s: dict[str, float] = {}
        self._question_at_s: float | None = None
        self._at_s = 0.0
        self._client_handlers: dict[str, Callable[[EventFields], None]] = {
            "conversation.item.create": self._on_item,
            "response.create": self._on_question,
            "input_audio_buffer.commit": self._on_question,
            "input.append": self._on_append,
        }
        self._server_handlers: dict[str, Callable[[EventFields], None]] = {
            "input_audio_buffer.speech_started": self._on_speech_started,
            "input_audio_buffer.speech_stopped": self._on_question,
            "input_audio_buffer.committed": self._on_committed,
            "conversation.item.input_audio_transcription.completed": self._on_transcript,
        }

    def read(self, line: EventLine) -> None:
        """Read the next event."""
        self._at_s = line.at_s
        handle = (self._client_handlers if line.direction == IN else self._server_handlers).get(line.fields.get("type", ""))
        if handle is not None:
            handle(line.fields)
        if line.direction == OUT and (answer := self._answers.read(line.at_s, line.fields)) is not None:
            self._on_answer(answer)

    def _on_question(self, _event: EventFields) -> None:
        self._question_at_s = self._at_s

    def _add_person_turn(self, text: str) -> None:
        self.turns.append(TranscriptTurn("person", text, self._at_s))

    def _on_item(self, event: EventFields) -> None:
        item = event["item"]
        if item.get("role") == "user":
            self._add_person_turn(_message_text(item.get("content")))

    def _on_append(self, event: EventFields) -> None:
        messages = event["input"].get("messages")
        if messages:
            self._question_at_s = self._at_s
            self._add_person_turn(_message_text(messages[-1].get("content")))

    def _on_speech_started(self, event: EventFields) -> None:
        self._speech_started_at_s[event["item_id"]] = self._at_s

    def _on_committed(self, event: EventFields) -> None:
        item_id = event["item_id"]
        self._spoken_turns[item_id] = TranscriptTurn("person", _SPEECH_MARK, self._speech_started_at_s.get(item_id, self._at_s))
        self.turns.append(self._spoken_turns[item_id])

    def _on_transcript(self, event: EventFields) -> None:
        if event["item_id"] in self._spoken_turns and (transcript := event.get("transcript")):
            self._spoken_turns[event["item_id"]].text = transcript

    def _on_answer(self, answer: RecordedAnswer) -> None:
        turn = self._model_turns.get(answer.id)
        if turn is None:
            turn = self._model_turns[answer.id] = TranscriptTurn("model", "", answer.at_s)
            self.turns.append(turn)
        turn.text, turn.reason = answer.text, answer.reason
        if turn.latency_s is None and answer.first_output_s == self._at_s and self._question_at_s is not None:
            turn.latency_s = round(self._at_s - self._question_at_s, 4)


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


_ROLE_NAMES: dict[TurnRole, str] = {"person": "Person", "model": "Model"}


def render_transcript(record: SessionRecord, turns: Iterable[TranscriptTurn]) -> str:
    """A session in Markdown, for people to read."""
    facts = f"{record.protocol}, {record.mode}, model `{record.model}`, {record.duration_ms / 1000:.1f} s, ended: {record.reason or '?'}"
    ends = [f"The recording ends before the session: {record.truncated}."] if record.truncated else []
    lines = [f"**{_format_time(turn.at_s)} {_ROLE_NAMES[turn.role]}**{_latency_note(turn)}: {turn.text or '(nothing)'}" for turn in turns]
    return "\n\n".join([f"# Session {record.id}", facts, *lines, *ends]) + "\n"


def _latency_note(turn: TranscriptTurn) -> str:
    return "" if turn.latency_s is None else f" (after {turn.latency_s:.2f} s)"


def _format_time(at_s: float) -> str:
    return f"{int(at_s // 60):02}:{at_s % 60:04.1f}"
