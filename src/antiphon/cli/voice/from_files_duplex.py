"""A MiniCPM-o session with recordings in place of a person, and pictures in place of a camera."""

import asyncio
import base64
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from antiphon.audio import duration_ms, peak, size_bytes
from antiphon.cli.common.client import RESPONSE_TIMEOUT_S, ApiClient
from antiphon.cli.voice.audio import InputRecording
from antiphon.cli.voice.duplex_record import DuplexTranscript
from antiphon.cli.voice.minicpmo_session import MinicpmoClientSession, MinicpmoSessionOptions, TimedMinicpmoEvent, connect_minicpmo
from antiphon.cli.voice.transcript import TextChunk
from antiphon.errors import UpstreamError
from antiphon.wire.minicpmo.media import RATE_IN_HZ, to_floats
from antiphon.wire.minicpmo.server_events import ServerEvent, SessionClosed, SessionCreated

MAX_SILENCE_MS = 15_000
"""After so much of it a model that has said nothing won't."""

SETTLE_S = 0.5
"""How long after an answer a model may take to go on."""

FAST_BURST_S, FAST_FACTOR = 8.0, 2.0
"""How much of a recording may be sent at once, and how fast the rest: what a server has to listen to waits somewhere, so few take more."""

FAST_SILENCE_MS = 1_000
"""Of the silence, what may be sent at once; more would have to be listened to while the answer is made."""

_PEAK_TO_SPEECH_RATIO = 20
"""Sound below this part of the loudest is no speech."""

_PICTURE_INTERVAL_MS = 1_000
"""One picture for so much sound, as the pages of MiniCPM-o send them."""


class DuplexSessionInput(Struct, frozen=True, kw_only=True):
    """
    What is said, and how.

    Attributes:
        recordings: s16le at `RATE_IN_HZ`.
        pictures: JPEG files, one for every second.
        piece_ms: how much sound is sent at once.
        is_fast: whether it is sent faster than it sounds.
        must_listen: whether the model may say nothing until a recording is over.
        is_aloud: whether an answer in chat is wanted aloud.
        silence_ms: how much of it the model may take to say something.
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
    What came of a session.

    Attributes:
        sent: how many events there were, by type; `received` likewise.
        closed: the server's last word.
    """

    transcript: DuplexTranscript
    session_created: SessionCreated
    session_closed: SessionClosed | None
    sent_counts: Counter[str]
    received_counts: Counter[str]


class DuplexRenderer(Protocol):
    """What shows a session."""

    def show(self, chunk: TextChunk) -> None:
        """Show words as they come."""

    def show_state(self, event: Any, transcript: DuplexTranscript) -> None:
        """Something else has happened."""

    def show_latencies(self, transcript: DuplexTranscript, first: int) -> None:
        """A recording is answered, with the answers from `first` on."""


async def run_duplex_session(
    client: ApiClient, options: MinicpmoSessionOptions, inputs: DuplexSessionInput, renderer: DuplexRenderer
) -> DuplexOutcome:
    """
    Hold a whole session.

    Raises:
        UpstreamError: it came to nothing.
    """
    record = DuplexTranscript()
    async with connect_minicpmo(client, options) as line:
        conversation = (_ChatMode if options.mode == "chat" else _DuplexMode)(line, record, renderer, inputs)
        await line.begin(options, conversation.on_event)
        assert line.session_created is not None
        for recording in inputs.recordings:
            first = len(record.answers)
            record.source = recording.name
            await conversation.send_recording(recording)
            renderer.show_latencies(record, first)
        await line.close(conversation.on_event)
    return DuplexOutcome(
        transcript=record,
        session_created=line.session_created,
        session_closed=line.session_closed,
        sent_counts=line.sent_counts,
        received_counts=line.received_counts,
    )


class _SessionMode:
    """What the modes have in common."""

    def __init__(
        self, session: MinicpmoClientSession, transcript: DuplexTranscript, renderer: DuplexRenderer, inputs: DuplexSessionInput
    ) -> None:
        self._session = session
        self._transcript = transcript
        self._renderer = renderer
        self._inputs = inputs

    def on_event(self, timed_event: TimedMinicpmoEvent) -> None:
        """Note down what was heard, and show it."""
        for words in self._transcript.apply(timed_event.event, timed_event.at_s):
            self._renderer.show(words)
        if isinstance(timed_event.event, ServerEvent):
            self._renderer.show_state(timed_event.event, self._transcript)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class _DuplexMode(_SessionMode):
    """Sound goes on, whoever speaks."""

    def __init__(
        self, session: MinicpmoClientSession, transcript: DuplexTranscript, renderer: DuplexRenderer, inputs: DuplexSessionInput
    ) -> None:
        super().__init__(session, transcript, renderer, inputs)
        self._silence = bytes(size_bytes(inputs.chunk_ms, RATE_IN_HZ))
        self._sent_ms = 0.0
        self._picture_second = -1
        self._due_s = 0.0

    async def send_recording(self, recording: InputRecording) -> None:
        """
        Say a recording, and wait for what is answered.

        Raises:
            UpstreamError: nothing is.
        """
        first, size = len(self._transcript.answers), len(self._silence)
        begun_s = self._due_s = self._now()
        said_ms, speech_end_ms = 0.0, find_speech_end_ms(recording.pcm)
        self._transcript.speech_end_s = begun_s + duration_ms(len(recording.pcm), RATE_IN_HZ) / 1000  # until it is known
        for at in range(0, len(recording.pcm), size):
            piece = recording.pcm[at : at + size]
            said_ms += duration_ms(len(piece), RATE_IN_HZ)
            self._due_s = begun_s + self._send_offset_s(said_ms)
            await self._send_chunk(piece, force_listen=self._inputs.force_listen)
            if said_ms - self._inputs.chunk_ms < speech_end_ms:
                self._transcript.speech_end_s = self._now() if self._inputs.is_fast else begun_s + speech_end_ms / 1000
        for answer in self._transcript.answers[first:]:
            answer.speech_end_s = self._transcript.speech_end_s
        await self._send_silence(first)

    def _send_offset_s(self, ms: float) -> float:
        """When sound of that length has been said: a microphone has a piece of sound once it is over."""
        return max(0.0, ms / 1000 - FAST_BURST_S) / FAST_FACTOR if self._inputs.is_fast else ms / 1000

    async def _send_silence(self, first: int) -> None:
        silent_ms, record = 0.0, self._transcript
        while not self._is_answered(first):
            if silent_ms >= self._inputs.max_silence_ms and not record.is_speaking:
                if len(record.answers) > first:
                    return
                raise UpstreamError(f"The model has said nothing to {record.source}.")
            hurries = self._inputs.is_fast and silent_ms < FAST_SILENCE_MS
            self._due_s = max(self._due_s, self._now()) + (0 if hurries else self._inputs.chunk_ms / 1000)
            await self._send_chunk(self._silence)
            silent_ms += self._inputs.chunk_ms

    def _is_answered(self, first: int) -> bool:
        """Whether the model has said something since the speech was over, and now listens again."""
        record = self._transcript
        answers = [answer for answer in record.answers[first:] if answer.ended_s is not None and answer.ended_s >= record.speech_end_s]
        ended_s = max((answer.ended_s or 0.0 for answer in answers if not answer.is_interrupted), default=None)
        return not record.is_speaking and ended_s is not None and self._now() >= ended_s + SETTLE_S

    async def _send_chunk(self, chunk: bytes, *, force_listen: bool = False) -> None:
        """Send a piece once it is due, and hear what comes meanwhile."""
        while (heard := await self._session.receive(max(0.0, self._due_s - self._now()))) is not None:
            self.on_event(heard)
        append: dict[str, Any] = {"audio": base64.b64encode(to_floats(chunk)).decode()}
        if force_listen:
            append["force_listen"] = True
        if (picture := self._next_picture()) is not None:
            append["video_frames"] = [base64.b64encode(picture).decode()]
        self._sent_ms += duration_ms(len(chunk), RATE_IN_HZ)
        await self._session.send("input.append", input=append)

    def _next_picture(self) -> bytes | None:
        """What is seen with the piece that is sent next; the last picture stays."""
        second = int(self._sent_ms // _PICTURE_INTERVAL_MS)
        if not self._inputs.pictures or second == self._picture_second:
            return None
        self._picture_second = second
        return self._inputs.pictures[min(second, len(self._inputs.pictures) - 1)]


class _ChatMode(_SessionMode):
    """Each recording is a message, and the conversation goes with it."""

    def __init__(
        self, session: MinicpmoClientSession, transcript: DuplexTranscript, renderer: DuplexRenderer, inputs: DuplexSessionInput
    ) -> None:
        super().__init__(session, transcript, renderer, inputs)
        self._messages: list[dict[str, Any]] = []

    async def send_recording(self, recording: InputRecording) -> None:
        """
        Say a recording, and wait for the answer.

        Raises:
            UpstreamError: there is none.
        """
        parts = [{"type": "audio", "data": base64.b64encode(to_floats(recording.pcm)).decode()}]
        if not self._messages:
            parts = [{"type": "image", "data": base64.b64encode(picture).decode()} for picture in self._inputs.pictures] + parts
        self._messages.append({"role": "user", "content": parts})
        await self._session.send("input.append", input={"messages": self._messages, "tts": {"enabled": self._inputs.wants_audio}})
        self._transcript.speech_end_s, before = self._now(), len(self._transcript.answers)
        while not (len(self._transcript.answers) > before and self._transcript.answers[-1].ended_s is not None):
            heard = await self._session.receive(RESPONSE_TIMEOUT_S)
            if heard is None:
                raise UpstreamError(f"The server has said nothing for {RESPONSE_TIMEOUT_S} s.")
            self.on_event(heard)
        self._messages.append({"role": "assistant", "content": self._transcript.answers[-1].text})


def find_speech_end_ms(pcm: bytes) -> float:
    """Where in a recording the speech ends, in milliseconds."""
    step, loudest = size_bytes(20, RATE_IN_HZ), peak(pcm)
    loud = (at for at in range(0, len(pcm), step) if peak(pcm[at : at + step]) * _PEAK_TO_SPEECH_RATIO >= loudest)
    return duration_ms(max(loud, default=0) + step, RATE_IN_HZ)
