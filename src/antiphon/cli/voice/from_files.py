"""A conversation with recordings in place of a person."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from antiphon.audio import duration_ms
from antiphon.cli.common.client import RESPONSE_TIMEOUT_S, ApiClient
from antiphon.cli.voice.audio import CHUNK_MS, RATE_HZ, SILENT_CHUNK, InputRecording, split_chunks
from antiphon.cli.voice.realtime_session import (
    RealtimeClientSession,
    RealtimeSessionOptions,
    TimedRealtimeEvent,
    connect_realtime,
    refusal_error,
)
from antiphon.cli.voice.transcript import TalkTranscript, TalkTurn, TextChunk
from antiphon.errors import UpstreamError
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.server_events import ErrorEvent

MAX_SILENCE_MS = 15_000
"""After so much of it a server that waits for a turn's end is not waiting for silence; the most that any of them waits is 8 s."""

FAST_SILENCE_MS = 1_000
"""Of the silence, what may be sent at once; more would have to be listened to while the answer is made."""

TRANSCRIPT_TIMEOUT_S = 5.0
"""How long an answer may be over before what it answers is known."""

SETTLE_S = 0.5
"""How long after an answer a server may take to tell that someone had gone on speaking."""


class TalkOutcome(NamedTuple):
    """
    What came of a conversation.

    Attributes:
        sent: how many events there were, by type; `received` likewise.
    """

    turns: Sequence[TalkTurn]
    sent_counts: Counter[str]
    received_counts: Counter[str]


class TalkRenderer(Protocol):
    """What shows a conversation."""

    def show(self, chunk: TextChunk) -> None:
        """Show words as they come."""

    def begin_recording(self, recording: InputRecording) -> None:
        """A recording will be said."""

    def show_latencies(self, turn: TalkTurn) -> None:
        """A turn is answered."""


async def run_conversation(
    client: ApiClient,
    options: RealtimeSessionOptions,
    recordings: Sequence[InputRecording],
    renderer: TalkRenderer,
    *,
    is_fast: bool = False,
) -> TalkOutcome:
    """
    Hold a whole conversation.

    Raises:
        UpstreamError: it came to nothing.
    """
    record = TalkTranscript()
    async with connect_realtime(client, options) as line:
        conversation = RecordingsConversation(line, record, renderer.show, is_fast=is_fast)
        for recording in recordings:
            before = len(record.turns)
            renderer.begin_recording(recording)
            await conversation.send_recording(recording)
            for turn in record.turns[before:]:
                renderer.show_latencies(turn)
    return TalkOutcome(record.turns, line.sent_counts, line.received_counts)


class RecordingsConversation:
    """
    Says recordings, one after another, and hears the answers out.

    Args:
        show: takes words as they come.
        is_fast: whether sound is sent as fast as it goes, and not as fast as it sounds.
    """

    def __init__(
        self, session: RealtimeClientSession, transcript: TalkTranscript, show: Callable[[TextChunk], None], *, is_fast: bool = False
    ) -> None:
        self._session = session
        self._transcript = transcript
        self._show = show
        self._is_fast = is_fast
        self._due_s = 0.0
        self._sent_ms = 0.0
        self._first_turn = 0

    async def send_recording(self, recording: InputRecording, *, silence_ms: float = MAX_SILENCE_MS) -> None:
        """
        Say a recording, and wait for what is answered.

        Raises:
            UpstreamError: the server refuses something, hears nobody speak, or doesn't answer.
        """
        self._transcript.source, self._first_turn = recording.name, len(self._transcript.turns)
        self._due_s = self._now()
        for piece in split_chunks(recording.pcm):
            await self._send_chunk(piece, at_once=self._is_fast)
        end_ms = self._sent_ms
        while not await self._is_complete(end_ms):
            if self._has_speech_ended:
                await self._receive_more()
            else:
                await self._send_silence(silence_ms)

    async def _is_complete(self, end_ms: float) -> bool:
        """Whether all is answered that was said in the `end_ms` of sound until the recording's end."""
        if not self._is_answered:
            return False
        heard_ms = self._transcript.turns[-1].speech_end_ms
        if heard_ms is None or heard_ms >= end_ms:
            return True
        heard = await self._session.receive(SETTLE_S)  # what comes after that turn may be silence, or more speech
        if heard is not None:
            self._apply(heard)
        return heard is None

    @property
    def _has_speech_ended(self) -> bool:
        """Whether the server has heard the end of what was said."""
        turns = self._transcript.turns[self._first_turn :]
        return not self._transcript.is_speaking and bool(turns) and turns[-1].speech_end_s is not None

    @property
    def _is_answered(self) -> bool:
        return self._has_speech_ended and self._transcript.turns[-1].status is not None and self._transcript.turns[-1].is_transcribed

    async def _send_silence(self, silence_ms: float) -> None:
        self._due_s = max(self._due_s, self._now())
        sent_ms = 0.0
        while not self._has_speech_ended:
            if sent_ms >= silence_ms:
                raise UpstreamError(self._no_speech_message())
            await self._send_chunk(SILENT_CHUNK, at_once=self._is_fast and sent_ms < FAST_SILENCE_MS)
            sent_ms += CHUNK_MS

    def _no_speech_message(self) -> str:
        if self._transcript.is_speaking:
            return f"The server still hears someone speak after the end of {self._transcript.source}."
        return f"The server heard nobody speak in {self._transcript.source}."

    async def _receive_more(self) -> None:
        turn = self._transcript.turns[-1]
        is_answered = turn.status is not None
        heard = await self._session.receive(TRANSCRIPT_TIMEOUT_S if is_answered else RESPONSE_TIMEOUT_S)
        if heard is not None:
            self._apply(heard)
        elif is_answered:
            turn.transcription_error = "the server doesn't say"
        else:
            raise UpstreamError(f"The server has said nothing for {RESPONSE_TIMEOUT_S} s.")

    # The clock, and what comes meanwhile

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _send_chunk(self, chunk: bytes, *, at_once: bool) -> None:
        """Send a piece, and hear what comes until the next is due."""
        await self._session.send(InputAudioBufferAppend(audio=chunk))
        self._sent_ms += duration_ms(len(chunk), RATE_HZ)
        self._due_s = self._now() if at_once else self._due_s + CHUNK_MS / 1000
        while (heard := await self._session.receive(self._due_s - self._now())) is not None:
            self._apply(heard)

    def _apply(self, timed_event: TimedRealtimeEvent) -> None:
        if isinstance(timed_event.event, ErrorEvent):
            raise refusal_error(timed_event.event.error)
        for words in self._transcript.apply(timed_event.event, timed_event.at_s):
            self._show(words)
