"""What was said in a MiniCPM-o session, and when."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, field

from antiphon.audio import ms_of
from antiphon.cli.voice.transcript import MODEL, Words
from antiphon.wire.codec.types import Unknown
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.media import RATE_OUT_HZ, from_floats
from antiphon.wire.minicpmo.server_events import ServerEvent


class Place(NamedTuple):
    """
    A place among those who wait.

    Attributes:
        wait_s: how long it may take, as the server thinks; None where it doesn't know.
    """

    position: int
    queue_length: int
    wait_s: float | None


class Answer(Struct, kw_only=True):
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
    asked_s: float
    text: str = ""
    first_text_s: float | None = None
    first_audio_s: float | None = None
    ended_s: float | None = None
    is_interrupted: bool = False
    reason: str | None = None
    sound: bytearray = field(default_factory=bytearray)

    @property
    def began_s(self) -> float:
        """When the first of it came."""
        return min((at_s for at_s in (self.first_text_s, self.first_audio_s) if at_s is not None), default=self.asked_s)

    @property
    def waits_ms(self) -> dict[str, float | None]:
        """How long after the end of the speech things came; None for what didn't."""
        moments = {"first_text": self.first_text_s, "first_audio": self.first_audio_s, "ended": self.ended_s}
        return {name: None if at_s is None else round(1000 * (at_s - self.asked_s), 1) for name, at_s in moments.items()}

    def told(self) -> dict[str, Any]:
        """All of it but the sound, as plain values."""
        return {
            "source": self.source,
            "text": self.text,
            "interrupted": self.is_interrupted,
            "reason": self.reason,
            "answer_ms": round(ms_of(len(self.sound), RATE_OUT_HZ)),
            "after_speech_ms": self.waits_ms,
        }


class Record:
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
        self.places: list[Place] = []
        self.answers: list[Answer] = []
        self.is_listening: bool | None = None
        self._open: Answer | None = None

    @property
    def is_speaking(self) -> bool:
        """Whether an answer has begun and not ended."""
        return self._open is not None

    def take(self, event: ServerEvent | Unknown, at_s: float) -> tuple[Words, ...]:
        """What there is to show of an event, once it is noted down."""
        note = _NOTES.get(type(event))
        return note(self, event, at_s) if note is not None else ()

    def _queue(self, event: Any, _at_s: float) -> tuple[Words, ...]:
        wait_s = event.estimated_wait_s
        self.places.append(Place(event.position, event.queue_length, wait_s if isinstance(wait_s, float) else None))
        return ()

    def _delta(self, event: Any, at_s: float) -> tuple[Words, ...]:
        if event.kind == "listen":
            return self._listen(event, at_s)
        answer = self._answer(event.response_id)
        if event.kind == "text":
            return self._say(answer, event.text or "", at_s)
        self._sound(answer, event.audio or b"", at_s)
        return ()

    def _answer(self, id: str) -> Answer:
        self.is_listening = False
        if self._open is None or self._open.id != id:
            self._open = Answer(id=id, source=self.source, asked_s=self.speech_end_s)
            self.answers.append(self._open)
        return self._open

    @staticmethod
    def _say(answer: Answer, text: str, at_s: float) -> tuple[Words, ...]:
        answer.first_text_s = answer.first_text_s or at_s
        answer.text += text
        return (Words(MODEL, text),)

    @staticmethod
    def _sound(answer: Answer, floats: bytes, at_s: float) -> None:
        answer.first_audio_s = answer.first_audio_s or at_s
        answer.sound += from_floats(floats) or b""

    def _listen(self, event: Any, at_s: float) -> tuple[Words, ...]:
        """The model listens; what it had to say is said."""
        self.is_listening = True
        answer, self._open = self._open, None
        if answer is None:
            return ()
        answer.ended_s, answer.is_interrupted = at_s, event.interrupted is True
        return (Words(MODEL, " (interrupted)" if answer.is_interrupted else "", is_last=True),)

    def _done(self, event: Any, at_s: float) -> tuple[Words, ...]:
        """An answer in chat is over; one that was not streamed comes with this. Some servers say it in full duplex, too."""
        answer = self._answer(event.response_id)
        said = () if answer.text else self._say(answer, event.text, at_s)
        if event.audio and not answer.sound:
            self._sound(answer, event.audio, at_s)
        answer.ended_s, answer.reason, self._open = at_s, event.reason, None
        return (*said, Words(MODEL, "", is_last=True))


_Note = Callable[[Record, Any, float], tuple[Words, ...]]
_NOTES: dict[type, _Note] = {
    events.SessionQueued: Record._queue,
    events.SessionQueueUpdate: Record._queue,
    events.OutputDelta: Record._delta,
    events.ResponseDone: Record._done,
}
"""What is noted of each event."""
