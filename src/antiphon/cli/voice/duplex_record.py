"""What was said in a MiniCPM-o session, and when."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, field

from antiphon.audio import duration_ms
from antiphon.cli.voice.transcript import MODEL, TextChunk
from antiphon.wire.codec.types import Unknown
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.media import RATE_OUT_HZ, from_floats
from antiphon.wire.minicpmo.server_events import ServerEvent


class DuplexQueuePosition(NamedTuple):
    """
    A place among those who wait.

    Attributes:
        wait_s: how long it may take, as the server thinks; None where it doesn't know.
    """

    position: int
    queue_length: int
    wait_s: float | None


class DuplexAnswer(Struct, kw_only=True):
    """
    What the model said at one time.

    Attributes:
        source: the name of the recording that was said last.
        asked_s: when that was over, on the loop's clock, as all times in seconds are.
        reason: why it ended, in chat.
        sound: s16le at `RATE_OUT_HZ`.
    """

    id: str
    source: str
    speech_end_s: float
    text: str = ""
    first_text_s: float | None = None
    first_audio_s: float | None = None
    ended_s: float | None = None
    is_interrupted: bool = False
    reason: str | None = None
    pcm: bytearray = field(default_factory=bytearray)

    @property
    def first_output_s(self) -> float:
        """When the first of it came."""
        return min((at_s for at_s in (self.first_text_s, self.first_audio_s) if at_s is not None), default=self.speech_end_s)

    @property
    def latencies_ms(self) -> dict[str, float | None]:
        """How long after the end of the speech things came; None for what didn't."""
        moments = {"first_text": self.first_text_s, "first_audio": self.first_audio_s, "ended": self.ended_s}
        return {name: None if at_s is None else round(1000 * (at_s - self.speech_end_s), 1) for name, at_s in moments.items()}

    def to_dict(self) -> dict[str, Any]:
        """All of it but the sound, as plain values."""
        return {
            "source": self.source,
            "text": self.text,
            "interrupted": self.is_interrupted,
            "reason": self.reason,
            "answer_ms": round(duration_ms(len(self.pcm), RATE_OUT_HZ)),
            "after_speech_ms": self.latencies_ms,
        }


class DuplexTranscript:
    """
    Takes the server's events, and knows what was answered.

    Attributes:
        source: the name of the recording that is being said.
        speech_end_s: when it is over.
        places: those in the queue, one after another.
        is_listening: whether the model said last that it listens; None as long as it has said nothing.
    """

    def __init__(self) -> None:
        self.source = ""
        self.speech_end_s = 0.0
        self.queue_positions: list[DuplexQueuePosition] = []
        self.answers: list[DuplexAnswer] = []
        self.is_listening: bool | None = None
        self._current_answer: DuplexAnswer | None = None

    @property
    def is_speaking(self) -> bool:
        """Whether an answer has begun and not ended."""
        return self._current_answer is not None

    def apply(self, event: ServerEvent | Unknown, at_s: float) -> tuple[TextChunk, ...]:
        """What there is to show of an event, once it is noted down."""
        note = _ON_DUPLEX_EVENT.get(type(event))
        return note(self, event, at_s) if note is not None else ()

    def _on_queue_update(self, event: Any, _at_s: float) -> tuple[TextChunk, ...]:
        wait_s = event.estimated_wait_s
        self.queue_positions.append(DuplexQueuePosition(event.position, event.queue_length, wait_s if isinstance(wait_s, float) else None))
        return ()

    def _on_output_delta(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        if event.kind == "listen":
            return self._on_listen(event, at_s)
        answer = self._ensure_answer(event.response_id)
        if event.kind == "text":
            return self._append_text(answer, event.text or "", at_s)
        self._append_audio(answer, event.audio or b"", at_s)
        return ()

    def _ensure_answer(self, id: str) -> DuplexAnswer:
        self.is_listening = False
        if self._current_answer is None or self._current_answer.id != id:
            self._current_answer = DuplexAnswer(id=id, source=self.source, speech_end_s=self.speech_end_s)
            self.answers.append(self._current_answer)
        return self._current_answer

    @staticmethod
    def _append_text(answer: DuplexAnswer, text: str, at_s: float) -> tuple[TextChunk, ...]:
        answer.first_text_s = answer.first_text_s or at_s
        answer.text += text
        return (TextChunk(MODEL, text),)

    @staticmethod
    def _append_audio(answer: DuplexAnswer, floats: bytes, at_s: float) -> None:
        answer.first_audio_s = answer.first_audio_s or at_s
        answer.pcm += from_floats(floats) or b""

    def _on_listen(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        """The model listens; what it had to say is said."""
        self.is_listening = True
        answer, self._current_answer = self._current_answer, None
        if answer is None:
            return ()
        answer.ended_s, answer.is_interrupted = at_s, event.interrupted is True
        return (TextChunk(MODEL, " (interrupted)" if answer.is_interrupted else "", is_last=True),)

    def _on_response_done(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        """An answer in chat is over; one that was not streamed comes with this. Some servers say it in full duplex, too."""
        answer = self._ensure_answer(event.response_id)
        said = () if answer.text else self._append_text(answer, event.text, at_s)
        if event.audio and not answer.pcm:
            self._append_audio(answer, event.audio, at_s)
        answer.ended_s, answer.reason, self._current_answer = at_s, event.reason, None
        return (*said, TextChunk(MODEL, "", is_last=True))


_OnDuplexEvent = Callable[[DuplexTranscript, Any, float], tuple[TextChunk, ...]]
_ON_DUPLEX_EVENT: dict[type, _OnDuplexEvent] = {
    events.SessionQueued: DuplexTranscript._on_queue_update,
    events.SessionQueueUpdate: DuplexTranscript._on_queue_update,
    events.OutputDelta: DuplexTranscript._on_output_delta,
    events.ResponseDone: DuplexTranscript._on_response_done,
}
"""What is noted of each event."""
