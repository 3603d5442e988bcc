"""What was said in a spoken conversation, turn by turn, and when."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, field

from antiphon.audio import duration_ms
from antiphon.cli.voice.audio import RATE_HZ
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.server_events import ServerEvent

USER, MODEL = "you", "model"


class TextChunk(NamedTuple):
    """
    Something to show.

    Attributes:
        who: `YOU` or `MODEL`.
        is_last: whether it ends what they say.
    """

    speaker: str
    text: str
    is_last: bool = False


class TalkTurn(Struct, kw_only=True):
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
    speech_end_s: float | None = None
    partial_transcript: str = ""
    transcript: str | None = None
    transcription_error: str | None = None
    transcript_s: float | None = None
    answer: str = ""
    first_token_s: float | None = None
    first_audio_s: float | None = None
    answered_s: float | None = None
    status: str | None = None
    reason: str | None = None
    pcm: bytearray = field(default_factory=bytearray)

    @property
    def is_transcribed(self) -> bool:
        """Whether nothing more comes of what was understood."""
        return self.transcript is not None or self.transcription_error is not None

    @property
    def latencies_ms(self) -> dict[str, float | None]:
        """How long after the end of the speech things came; None for what didn't."""
        moments = {
            "transcript": self.transcript_s,
            "first_token": self.first_token_s,
            "first_audio": self.first_audio_s,
            "answered": self.answered_s,
        }
        return {name: self._since_end_ms(at_s) for name, at_s in moments.items()}

    def _since_end_ms(self, at_s: float | None) -> float | None:
        return None if at_s is None or self.speech_end_s is None else round(1000 * (at_s - self.speech_end_s), 1)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the sound, as plain values."""
        return {
            "source": self.source,
            "speech_start_ms": self.speech_start_ms,
            "speech_end_ms": self.speech_end_ms,
            "transcript": self.transcript,
            "not_understood": self.transcription_error,
            "answer": self.answer,
            "status": self.status,
            "reason": self.reason,
            "answer_ms": round(duration_ms(len(self.pcm), RATE_HZ)),
            "after_speech_ms": self.latencies_ms,
        }


class TalkTranscript:
    """
    Takes the server's events, and knows what has become of each turn.

    Args:
        keeps_sound: whether the answers' sound is wanted.

    Attributes:
        source: what is being said, for the turns that begin now.
        is_speaking: whether the server hears someone speak.
    """

    def __init__(self, *, keeps_audio: bool = True) -> None:
        self.source: str | None = None
        self.turns: list[TalkTurn] = []
        self.is_speaking = False
        self._keeps_audio = keeps_audio
        self._turn_by_response_id: dict[str, TalkTurn] = {}

    def apply(self, event: ServerEvent | Unknown, at_s: float) -> tuple[TextChunk, ...]:
        """What there is to show of an event, once it is noted down."""
        note = _ON_REALTIME_EVENT.get(type(event))
        return note(self, event, at_s) if note is not None else ()

    def _find_turn(self, item_id: str) -> TalkTurn | None:
        return next((turn for turn in reversed(self.turns) if turn.item_id == item_id), None)

    # Speech

    def _on_speech_started(self, event: Any, _at_s: float) -> tuple[TextChunk, ...]:
        self.is_speaking = True
        self._ensure_turn(event.item_id).speech_start_ms = event.audio_start_ms
        return ()

    def _on_speech_stopped(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        self.is_speaking = False
        turn = self._ensure_turn(event.item_id)
        turn.speech_end_ms, turn.speech_end_s = event.audio_end_ms, at_s
        return ()

    def _on_committed(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        turn = self._ensure_turn(event.item_id)
        if turn.speech_end_s is None:  # whoever commits by themselves is told of no end of speech
            turn.speech_end_s = at_s
        return ()

    def _ensure_turn(self, item_id: str) -> TalkTurn:
        turn = self._find_turn(item_id)
        if turn is None:
            turn = TalkTurn(item_id=item_id, source=self.source)
            self.turns.append(turn)
        return turn

    def _on_transcript_delta(self, event: Any, _at_s: float) -> tuple[TextChunk, ...]:
        if (turn := self._find_turn(event.item_id)) is None:
            return ()
        turn.partial_transcript += event.delta
        return (TextChunk(USER, event.delta),)

    def _on_transcript(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        if (turn := self._find_turn(event.item_id)) is None:
            return ()
        turn.transcript, turn.transcript_s = event.transcript.strip(), at_s
        rest = "" if turn.partial_transcript.strip() else turn.transcript or "(nothing that could be understood)"
        return (TextChunk(USER, rest, is_last=True),)

    def _on_transcript_failed(self, event: Any, _at_s: float) -> tuple[TextChunk, ...]:
        if (turn := self._find_turn(event.item_id)) is None:
            return ()
        turn.transcription_error = event.error.message or "it was not transcribed"
        return (TextChunk(USER, f"(not understood: {turn.transcription_error})", is_last=True),)

    # The answer

    def _on_response_created(self, event: Any, _at_s: float) -> tuple[TextChunk, ...]:
        asked = next((turn for turn in reversed(self.turns) if turn.speech_end_s is not None), None)
        if asked is not None:
            self._turn_by_response_id[event.response.id] = asked
        return ()

    def _on_text_delta(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        if (turn := self._turn_by_response_id.get(event.response_id)) is None:
            return ()
        turn.first_token_s = turn.first_token_s or at_s
        turn.answer += event.delta
        return (TextChunk(MODEL, event.delta),)

    def _on_audio_delta(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        if (turn := self._turn_by_response_id.get(event.response_id)) is not None:
            turn.first_audio_s = turn.first_audio_s or at_s
            if self._keeps_audio:
                turn.pcm += event.delta
        return ()

    def _on_response_done(self, event: Any, at_s: float) -> tuple[TextChunk, ...]:
        if (turn := self._turn_by_response_id.pop(event.response.id, None)) is None:
            return ()
        response = event.response
        turn.answered_s, turn.status, turn.reason = at_s, response.status, failure_reason(response)
        return (
            TextChunk(
                MODEL, "" if turn.status == "completed" else f" ({_STATUS_LABELS.get(response.status, response.status)})", is_last=True
            ),
        )


_STATUS_LABELS = {"cancelled": "interrupted", "incomplete": "cut off"}


def failure_reason(response: Any) -> str | None:
    """Why a response is not whole, as far as that is known."""
    details = response.status_details
    if not details:
        return None
    return (details.error.message if details.error else None) or details.reason or None


_OnRealtimeEvent = Callable[[TalkTranscript, Any, float], tuple[TextChunk, ...]]
_ON_REALTIME_EVENT: dict[type, _OnRealtimeEvent] = {
    events.InputAudioBufferSpeechStarted: TalkTranscript._on_speech_started,
    events.InputAudioBufferSpeechStopped: TalkTranscript._on_speech_stopped,
    events.InputAudioBufferCommitted: TalkTranscript._on_committed,
    events.InputAudioTranscriptionDelta: TalkTranscript._on_transcript_delta,
    events.InputAudioTranscriptionCompleted: TalkTranscript._on_transcript,
    events.InputAudioTranscriptionFailed: TalkTranscript._on_transcript_failed,
    events.ResponseCreated: TalkTranscript._on_response_created,
    events.ResponseOutputAudioTranscriptDelta: TalkTranscript._on_text_delta,
    events.ResponseOutputTextDelta: TalkTranscript._on_text_delta,
    events.ResponseOutputAudioDelta: TalkTranscript._on_audio_delta,
    events.ResponseDone: TalkTranscript._on_response_done,
}
"""What is noted of each event; the others say nothing that is not said by one of these."""
