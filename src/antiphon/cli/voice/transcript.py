"""What was said in a spoken conversation, turn by turn, and when."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, field

from antiphon.audio import ms_of
from antiphon.cli.voice.audio import RATE_HZ
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.server_events import ServerEvent

YOU, MODEL = "you", "model"


class Words(NamedTuple):
    """
    Something to show.

    Attributes:
        who: `YOU` or `MODEL`.
        is_last: whether it ends what they say.
    """

    who: str
    text: str
    is_last: bool = False


class Turn(Struct, kw_only=True):
    """
    A turn of the person's, and the answer to it.

    Attributes:
        source: the name of the recording that was being said.
        speech_start_ms: on the server's clock, which is the sound that it was sent; likewise `speech_end_ms`.
        ended_s: when the server told of its end, on the loop's clock, as all times in seconds are; None as long as it hasn't.
        partial: what the server has understood so far.
        transcript: all of it; None as long as it hasn't said.
        status: of the answer; None as long as there is no whole one.
        reason: why it is not whole.
        sound: of the answer, s16le at `RATE_HZ`.
    """

    item_id: str
    source: str | None = None
    speech_start_ms: float | None = None
    speech_end_ms: float | None = None
    ended_s: float | None = None
    partial: str = ""
    transcript: str | None = None
    not_understood: str | None = None
    transcript_s: float | None = None
    answer: str = ""
    first_token_s: float | None = None
    first_audio_s: float | None = None
    answered_s: float | None = None
    status: str | None = None
    reason: str | None = None
    sound: bytearray = field(default_factory=bytearray)

    @property
    def is_transcribed(self) -> bool:
        """Whether nothing more comes of what was understood."""
        return self.transcript is not None or self.not_understood is not None

    @property
    def waits_ms(self) -> dict[str, float | None]:
        """How long after the end of the speech things came; None for what didn't."""
        moments = {
            "transcript": self.transcript_s,
            "first_token": self.first_token_s,
            "first_audio": self.first_audio_s,
            "answered": self.answered_s,
        }
        return {name: self._since_end_ms(at_s) for name, at_s in moments.items()}

    def _since_end_ms(self, at_s: float | None) -> float | None:
        return None if at_s is None or self.ended_s is None else round(1000 * (at_s - self.ended_s), 1)

    def told(self) -> dict[str, Any]:
        """All of it but the sound, as plain values."""
        return {
            "source": self.source,
            "speech_start_ms": self.speech_start_ms,
            "speech_end_ms": self.speech_end_ms,
            "transcript": self.transcript,
            "not_understood": self.not_understood,
            "answer": self.answer,
            "status": self.status,
            "reason": self.reason,
            "answer_ms": round(ms_of(len(self.sound), RATE_HZ)),
            "after_speech_ms": self.waits_ms,
        }


class Record:
    """
    Takes the server's events, and knows what has become of each turn.

    Args:
        keeps_sound: whether the answers' sound is wanted.

    Attributes:
        source: what is being said, for the turns that begin now.
        is_speaking: whether the server hears someone speak.
    """

    def __init__(self, *, keeps_sound: bool = True) -> None:
        self.source: str | None = None
        self.turns: list[Turn] = []
        self.is_speaking = False
        self._keeps_sound = keeps_sound
        self._answers: dict[str, Turn] = {}

    def take(self, event: ServerEvent | Unknown, at_s: float) -> tuple[Words, ...]:
        """What there is to show of an event, once it is noted down."""
        note = _NOTES.get(type(event))
        return note(self, event, at_s) if note is not None else ()

    def _turn(self, item_id: str) -> Turn | None:
        return next((turn for turn in reversed(self.turns) if turn.item_id == item_id), None)

    # Speech

    def _start(self, event: Any, _at_s: float) -> tuple[Words, ...]:
        self.is_speaking = True
        self._begin(event.item_id).speech_start_ms = event.audio_start_ms
        return ()

    def _stop(self, event: Any, at_s: float) -> tuple[Words, ...]:
        self.is_speaking = False
        turn = self._begin(event.item_id)
        turn.speech_end_ms, turn.ended_s = event.audio_end_ms, at_s
        return ()

    def _commit(self, event: Any, at_s: float) -> tuple[Words, ...]:
        turn = self._begin(event.item_id)
        if turn.ended_s is None:  # whoever commits by themselves is told of no end of speech
            turn.ended_s = at_s
        return ()

    def _begin(self, item_id: str) -> Turn:
        turn = self._turn(item_id)
        if turn is None:
            turn = Turn(item_id=item_id, source=self.source)
            self.turns.append(turn)
        return turn

    def _understand_more(self, event: Any, _at_s: float) -> tuple[Words, ...]:
        if (turn := self._turn(event.item_id)) is None:
            return ()
        turn.partial += event.delta
        return (Words(YOU, event.delta),)

    def _understand(self, event: Any, at_s: float) -> tuple[Words, ...]:
        if (turn := self._turn(event.item_id)) is None:
            return ()
        turn.transcript, turn.transcript_s = event.transcript.strip(), at_s
        rest = "" if turn.partial.strip() else turn.transcript or "(nothing that could be understood)"
        return (Words(YOU, rest, is_last=True),)

    def _fail_to_understand(self, event: Any, _at_s: float) -> tuple[Words, ...]:
        if (turn := self._turn(event.item_id)) is None:
            return ()
        turn.not_understood = event.error.message or "it was not transcribed"
        return (Words(YOU, f"(not understood: {turn.not_understood})", is_last=True),)

    # The answer

    def _answer_begins(self, event: Any, _at_s: float) -> tuple[Words, ...]:
        asked = next((turn for turn in reversed(self.turns) if turn.ended_s is not None), None)
        if asked is not None:
            self._answers[event.response.id] = asked
        return ()

    def _say(self, event: Any, at_s: float) -> tuple[Words, ...]:
        if (turn := self._answers.get(event.response_id)) is None:
            return ()
        turn.first_token_s = turn.first_token_s or at_s
        turn.answer += event.delta
        return (Words(MODEL, event.delta),)

    def _sound(self, event: Any, at_s: float) -> tuple[Words, ...]:
        if (turn := self._answers.get(event.response_id)) is not None:
            turn.first_audio_s = turn.first_audio_s or at_s
            if self._keeps_sound:
                turn.sound += event.delta
        return ()

    def _answer_ends(self, event: Any, at_s: float) -> tuple[Words, ...]:
        if (turn := self._answers.pop(event.response.id, None)) is None:
            return ()
        response = event.response
        turn.answered_s, turn.status, turn.reason = at_s, response.status, reason_of(response)
        return (Words(MODEL, "" if turn.status == "completed" else f" ({_CUT_OFF.get(response.status, response.status)})", is_last=True),)


_CUT_OFF = {"cancelled": "interrupted", "incomplete": "cut off"}


def reason_of(response: Any) -> str | None:
    """Why a response is not whole, as far as that is known."""
    details = response.status_details
    if not details:
        return None
    return (details.error.message if details.error else None) or details.reason or None


_Note = Callable[[Record, Any, float], tuple[Words, ...]]
_NOTES: dict[type, _Note] = {
    events.InputAudioBufferSpeechStarted: Record._start,
    events.InputAudioBufferSpeechStopped: Record._stop,
    events.InputAudioBufferCommitted: Record._commit,
    events.InputAudioTranscriptionDelta: Record._understand_more,
    events.InputAudioTranscriptionCompleted: Record._understand,
    events.InputAudioTranscriptionFailed: Record._fail_to_understand,
    events.ResponseCreated: Record._answer_begins,
    events.ResponseOutputAudioTranscriptDelta: Record._say,
    events.ResponseOutputTextDelta: Record._say,
    events.ResponseOutputAudioDelta: Record._sound,
    events.ResponseDone: Record._answer_ends,
}
"""What is noted of each event; the others say nothing that is not said by one of these."""
