"""Recordings in what a worker is asked, written down there: for an engine with ears put around it, which only hear what is live."""

import asyncio
import binascii
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast

from msgspec import structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, invalid_base64
from antiphon.runtime.core.driver import overrun_event

TranscribeFile = Callable[[bytes], Awaitable[str]]
"""What is said in a file of sound; raises `ApiError` where it can't be read or written down."""


class TranscribingEngine:
    """
    An engine that is asked in writing what was asked with recordings.

    Args:
        within: answers. Whoever made it starts and stops it.
    """

    def __init__(self, inner: Engine, transcribe_file: TranscribeFile) -> None:
        self.capabilities = inner.capabilities
        self._inner = inner
        self._transcribe_file = transcribe_file

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def stop(self) -> None:
        """Nothing of its own to let go of."""

    async def count(self, request: commands.Respond) -> int:
        """The tokens that the engine within reads."""
        return await cast(CountingEngine, self._inner).count(await _transcribe_request(request, self._transcribe_file))

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation; what is asked with a recording reaches the engine when that is written down."""
        async with self._inner.open(settings, deliver) as within, asyncio.TaskGroup() as tasks:
            conversation = _TranscribingConversation(within, self._transcribe_file, deliver, tasks)
            try:
                yield conversation
            finally:
                conversation.close()


class _TranscribingConversation:
    """One conversation, and the asks in it whose recordings are being written down."""

    def __init__(self, inner: EngineConversation, transcribe_file: TranscribeFile, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._inner = inner
        self._transcribe_file = transcribe_file
        self._deliver = deliver
        self._tasks = tasks
        self._pending: dict[str, asyncio.Task[None]] = {}
        self.pause, self.resume = inner.pause, inner.resume

    def send(self, command: commands.EngineCommand) -> None:
        if isinstance(command, commands.Respond) and any(map(_has_audio, command.history)):
            self._pending[command.id] = self._tasks.create_task(self._send_transcribed(command))
        elif isinstance(command, commands.Cancel) and command.id in self._pending:
            self._pending.pop(command.id).cancel()
            asyncio.get_running_loop().call_soon(self._deliver, (events.ResponseEnded(command.id, "cancelled"),))
        else:
            self._inner.send(command)

    def close(self) -> None:
        """Ask nothing more, and say nothing more."""
        self._deliver = lambda _words: None
        for task in self._pending.values():
            task.cancel()

    async def _send_transcribed(self, request: commands.Respond) -> None:
        try:
            written = await _transcribe_request(request, self._transcribe_file)
        except ApiError as fault:
            del self._pending[request.id]
            self._deliver((events.ResponseFailed.from_error(request.id, fault),))
            return
        del self._pending[request.id]
        try:
            self._inner.send(written)
        except EngineOverrun as full:
            self._deliver((overrun_event(request, full),))


def _has_audio(item: history.HistoryItem) -> bool:
    return isinstance(item, history.Message) and any(isinstance(part, history.AudioPart) for part in item.parts)


async def _transcribe_request(request: commands.Respond, transcribe_file: TranscribeFile) -> commands.Respond:
    """
    The ask, with words for its recordings.

    Raises:
        ApiError: one can't be read, or not be written down.
    """
    return structs.replace(
        request, history=tuple([await _transcribe_message(turn, transcribe_file) if _has_audio(turn) else turn for turn in request.history])
    )


async def _transcribe_message(item: history.HistoryItem, transcribe_file: TranscribeFile) -> history.HistoryItem:
    assert isinstance(item, history.Message)
    parts: Sequence[history.HistoryPart] = [
        await _transcribe_part(part, transcribe_file) if isinstance(part, history.AudioPart) else part for part in item.parts
    ]
    return structs.replace(item, parts=tuple(parts))


async def _transcribe_part(part: history.AudioPart, transcribe_file: TranscribeFile) -> history.TextPart:
    try:
        return history.TextPart(await transcribe_file(binascii.a2b_base64(part.inline, strict_mode=True)))
    except binascii.Error:
        raise invalid_base64("input") from None
