"""Transcribes audio files in requests on the worker: its speech recognition around the engine only hears live input."""

import asyncio
import binascii
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast

from msgspec import structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, EngineOverrun, overrun_event
from antiphon.engine_api.forwarding import ForwardingConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, invalid_base64

TranscribeFile = Callable[[bytes], Awaitable[str]]
"""The text of an audio file; raises `ApiError` if it can't be decoded or transcribed."""


class TranscribingEngine:
    """
    An engine that gets the text of audio files instead of the files.

    Args:
        inner: answers; its maker starts and stops it.
    """

    def __init__(self, inner: Engine, transcribe_file: TranscribeFile) -> None:
        self.capabilities = inner.capabilities
        self._inner = inner
        self._transcribe_file = transcribe_file

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def count(self, request: commands.Respond) -> int:
        return await cast(CountingEngine, self._inner).count(await _transcribe_request(request, self._transcribe_file))

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        async with self._inner.open(settings, deliver) as inner, asyncio.TaskGroup() as tasks:
            conversation = _TranscribingConversation(inner, self._transcribe_file, deliver, tasks)
            try:
                yield conversation
            finally:
                conversation.close()


class _TranscribingConversation(ForwardingConversation):
    """Holds back each request with audio files until they are transcribed."""

    def __init__(self, inner: EngineConversation, transcribe_file: TranscribeFile, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        super().__init__(inner)
        self._transcribe_file = transcribe_file
        self._deliver = deliver
        self._tasks = tasks
        self._pending: dict[str, asyncio.Task[None]] = {}

    def send(self, command: commands.EngineCommand) -> None:
        if isinstance(command, commands.Respond) and any(map(_has_audio, command.history)):
            self._pending[command.id] = self._tasks.create_task(self._send_transcribed(command))
        elif isinstance(command, commands.Cancel) and command.id in self._pending:
            self._pending.pop(command.id).cancel()
            # The engine has not seen this request, so its end is reported here.
            self._deliver((events.ResponseEnded(command.id, "cancelled"),))
        else:
            super().send(command)

    def close(self) -> None:
        """Send and deliver nothing more."""
        self._deliver = lambda _events: None
        for task in self._pending.values():
            task.cancel()

    async def _send_transcribed(self, request: commands.Respond) -> None:
        try:
            text_request = await _transcribe_request(request, self._transcribe_file)
        except ApiError as error:
            del self._pending[request.id]
            self._deliver((events.ResponseFailed.from_error(request.id, error),))
            return
        del self._pending[request.id]
        try:
            super().send(text_request)
        except EngineOverrun as error:
            self._deliver((overrun_event(request, error),))


def _has_audio(item: history.HistoryItem) -> bool:
    return isinstance(item, history.Message) and any(isinstance(part, history.AudioPart) for part in item.parts)


async def _transcribe_request(request: commands.Respond, transcribe_file: TranscribeFile) -> commands.Respond:
    """
    The request with text in place of its audio files.

    Raises:
        ApiError: one can't be decoded or transcribed.
    """
    return structs.replace(
        request, history=tuple([await _transcribe_message(item, transcribe_file) if _has_audio(item) else item for item in request.history])
    )


async def _transcribe_message(item: history.HistoryItem, transcribe_file: TranscribeFile) -> history.HistoryItem:
    assert isinstance(item, history.Message)
    parts: Sequence[history.HistoryPart] = [
        await _transcribe_part(part, transcribe_file) if isinstance(part, history.AudioPart) else part for part in item.parts
    ]
    return structs.replace(item, parts=tuple(parts))


async def _transcribe_part(part: history.AudioPart, transcribe_file: TranscribeFile) -> history.TextPart:
    try:
        file = binascii.a2b_base64(part.inline, strict_mode=True)
    except ValueError:  # also where it is not ASCII
        raise invalid_base64("input") from None
    return history.TextPart(await transcribe_file(file))
