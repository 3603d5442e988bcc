"""A conversation by microphone and speakers."""

import asyncio
import contextlib

from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.devices import AudioDevices, PlaybackPart, SpeakerPlayback
from antiphon.cli.voice.realtime_session import (
    AUDIO_UNSUPPORTED,
    RealtimeClientSession,
    RealtimeSessionOptions,
    TimedRealtimeEvent,
    connect_realtime,
    refusal_error,
)
from antiphon.cli.voice.render import TerminalTalkRenderer
from antiphon.cli.voice.transcript import TalkTranscript
from antiphon.errors import ApiError
from antiphon.wire.realtime.client_events import ConversationItemTruncate, InputAudioBufferAppend
from antiphon.wire.realtime.server_events import ErrorEvent, InputAudioBufferSpeechStarted, RealtimeError, ResponseOutputAudioDelta

MAX_QUEUED_CHUNKS = 250
"""How much sound may wait to be sent, five seconds of it: what is older is worth nothing in a conversation."""


def run_live_conversation(client: ApiClient, options: RealtimeSessionOptions, devices: AudioDevices, shell: Shell) -> None:
    """
    Talk until Ctrl-C.

    Raises:
        ApiError: it can't begin, or the server ends it.
    """
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run_live_conversation(client, options, devices, shell))
    shell.say()


async def _run_live_conversation(client: ApiClient, options: RealtimeSessionOptions, devices: AudioDevices, shell: Shell) -> None:
    loop = asyncio.get_running_loop()
    microphone = MicrophoneQueue()

    def hear(piece: bytes) -> None:
        loop.call_soon_threadsafe(microphone.put, piece)

    async with connect_realtime(client, options) as line:
        with devices.open(hear) as playback:
            shell.note(f"{options.model} listens; headphones keep it from hearing itself. Ctrl-C ends the conversation.")
            await run_session(line, microphone, playback, TerminalTalkRenderer(shell), shell)


class MicrophoneQueue:
    """What was said and not sent yet; of too much of it the oldest is forgotten."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED_CHUNKS)

    def put(self, chunk: bytes) -> None:
        """Take a piece of sound."""
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(chunk)

    async def next(self) -> bytes:
        """The oldest piece."""
        return await self._queue.get()


async def run_session(
    session: RealtimeClientSession, microphone: MicrophoneQueue, playback: SpeakerPlayback, renderer: TerminalTalkRenderer, shell: Shell
) -> None:
    """
    Send what is said, and play and show what is answered, until the server ends it.

    Raises:
        UpstreamError: it has.
    """
    listening = _EventReceiver(session, playback, renderer, shell)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_send_microphone(session, microphone))
            tasks.create_task(listening.run())
    except* ApiError as faults:
        raise faults.exceptions[0] from None
    finally:
        renderer.end()


async def _send_microphone(session: RealtimeClientSession, microphone: MicrophoneQueue) -> None:
    while True:
        await session.send(InputAudioBufferAppend(audio=await microphone.next()))


class _EventReceiver:
    """What is done about what the server says."""

    def __init__(self, session: RealtimeClientSession, playback: SpeakerPlayback, renderer: TerminalTalkRenderer, shell: Shell) -> None:
        self._session = session
        self._playback = playback
        self._renderer = renderer
        self._shell = shell
        self._transcript = TalkTranscript(keeps_audio=False)

    async def run(self) -> None:
        """Until there is nothing more to hear."""
        while (heard := await self._session.receive()) is not None:
            await self._apply(heard)

    async def _apply(self, timed_event: TimedRealtimeEvent) -> None:
        event = timed_event.event
        if isinstance(event, ResponseOutputAudioDelta):
            self._playback.put(PlaybackPart(event.item_id, event.content_index), event.delta)
        elif isinstance(event, InputAudioBufferSpeechStarted):
            await self._interrupt_playback()
        elif isinstance(event, ErrorEvent):
            self._on_error(event.error)
        for words in self._transcript.apply(event, timed_event.at_s):
            self._renderer.show(words)

    async def _interrupt_playback(self) -> None:
        """Play no more, and tell the server how much was heard, so that it forgets the rest as well."""
        for part, played_ms in self._playback.interrupt():
            await self._session.send(
                ConversationItemTruncate(item_id=part.item_id, content_index=part.content_index, audio_end_ms=played_ms)
            )

    def _on_error(self, error: RealtimeError) -> None:
        """What is refused ends a conversation only where nothing is heard in it."""
        if error.code == AUDIO_UNSUPPORTED:
            raise refusal_error(error)
        self._renderer.end()
        self._shell.note(error.message)
