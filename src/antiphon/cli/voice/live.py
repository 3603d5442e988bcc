"""A conversation by microphone and speakers."""

import asyncio
import contextlib

from antiphon.cli.common.client import Client
from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.devices import Devices, Part, Playback
from antiphon.cli.voice.realtime_session import HEARS_NOTHING, Asked, Heard, Line, connected, refusal
from antiphon.cli.voice.render import Stage
from antiphon.cli.voice.transcript import Record
from antiphon.errors import Fault
from antiphon.wire.realtime.client_events import ConversationItemTruncate, InputAudioBufferAppend
from antiphon.wire.realtime.server_events import ErrorEvent, InputAudioBufferSpeechStarted, RealtimeError, ResponseOutputAudioDelta

WAITING_PIECES = 250
"""How much sound may wait to be sent, five seconds of it: what is older is worth nothing in a conversation."""


def converse(client: Client, asked: Asked, devices: Devices, shell: Shell) -> None:
    """
    Talk until Ctrl-C.

    Raises:
        Fault: it can't begin, or the server ends it.
    """
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_converse(client, asked, devices, shell))
    shell.say()


async def _converse(client: Client, asked: Asked, devices: Devices, shell: Shell) -> None:
    loop = asyncio.get_running_loop()
    microphone = Microphone()

    def hear(piece: bytes) -> None:
        loop.call_soon_threadsafe(microphone.put, piece)

    async with connected(client, asked) as line:
        with devices.opened(hear) as playback:
            shell.note(f"{asked.model} listens; headphones keep it from hearing itself. Ctrl-C ends the conversation.")
            await talk(line, microphone, playback, Stage(shell), shell)


class Microphone:
    """What was said and not sent yet; of too much of it the oldest is forgotten."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(WAITING_PIECES)

    def put(self, piece: bytes) -> None:
        """Take a piece of sound."""
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait(piece)

    async def next(self) -> bytes:
        """The oldest piece."""
        return await self._waiting.get()


async def talk(line: Line, microphone: Microphone, playback: Playback, stage: Stage, shell: Shell) -> None:
    """
    Send what is said, and play and show what is answered, until the server ends it.

    Raises:
        UpstreamTrouble: it has.
    """
    listening = _Listening(line, playback, stage, shell)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_send(line, microphone))
            tasks.create_task(listening.listen())
    except* Fault as faults:
        raise faults.exceptions[0] from None
    finally:
        stage.end()


async def _send(line: Line, microphone: Microphone) -> None:
    while True:
        await line.say(InputAudioBufferAppend(audio=await microphone.next()))


class _Listening:
    """What is done about what the server says."""

    def __init__(self, line: Line, playback: Playback, stage: Stage, shell: Shell) -> None:
        self._line = line
        self._playback = playback
        self._stage = stage
        self._shell = shell
        self._record = Record(keeps_sound=False)

    async def listen(self) -> None:
        """Until there is nothing more to hear."""
        while (heard := await self._line.hear()) is not None:
            await self._take(heard)

    async def _take(self, heard: Heard) -> None:
        event = heard.event
        if isinstance(event, ResponseOutputAudioDelta):
            self._playback.put(Part(event.item_id, event.content_index), event.delta)
        elif isinstance(event, InputAudioBufferSpeechStarted):
            await self._fall_silent()
        elif isinstance(event, ErrorEvent):
            self._refused(event.error)
        for words in self._record.take(event, heard.at_s):
            self._stage.show(words)

    async def _fall_silent(self) -> None:
        """Play no more, and tell the server how much was heard, so that it forgets the rest as well."""
        for part, played_ms in self._playback.cut():
            await self._line.say(ConversationItemTruncate(item_id=part.item_id, content_index=part.content_index, audio_end_ms=played_ms))

    def _refused(self, error: RealtimeError) -> None:
        """What is refused ends a conversation only where nothing is heard in it."""
        if error.code == HEARS_NOTHING:
            raise refusal(error)
        self._stage.end()
        self._shell.note(error.message)
