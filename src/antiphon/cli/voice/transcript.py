"""What each side said in a voice session, and when: built from the server's events, in both dialects."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from antiphon.audio import duration_ms
from antiphon.cli.voice.audio import RATE_HZ
from antiphon.wire.codec.types import Unknown
from antiphon.wire.minicpmo import server_events as minicpmo_events
from antiphon.wire.minicpmo.media import RATE_OUT_HZ, from_floats
from antiphon.wire.realtime import server_events as realtime_events
from antiphon.wire.realtime.response import Response

USER, MODEL = "you", "model"

_STATUS_LABELS = {"cancelled": "interrupted", "incomplete": "cut off"}


class TextChunk(NamedTuple):
    """
    Text to show.

    Attributes:
        speaker: `USER` or `MODEL`.
        is_last: whether the speaker is done with it.
    """

    speaker: str
    text: str
    is_last: bool = False


def _latencies_ms(speech_end_s: float | None, times_s: Mapping[str, float | None]) -> dict[str, float | None]:
    """How long after the end of the speech each thing came; None for what didn't."""
    return {
        name: None if at_s is None or speech_end_s is None else round(1000 * (at_s - speech_end_s), 1) for name, at_s in times_s.items()
    }


# Realtime


class TalkTurn(Struct, kw_only=True):
    """
    A turn of the user, and the model's answer.

    Times in seconds are on the event loop's clock, those in milliseconds on the server's, which counts the audio it
    got.

    Attributes:
        source: the recording that was being sent.
        speech_end_s: when the server reported the end of the speech.
        partial_transcript: what the server has transcribed so far.
        transcript: the final one; None until it arrives.
        status: of the answer; None until it is over.
        reason: why the answer is incomplete or failed.
        pcm: the answer's audio, s16le at `RATE_HZ`.
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
        """Whether the transcript is final, or failed."""
        return self.transcript is not None or self.transcription_error is not None

    @property
    def latencies_ms(self) -> dict[str, float | None]:
        """How long after the end of the speech each thing came; None for what didn't."""
        times_s = {
            "transcript": self.transcript_s,
            "first_token": self.first_token_s,
            "first_audio": self.first_audio_s,
            "answered": self.answered_s,
        }
        return _latencies_ms(self.speech_end_s, times_s)

    def to_dict(self) -> dict[str, object]:
        """All but the audio, for `--json`."""
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
    The turns of a Realtime session.

    Args:
        keeps_audio: whether to keep the answers' audio.

    Attributes:
        source: the recording that is being sent, for turns that start now.
        is_speaking: whether the server hears the user speak.
    """

    def __init__(self, *, keeps_audio: bool = True) -> None:
        self.source: str | None = None
        self.turns: list[TalkTurn] = []
        self.is_speaking = False
        self._keeps_audio = keeps_audio
        self._turn_by_response_id: dict[str, TalkTurn] = {}

    def apply(self, event: realtime_events.ServerEvent | Unknown, at_s: float) -> tuple[TextChunk, ...]:
        """Note an event; returns the text to show. Events that change nothing here are ignored."""
        turn: TalkTurn | None
        match event:
            case realtime_events.InputAudioBufferSpeechStarted():
                self.is_speaking = True
                self._ensure_turn(event.item_id).speech_start_ms = event.audio_start_ms
            case realtime_events.InputAudioBufferSpeechStopped():
                self.is_speaking = False
                turn = self._ensure_turn(event.item_id)
                turn.speech_end_ms, turn.speech_end_s = event.audio_end_ms, at_s
            case realtime_events.InputAudioBufferCommitted():
                turn = self._ensure_turn(event.item_id)
                if turn.speech_end_s is None:  # a client that commits itself gets no `speech_stopped`
                    turn.speech_end_s = at_s
            case realtime_events.InputAudioTranscriptionDelta() if turn := self._find_turn(event.item_id):
                turn.partial_transcript += event.delta
                return (TextChunk(USER, event.delta),)
            case realtime_events.InputAudioTranscriptionCompleted() if turn := self._find_turn(event.item_id):
                turn.transcript, turn.transcript_s = event.transcript.strip(), at_s
                rest = "" if turn.partial_transcript.strip() else turn.transcript or "(nothing that could be understood)"
                return (TextChunk(USER, rest, is_last=True),)
            case realtime_events.InputAudioTranscriptionFailed() if turn := self._find_turn(event.item_id):
                turn.transcription_error = event.error.message or "it was not transcribed"
                return (TextChunk(USER, f"(not understood: {turn.transcription_error})", is_last=True),)
            case _:
                return self._apply_to_answer(event, at_s)
        return ()

    def _apply_to_answer(self, event: realtime_events.ServerEvent | Unknown, at_s: float) -> tuple[TextChunk, ...]:
        turns = self._turn_by_response_id
        match event:
            case realtime_events.ResponseCreated():
                # The newest turn whose speech has ended: the person may already be speaking again.
                if (turn := next((turn for turn in reversed(self.turns) if turn.speech_end_s is not None), None)) is not None:
                    turns[event.response.id] = turn
            case realtime_events.ResponseOutputTextDelta() | realtime_events.ResponseOutputAudioTranscriptDelta():
                if (turn := turns.get(event.response_id)) is not None:
                    turn.first_token_s = turn.first_token_s or at_s
                    turn.answer += event.delta
                    return (TextChunk(MODEL, event.delta),)
            case realtime_events.ResponseOutputAudioDelta():
                if (turn := turns.get(event.response_id)) is not None:
                    turn.first_audio_s = turn.first_audio_s or at_s
                    if self._keeps_audio:
                        turn.pcm += event.delta
            case realtime_events.ResponseDone():
                if (turn := turns.pop(event.response.id, None)) is not None:
                    status = event.response.status
                    turn.answered_s, turn.status, turn.reason = at_s, status, failure_reason(event.response)
                    mark = "" if status == "completed" else f" ({_STATUS_LABELS.get(status, status)})"
                    return (TextChunk(MODEL, mark, is_last=True),)
            case _:
                pass
        return ()

    def _find_turn(self, item_id: str) -> TalkTurn | None:
        return next((turn for turn in reversed(self.turns) if turn.item_id == item_id), None)

    def _ensure_turn(self, item_id: str) -> TalkTurn:
        turn = self._find_turn(item_id)
        if turn is None:
            turn = TalkTurn(item_id=item_id, source=self.source)
            self.turns.append(turn)
        return turn


def failure_reason(response: Response) -> str | None:
    """Why a response is incomplete or failed, where the server says so."""
    details = response.status_details
    if not details:
        return None
    return (details.error.message if details.error else None) or details.reason or None


# MiniCPM-o


class DuplexQueuePosition(NamedTuple):
    """
    A position in the server's queue.

    Attributes:
        wait_s: the server's estimate; None where it has none.
    """

    position: int
    queue_length: int
    wait_s: float | None


class DuplexAnswer(Struct, kw_only=True):
    """
    An answer of the model; times are on the event loop's clock.

    Attributes:
        source: the recording that was sent last.
        speech_end_s: when its speech ended.
        reason: why the answer ended, in chat mode.
        pcm: s16le at `RATE_OUT_HZ`.
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
        """When the first text or audio came."""
        return min((at_s for at_s in (self.first_text_s, self.first_audio_s) if at_s is not None), default=self.speech_end_s)

    @property
    def latencies_ms(self) -> dict[str, float | None]:
        """How long after the end of the speech each thing came; None for what didn't."""
        return _latencies_ms(self.speech_end_s, {"first_text": self.first_text_s, "first_audio": self.first_audio_s, "ended": self.ended_s})

    def to_dict(self) -> dict[str, object]:
        """All but the audio, for `--json`."""
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
    The answers of a MiniCPM-o session.

    Attributes:
        source: the recording that is being sent.
        speech_end_s: when its speech ends.
        queue_positions: every one the server reported, in order.
        is_listening: what the model reported last; None before its first report.
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
        """Whether an answer is under way."""
        return self._current_answer is not None

    def apply(self, event: minicpmo_events.ServerEvent | Unknown, at_s: float) -> tuple[TextChunk, ...]:
        """Note an event; returns the text to show. Events that change nothing here are ignored."""
        match event:
            case minicpmo_events.SessionQueued():  # and `SessionQueueUpdate`, its subclass
                wait_s = event.estimated_wait_s
                position = DuplexQueuePosition(event.position, event.queue_length, wait_s if isinstance(wait_s, float) else None)
                self.queue_positions.append(position)
            case minicpmo_events.OutputDelta(kind="listen"):
                return self._end_answer(at_s, is_interrupted=event.interrupted is True)
            case minicpmo_events.OutputDelta(kind="text"):
                return self._append_text(self._ensure_answer(event.response_id), event.text or "", at_s)
            case minicpmo_events.OutputDelta():
                self._append_audio(self._ensure_answer(event.response_id), event.audio or b"", at_s)
            case minicpmo_events.ResponseDone():
                return self._on_response_done(event, at_s)
            case _:
                pass
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

    def _end_answer(self, at_s: float, *, is_interrupted: bool) -> tuple[TextChunk, ...]:
        self.is_listening = True
        answer, self._current_answer = self._current_answer, None
        if answer is None:
            return ()
        answer.ended_s, answer.is_interrupted = at_s, is_interrupted
        return (TextChunk(MODEL, " (interrupted)" if is_interrupted else "", is_last=True),)

    def _on_response_done(self, event: minicpmo_events.ResponseDone, at_s: float) -> tuple[TextChunk, ...]:
        # It ends an answer in chat mode, and carries all of one that was not streamed. Some servers send it in full
        # duplex, too.
        answer = self._ensure_answer(event.response_id)
        # What was streamed comes again here, and is not shown twice.
        chunks = () if answer.text else self._append_text(answer, event.text, at_s)
        if event.audio and not answer.pcm:
            self._append_audio(answer, event.audio, at_s)
        answer.ended_s, answer.reason, self._current_answer = at_s, event.reason, None
        return (*chunks, TextChunk(MODEL, "", is_last=True))
