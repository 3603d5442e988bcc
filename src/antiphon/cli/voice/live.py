"""A conversation by microphone and speakers."""

import asyncio
import contextlib

from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.devices import AudioDevices, PlaybackPart, SpeakerPlayback
from antiphon.cli.voice.realtime_session import (
    AUDIO_UNSUPPORTED,
    RealtimeClientSession,
    RealtimeEvent,
    RealtimeSessionOptions,
    connect_realtime,
    refusal_error,
)
from antiphon.cli.voice.render import TerminalRenderer
from antiphon.cli.voice.socket import TimedEvent
from antiphon.cli.voice.transcript import TalkTranscript
from antiphon.errors import ApiError
from antiphon.wire.realtime.client_events import ConversationItemTruncate, InputAudioBufferAppend
from antiphon.wire.realtime.server_events import ErrorEvent, InputAudioBufferSpeechStarted, RealtimeError, ResponseOutputAudioDelta

MAX_QUEUED_CHUNKS = 250
"""Five seconds of audio that wait to be sent; older audio is worth nothing in a conversation."""


def run_live_conversation(client: ApiClient, options: RealtimeSessionOptions, devices: AudioDevices, shell: Shell) -> None:
    """
    Talk until Ctrl-C.

    Raises:
        ApiError: the conversation can't start, or the server ends it.
    """
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run_live_conversation(client, options, devices, shell))
    shell.say()


async def _run_live_conversation(client: ApiClient, options: RealtimeSessionOptions, devices: AudioDevices, shell: Shell) -> None:
    loop = asyncio.get_running_loop()
    microphone = MicrophoneQueue()

    def on_audio(chunk: bytes) -> None:  # in the device's thread
        loop.call_soon_threadsafe(microphone.put, chunk)

    async with connect_realtime(client, options) as session:
        with devices.open(on_audio) as playback:
            shell.note(f"{options.model} listens; headphones keep it from hearing itself. Ctrl-C ends the conversation.")
            await run_session(session, microphone, playback, TerminalRenderer(shell), shell)


class MicrophoneQueue:
    """Audio from the microphone that is still to be sent; when the queue is full, the oldest is dropped."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED_CHUNKS)

    def put(self, chunk: bytes) -> None:
        """Add a chunk."""
        # A connection that stalls must not make the model hear the person late for the rest of the conversation.
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(chunk)

    async def next(self) -> bytes:
        """Wait for the oldest chunk, and take it out."""
        return await self._queue.get()


async def run_session(
    session: RealtimeClientSession, microphone: MicrophoneQueue, playback: SpeakerPlayback, renderer: TerminalRenderer, shell: Shell
) -> None:
    """
    Send the microphone's audio, and play and show the answers, until the server ends the session.

    Raises:
        UpstreamError: the session has ended.
    """
    receiver = _EventReceiver(session, playback, renderer, shell)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_send_microphone(session, microphone))
            tasks.create_task(receiver.run())
    except* ApiError as errors:
        raise errors.exceptions[0] from None
    finally:
        renderer.end()


async def _send_microphone(session: RealtimeClientSession, microphone: MicrophoneQueue) -> None:
    while True:
        await session.send(InputAudioBufferAppend(audio=await microphone.next()))


class _EventReceiver:
    def __init__(self, session: RealtimeClientSession, playback: SpeakerPlayback, renderer: TerminalRenderer, shell: Shell) -> None:
        self._session = session
        self._playback = playback
        self._renderer = renderer
        self._shell = shell
        self._transcript = TalkTranscript(keeps_audio=False)

    async def run(self) -> None:
        while (timed_event := await self._session.receive()) is not None:
            await self._apply(timed_event)

    async def _apply(self, timed_event: TimedEvent[RealtimeEvent]) -> None:
        event = timed_event.event
        if isinstance(event, ResponseOutputAudioDelta):
            self._playback.put(PlaybackPart(event.item_id, event.content_index), event.delta)
        elif isinstance(event, InputAudioBufferSpeechStarted):
            await self._interrupt_playback()
        elif isinstance(event, ErrorEvent):
            self._on_error(event.error)
        for chunk in self._transcript.apply(event, timed_event.at_s):
            self._renderer.show(chunk)

    async def _interrupt_playback(self) -> None:
        # Realtime reference, `conversation.item.truncate`: the server then drops from the history what the user did not
        # hear.
        for part, played_ms in self._playback.interrupt():
            await self._session.send(
                ConversationItemTruncate(item_id=part.item_id, content_index=part.content_index, audio_end_ms=played_ms)
            )

    def _on_error(self, error: RealtimeError) -> None:
        # Any other refusal leaves a conversation that still works.
        if error.code == AUDIO_UNSUPPORTED:
            raise refusal_error(error)
        self._renderer.end()
        self._shell.note(error.message)
