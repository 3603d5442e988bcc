"""Who said what in a recording, and how soon: for people to read, and to compare two recordings by."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.records import SessionRecord
from antiphon.runtime.recording.events import IN
from antiphon.runtime.recording.files import EventLine

TurnRole = Literal["person", "model"]

_SPEECH_MARK, _AUDIO_MARK, _IMAGE_MARK = "(said something)", "(sound)", "(picture)"


class TranscriptTurn(Struct):
    """
    What one side said.

    Attributes:
        at_s: when it began to be said, or to be answered.
        first_s: of an answer, how long it took from the end of the question to the first of it; None where nothing came, and in full
            duplex, where nobody says when a question ends.
        reason: of an answer, how it ended; None where it didn't.
    """

    role: TurnRole
    text: str
    at_s: float
    latency_s: float | None = None
    reason: str | None = None

    @property
    def has_text(self) -> bool:
        """Whether the text is what was said, and does not only stand for it."""
        return self.text != _SPEECH_MARK


def read_turns(lines: Iterable[EventLine]) -> list[TranscriptTurn]:
    """The turns of a session, in the order in which they began."""
    reader = _TurnReader()
    for line in lines:
        reader.read(line)
    return [turn for turn in reader.turns if turn.text or turn.role == "model"]


class _TurnReader:
    """Reads events of either protocol."""

    def __init__(self) -> None:
        self.turns: list[TranscriptTurn] = []
        self._model_turns: dict[str, TranscriptTurn] = {}
        self._spoken_turns: dict[str, TranscriptTurn] = {}
        self._speech_started_at_s: dict[str, float] = {}
        self._question_at_s: float | None = None
        self._at_s = 0.0
        self._client_handlers: dict[str, Callable[[Any], None]] = {
            "conversation.item.create": self._on_item,
            "response.create": self._on_question,
            "input_audio_buffer.commit": self._on_question,
            "input.append": self._on_append,
        }
        self._server_handlers: dict[str, Callable[[Any], None]] = {
            "input_audio_buffer.speech_started": self._on_speech_started,
            "input_audio_buffer.speech_stopped": self._on_question,
            "input_audio_buffer.committed": self._on_committed,
            "conversation.item.input_audio_transcription.completed": self._on_transcript,
            "response.created": self._on_response_created,
            "response.output_text.delta": lambda event: self._add_text(event["response_id"], event["delta"]),
            "response.output_audio_transcript.delta": lambda event: self._add_text(event["response_id"], event["delta"]),
            "response.output_audio.delta": lambda event: self._add_text(event["response_id"], ""),
            "response.output.delta": self._on_output,
            "response.done": self._on_response_done,
        }

    def read(self, line: EventLine) -> None:
        """One more event."""
        self._at_s = line.at_s
        read = (self._client_handlers if line.direction == IN else self._server_handlers).get(line.event.get("type"))
        if read is not None:
            read(line.event)

    def _on_question(self, _event: Any) -> None:
        self._question_at_s = self._at_s

    def _add_person_turn(self, text: str) -> None:
        self.turns.append(TranscriptTurn("person", text, self._at_s))

    def _on_item(self, event: Any) -> None:
        item = event["item"]
        if item.get("role") == "user":
            self._add_person_turn(_message_text(item.get("content", ())))

    def _on_append(self, event: Any) -> None:
        messages = event["input"].get("messages")
        if messages:
            self._question_at_s = self._at_s
            content = messages[-1].get("content")
            self._add_person_turn(content if isinstance(content, str) else _message_text(content))

    def _on_speech_started(self, event: Any) -> None:
        self._speech_started_at_s[event["item_id"]] = self._at_s

    def _on_committed(self, event: Any) -> None:
        item_id = event["item_id"]
        self._spoken_turns[item_id] = TranscriptTurn("person", _SPEECH_MARK, self._speech_started_at_s.get(item_id, self._at_s))
        self.turns.append(self._spoken_turns[item_id])

    def _on_transcript(self, event: Any) -> None:
        if event["item_id"] in self._spoken_turns and event.get("transcript"):
            self._spoken_turns[event["item_id"]].text = event["transcript"]

    def _model_turn(self, response_id: str) -> TranscriptTurn:
        if response_id not in self._model_turns:
            answer = self._model_turns[response_id] = TranscriptTurn("model", "", self._at_s)
            self.turns.append(answer)
        return self._model_turns[response_id]

    def _on_response_created(self, event: Any) -> None:
        self._model_turn(event["response"]["id"])

    def _add_text(self, response_id: str, text: str) -> None:
        answer = self._model_turn(response_id)
        answer.text += text
        if answer.latency_s is None and self._question_at_s is not None:
            answer.latency_s = round(self._at_s - self._question_at_s, 4)

    def _on_output(self, event: Any) -> None:
        if event["kind"] != "listen":
            self._add_text(event["response_id"], event.get("text") or "")
        elif event.get("end_of_turn") and event["response_id"] in self._model_turns:
            self._model_turns[event["response_id"]].reason = "interrupted" if event.get("interrupted") else "end_of_turn"

    def _on_response_done(self, event: Any) -> None:
        told = event.get("response", event)
        answer = self._model_turn(told.get("id") or told["response_id"])
        answer.reason = told.get("status") or told.get("reason")
        if not answer.text and told.get("text"):
            self._add_text(told["response_id"], told["text"])


def _message_text(content: Sequence[Any]) -> str:
    """The words of a message; what it has besides is only named."""
    named = {
        "image": _IMAGE_MARK,
        "image_url": _IMAGE_MARK,
        "input_image": _IMAGE_MARK,
        "video": _IMAGE_MARK,
        "audio": _AUDIO_MARK,
        "input_audio": _AUDIO_MARK,
    }
    said = (part.get("text") or part.get("transcript") or named.get(part.get("type"), "") for part in content)
    return " ".join(text for text in said if text)


_ROLE_NAMES: dict[TurnRole, str] = {"person": "Person", "model": "Model"}


def render_transcript(record: SessionRecord, turns: Iterable[TranscriptTurn]) -> str:
    """A session for people to read, in Markdown."""
    facts = f"{record.protocol}, {record.mode}, model `{record.model}`, {record.duration_ms / 1000:.1f} s, ended: {record.reason or '?'}"
    ends = [f"The recording ends before the session: {record.truncated}."] if record.truncated else []
    told = [f"**{_format_time(turn.at_s)} {_ROLE_NAMES[turn.role]}**{_latency_note(turn)}: {turn.text or '(nothing)'}" for turn in turns]
    return "\n\n".join([f"# Session {record.id}", facts, *told, *ends]) + "\n"


def _latency_note(turn: TranscriptTurn) -> str:
    return "" if turn.latency_s is None else f" (after {turn.latency_s:.2f} s)"


def _format_time(at_s: float) -> str:
    return f"{int(at_s // 60):02}:{at_s % 60:04.1f}"
