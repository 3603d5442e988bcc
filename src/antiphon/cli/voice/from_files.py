"""A Realtime conversation with recordings in place of a person."""

import abc
import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from antiphon.audio import duration_ms
from antiphon.cli.common.client import RESPONSE_TIMEOUT_S, ApiClient
from antiphon.cli.voice.audio import CHUNK_MS, RATE_HZ, SILENT_CHUNK, InputRecording, split_chunks
from antiphon.cli.voice.realtime_session import (
    RealtimeClientSession,
    RealtimeEvent,
    RealtimeSessionOptions,
    connect_realtime,
    refusal_error,
)
from antiphon.cli.voice.render import Renderer, format_latencies
from antiphon.cli.voice.socket import ClientSession, EventCounts, EventT, TimedEvent
from antiphon.cli.voice.transcript import TalkTranscript, TalkTurn, TextChunk
from antiphon.errors import UpstreamError
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.server_events import ErrorEvent

MAX_SILENCE_MS = 15_000
"""
How much silence to send while waiting for a turn to end, or an answer to begin; no known server needs more than 8 s.
"""

FAST_SILENCE_MS = 1_000
"""How much of that may be sent at once with `--fast`: a server has to listen to it while it makes the answer."""

SETTLE_S = 0.5
"""How long after an answer more may come: an answer to more speech, or a continuation."""

TRANSCRIPT_TIMEOUT_S = 5.0
"""How long after an answer the transcript of its question may come."""


class TalkOutcome(NamedTuple):
    """A conversation that is over."""

    turns: Sequence[TalkTurn]
    event_counts: EventCounts


class PacedConversation(abc.ABC, Generic[EventT]):
    """
    What conversations with recordings share in all dialects: the clock by which audio is sent, and receiving meanwhile.
    """

    def __init__(self, session: ClientSession[EventT]) -> None:
        self._events = session
        self._due_s = 0.0
        self._sent_ms = 0.0

    @abc.abstractmethod
    def on_event(self, timed_event: TimedEvent[EventT]) -> None:
        """Note an event from the server, and show it."""

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _receive_until_due(self) -> None:
        # With no time left it still takes what has arrived.
        while (timed_event := await self._events.receive(max(0.0, self._due_s - self._now()))) is not None:
            self.on_event(timed_event)

    async def _receive_event(self) -> None:
        timed_event = await self._events.receive(RESPONSE_TIMEOUT_S)
        if timed_event is None:
            raise UpstreamError(f"The server has sent nothing for {RESPONSE_TIMEOUT_S} s.")
        self.on_event(timed_event)


async def run_conversation(
    client: ApiClient,
    options: RealtimeSessionOptions,
    recordings: Sequence[InputRecording],
    renderer: Renderer,
    *,
    is_fast: bool = False,
) -> TalkOutcome:
    """
    Say recordings to a server, one after another, and wait for each answer.

    Raises:
        UpstreamError: the server can't be reached, refuses, or doesn't answer.
    """
    transcript = TalkTranscript()
    async with connect_realtime(client, options) as session:
        conversation = RecordingsConversation(session, transcript, renderer.show, is_fast=is_fast)
        for recording in recordings:
            first = len(transcript.turns)
            if len(recordings) > 1:
                renderer.remark(recording.name)
            await conversation.send_recording(recording)
            for turn in transcript.turns[first:]:
                renderer.remark(format_latencies(turn.latencies_ms))
    return TalkOutcome(transcript.turns, session.event_counts)


class RecordingsConversation(PacedConversation[RealtimeEvent]):
    """
    Says recordings, one after another, and waits for each answer.

    Args:
        show: gets text as it arrives.
        is_fast: whether to send audio at once, not at the pace of speech.
    """

    def __init__(
        self, session: RealtimeClientSession, transcript: TalkTranscript, show: Callable[[TextChunk], None], *, is_fast: bool = False
    ) -> None:
        super().__init__(session)
        self._session = session
        self._transcript = transcript
        self._show = show
        self._is_fast = is_fast
        self._first_turn = 0

    async def send_recording(self, recording: InputRecording, *, silence_ms: float = MAX_SILENCE_MS) -> None:
        """
        Send a recording, and wait for the answer.

        Raises:
            UpstreamError: the server refuses something, hears no speech, or doesn't answer.
        """
        self._transcript.source, self._first_turn = recording.name, len(self._transcript.turns)
        # The clock begins anew: the time of the answer before is not made up for.
        self._due_s = self._now()
        for chunk in split_chunks(recording.pcm):
            await self._send_chunk(chunk, at_once=self._is_fast)
        end_ms = self._sent_ms
        while not await self._is_complete(end_ms):
            if self._has_speech_ended:
                await self._receive_more()
            else:
                await self._send_silence(silence_ms)

    async def _is_complete(self, end_ms: float) -> bool:
        """Whether all speech in the audio up to `end_ms` is answered."""
        if not self._is_answered:
            return False
        speech_end_ms = self._transcript.turns[-1].speech_end_ms
        if speech_end_ms is None or speech_end_ms >= end_ms:
            return True
        timed_event = await self._session.receive(SETTLE_S)  # after that turn the recording holds silence, or more speech
        if timed_event is not None:
            self.on_event(timed_event)
        return timed_event is None

    @property
    def _has_speech_ended(self) -> bool:
        turns = self._transcript.turns[self._first_turn :]
        return not self._transcript.is_speaking and bool(turns) and turns[-1].speech_end_s is not None

    @property
    def _is_answered(self) -> bool:
        return self._has_speech_ended and self._transcript.turns[-1].status is not None and self._transcript.turns[-1].is_transcribed

    async def _send_silence(self, silence_ms: float) -> None:
        # Waiting for events may have taken longer than the audio that was sent.
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
        return f"The server detected no speech in {self._transcript.source}."

    async def _receive_more(self) -> None:
        turn = self._transcript.turns[-1]
        if turn.status is None:
            await self._receive_event()
        elif (timed_event := await self._session.receive(TRANSCRIPT_TIMEOUT_S)) is not None:
            self.on_event(timed_event)
        else:
            turn.transcription_error = "the server doesn't say"

    async def _send_chunk(self, chunk: bytes, *, at_once: bool) -> None:
        await self._session.send(InputAudioBufferAppend(audio=chunk))
        self._sent_ms += duration_ms(len(chunk), RATE_HZ)
        self._due_s = self._now() if at_once else self._due_s + CHUNK_MS / 1000
        await self._receive_until_due()

    def on_event(self, timed_event: TimedEvent[RealtimeEvent]) -> None:
        """
        Note an event, and show its text.

        Raises:
            UpstreamError: the event is an error.
        """
        if isinstance(timed_event.event, ErrorEvent):
            raise refusal_error(timed_event.event.error)
        for chunk in self._transcript.apply(timed_event.event, timed_event.at_s):
            self._show(chunk)
