"""A MiniCPM-o session with recordings in place of a person, and pictures in place of a camera."""

import abc
import base64
from collections.abc import Sequence

from msgspec import Struct

from antiphon.audio import duration_ms, peak, size_bytes
from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice.audio import InputRecording
from antiphon.cli.voice.from_files import FAST_SILENCE_MS, MAX_SILENCE_MS, SETTLE_S, PacedConversation
from antiphon.cli.voice.minicpmo_session import MinicpmoClientSession, MinicpmoEvent, MinicpmoSessionOptions, connect_minicpmo
from antiphon.cli.voice.render import Renderer, format_latencies
from antiphon.cli.voice.socket import EventCounts, TimedEvent
from antiphon.cli.voice.transcript import DuplexAnswer, DuplexTranscript
from antiphon.errors import UpstreamError
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.minicpmo.media import RATE_IN_HZ, to_floats
from antiphon.wire.minicpmo.server_events import ServerEvent, SessionClosed, SessionCreated

FAST_BURST_S, FAST_FACTOR = 8.0, 2.0
"""
With `--fast`, how much of a recording is sent at once, and how fast the rest: servers buffer only so much unheard
audio.
"""

_PEAK_TO_SPEECH_RATIO = 20
"""Audio quieter than the loudest by this factor counts as silence."""

_PICTURE_INTERVAL_MS = 1_000
"""One picture a second, as the web pages of MiniCPM-o send them."""


class DuplexSessionInput(Struct, frozen=True, kw_only=True):
    """
    What to send, and how.

    Attributes:
        recordings: s16le at `RATE_IN_HZ`.
        pictures: JPEG files, one for every second.
        chunk_ms: how much audio to send at once.
        is_fast: whether to send audio faster than it plays.
        force_listen: whether the model must be silent until a recording is over.
        wants_audio: whether answers in chat mode should have audio.
        max_silence_ms: how much silence to send while waiting for an answer.
    """

    recordings: Sequence[InputRecording]
    pictures: Sequence[bytes] = ()
    chunk_ms: int = 1_000
    is_fast: bool = False
    force_listen: bool = False
    wants_audio: bool = False
    max_silence_ms: int = MAX_SILENCE_MS


class DuplexOutcome(Struct, frozen=True, kw_only=True):
    """
    A session that is over.

    Attributes:
        session_closed: None where the server sent no such event.
    """

    transcript: DuplexTranscript
    session_created: SessionCreated
    session_closed: SessionClosed | None
    event_counts: EventCounts

    def to_dict(self) -> dict[str, object]:
        """All but the audio, for `--json`."""
        return {
            "session_id": self.session_created.session_id,
            "runtime_mode": self.session_created.mode,
            "queue": [position._asdict() for position in self.transcript.queue_positions],
            "answers": [answer.to_dict() for answer in self.transcript.answers],
            "usage": (self.session_closed.usage or None) if self.session_closed is not None else None,
            "events": self.event_counts._asdict(),
        }


async def run_duplex_session(
    client: ApiClient, options: MinicpmoSessionOptions, inputs: DuplexSessionInput, renderer: Renderer
) -> DuplexOutcome:
    """
    Say recordings to a server, one after another, and wait for each answer.

    Raises:
        UpstreamError: the server can't be reached, refuses, or doesn't answer.
    """
    transcript = DuplexTranscript()
    async with connect_minicpmo(client, options) as session:
        mode = (_ChatMode if options.mode == "chat" else _DuplexMode)(session, transcript, renderer, inputs)
        await session.begin(options, mode.on_event)
        assert session.session_created is not None
        for recording in inputs.recordings:
            first = len(transcript.answers)
            transcript.source = recording.name
            await mode.send_recording(recording)
            if (answer := _first_answer(transcript, first)) is not None:
                renderer.remark(format_latencies(answer.latencies_ms))
        await session.close(mode.on_event)
    return DuplexOutcome(
        transcript=transcript,
        session_created=session.session_created,
        session_closed=session.session_closed,
        event_counts=session.event_counts,
    )


def _first_answer(transcript: DuplexTranscript, first: int) -> DuplexAnswer | None:
    """The first answer after the end of the speech, or else the last one before it."""
    answers = transcript.answers[first:]
    return next((answer for answer in answers if answer.first_output_s >= transcript.speech_end_s), answers[-1] if answers else None)


class _SessionMode(PacedConversation[MinicpmoEvent]):
    def __init__(
        self, session: MinicpmoClientSession, transcript: DuplexTranscript, renderer: Renderer, inputs: DuplexSessionInput
    ) -> None:
        super().__init__(session)
        self._session = session
        self._transcript = transcript
        self._renderer = renderer
        self._inputs = inputs
        self._messages: list[JsonDict] = []

    @abc.abstractmethod
    async def send_recording(self, recording: InputRecording) -> None:
        """
        Send a recording, and wait for the answer.

        Raises:
            UpstreamError: there is none.
        """

    def on_event(self, timed_event: TimedEvent[MinicpmoEvent]) -> None:
        for chunk in self._transcript.apply(timed_event.event, timed_event.at_s):
            self._renderer.show(chunk)
        if isinstance(timed_event.event, ServerEvent):
            self._renderer.show_state(timed_event.event, self._transcript)


class _DuplexMode(_SessionMode):
    """Audio is sent all the time, also while the model speaks."""

    _picture_second = -1

    async def send_recording(self, recording: InputRecording) -> None:
        first, size = len(self._transcript.answers), size_bytes(self._inputs.chunk_ms, RATE_IN_HZ)
        start_s = self._due_s = self._now()
        sent_ms, speech_end_ms = 0.0, find_speech_end_ms(recording.pcm)
        self._transcript.speech_end_s = start_s + duration_ms(len(recording.pcm), RATE_IN_HZ) / 1000  # until it is known
        for offset in range(0, len(recording.pcm), size):
            chunk = recording.pcm[offset : offset + size]
            sent_ms += duration_ms(len(chunk), RATE_IN_HZ)
            self._due_s = start_s + self._send_offset_s(sent_ms)
            await self._send_chunk(chunk, force_listen=self._inputs.force_listen)
            if sent_ms - self._inputs.chunk_ms < speech_end_ms:
                self._transcript.speech_end_s = self._now() if self._inputs.is_fast else start_s + speech_end_ms / 1000
        # Answers that began while the recording was sent were timed from an end that was only estimated.
        for answer in self._transcript.answers[first:]:
            answer.speech_end_s = self._transcript.speech_end_s
        await self._send_silence(first)

    def _send_offset_s(self, ms: float) -> float:
        """When to send a chunk that ends at `ms` of a recording: a microphone delivers a chunk once it is over."""
        return max(0.0, ms / 1000 - FAST_BURST_S) / FAST_FACTOR if self._inputs.is_fast else ms / 1000

    async def _send_silence(self, first: int) -> None:
        silence, silence_ms, transcript = bytes(size_bytes(self._inputs.chunk_ms, RATE_IN_HZ)), 0.0, self._transcript
        while not self._is_answered(first):
            # A model that speaks is heard out, however long it takes.
            if silence_ms >= self._inputs.max_silence_ms and not transcript.is_speaking:
                if len(transcript.answers) > first:
                    return
                raise UpstreamError(f"The model has said nothing to {transcript.source}.")
            at_once = self._inputs.is_fast and silence_ms < FAST_SILENCE_MS
            self._due_s = max(self._due_s, self._now()) + (0 if at_once else self._inputs.chunk_ms / 1000)
            await self._send_chunk(silence)
            silence_ms += self._inputs.chunk_ms

    def _is_answered(self, first: int) -> bool:
        """Whether the model has answered since the end of the speech, and listens again."""
        transcript = self._transcript
        ends_s = [answer.ended_s for answer in transcript.answers[first:] if answer.ended_s is not None and not answer.is_interrupted]
        last_s = max((end_s for end_s in ends_s if end_s >= transcript.speech_end_s), default=None)
        # It may say more after a short pause.
        return not transcript.is_speaking and last_s is not None and self._now() >= last_s + SETTLE_S

    async def _send_chunk(self, chunk: bytes, *, force_listen: bool = False) -> None:
        # Before the chunk, and not after: a microphone has it only once it is over.
        await self._receive_until_due()
        append: JsonDict = {"audio": base64.b64encode(to_floats(chunk)).decode()}
        if force_listen:
            append["force_listen"] = True
        if (picture := self._next_picture()) is not None:
            append["video_frames"] = [base64.b64encode(picture).decode()]
        self._sent_ms += duration_ms(len(chunk), RATE_IN_HZ)
        await self._session.send("input.append", input=append)

    def _next_picture(self) -> bytes | None:
        """The picture that goes with the next chunk, if a new second begins; after the last picture, that one again."""
        second = int(self._sent_ms // _PICTURE_INTERVAL_MS)
        if not self._inputs.pictures or second == self._picture_second:
            return None
        self._picture_second = second
        return self._inputs.pictures[min(second, len(self._inputs.pictures) - 1)]


class _ChatMode(_SessionMode):
    """Each recording is a message, sent with all messages before it: chat mode keeps no history on the server."""

    async def send_recording(self, recording: InputRecording) -> None:
        parts = [{"type": "audio", "data": base64.b64encode(to_floats(recording.pcm)).decode()}]
        if not self._messages:
            parts = [{"type": "image", "data": base64.b64encode(picture).decode()} for picture in self._inputs.pictures] + parts
        self._messages.append({"role": "user", "content": parts})
        await self._session.send("input.append", input={"messages": self._messages, "tts": {"enabled": self._inputs.wants_audio}})
        self._transcript.speech_end_s, first = self._now(), len(self._transcript.answers)
        # Chat mode has no silence to send: the answer comes by itself.
        while not (len(self._transcript.answers) > first and self._transcript.answers[-1].ended_s is not None):
            await self._receive_event()
        self._messages.append({"role": "assistant", "content": self._transcript.answers[-1].text})


def find_speech_end_ms(pcm: bytes) -> float:
    """Where in a recording the speech ends, in milliseconds."""
    step, loudest = size_bytes(20, RATE_IN_HZ), peak(pcm)
    loud = (offset for offset in range(0, len(pcm), step) if peak(pcm[offset : offset + step]) * _PEAK_TO_SPEECH_RATIO >= loudest)
    return duration_ms(max(loud, default=0) + step, RATE_IN_HZ)
