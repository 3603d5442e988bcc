"""
Speech models that are still being loaded: a conversation begins all the same.

What it hears meanwhile waits, and is handed on in order once the models are there. If they can't be loaded, the client
is told, what waited is dropped, and the next audio after `RETRY_S`, or the next response that needs speech, has them
loaded anew.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver, EngineOverrun, deliver_nowhere
from antiphon.engines.cascade.input import MAX_VAD_BACKLOG_MS
from antiphon.errors import ApiError

RETRY_S = 10.0
"""For how long audio is dropped after the models could not be loaded."""

MAX_WAITING_BYTES = size_bytes(MAX_VAD_BACKLOG_MS, 24_000)
"""The most audio that may wait: as much as may wait for voice activity detection."""

MAX_WAITING_COMMANDS = 1 << 16
"""The most commands that may wait: more than that audio has packets of 20 ms."""

_SLICE_MS = 500.0
"""How much audio is handed on before other callbacks of the loop have their turn."""

InputCommand: TypeAlias = commands.AppendAudio | commands.Configure | commands.CommitAudio | commands.ClearAudio


class SpeechLoader(Protocol):
    """Loads the speech models that all conversations share."""

    @property
    def is_loaded(self) -> bool:
        """Whether they are loaded."""

    async def load(self) -> object:
        """
        Return once they are.

        Raises:
            ApiError: they can't be loaded.
        """


class SpeechLoading:
    """
    One conversation's wait for the speech models.

    Args:
        loader: None where they are loaded.
        hear: takes the commands for the input, once they are; None for a conversation without one.
        deliver: takes events.
        tasks: owns the task that waits; it outlives this.
    """

    def __init__(
        self, loader: SpeechLoader | None, hear: Callable[[InputCommand], None] | None, deliver: Deliver, tasks: asyncio.TaskGroup
    ) -> None:
        self._loader = loader
        self._hear = hear
        self._deliver = deliver
        self._tasks = tasks
        self._is_over = loader is None or loader.is_loaded
        self._task: asyncio.Task[ApiError | None] | None = None
        self._error: ApiError | None = None  # of the last try
        self._is_reported = False
        self._retry_at = 0.0
        self._configuration = commands.Configure()
        self._waiting: deque[InputCommand | float] = deque()  # a number is milliseconds of silence
        self._waiting_bytes = 0

    def begin(self) -> None:
        """Have the models loaded, if they aren't."""
        if not self._is_over and self._task is None:
            self._task = self._tasks.create_task(self._load())

    def close(self) -> None:
        """Wait no longer, and forget all that waited."""
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()
        self._hear, self._deliver = None, deliver_nowhere

    def send(self, command: InputCommand) -> None:
        """
        Hand a command on, at once or later.

        Raises:
            EngineOverrun: too many wait.
        """
        if self._hear is None:
            return
        if self._is_over:
            self._hear(command)
            return
        self._add(command)
        if self._task is None and self._error is not None and asyncio.get_running_loop().time() < self._retry_at:
            self._drop_waiting(self._error)
        else:
            self.begin()

    async def wait(self) -> None:
        """
        Return once the models are loaded, and have been given all that waited for them.

        Raises:
            ApiError: they can't be loaded.
        """
        if self._is_over:
            return
        self.begin()
        assert self._task is not None
        if (error := await asyncio.shield(self._task)) is not None:
            raise error

    def _add(self, command: InputCommand) -> None:
        pcm_bytes = len(command.pcm) if isinstance(command, commands.AppendAudio) else 0
        if self._waiting_bytes + pcm_bytes > MAX_WAITING_BYTES or len(self._waiting) >= MAX_WAITING_COMMANDS:
            raise EngineOverrun("the speech models are being loaded, and too much waits for them")
        if isinstance(command, commands.Configure):
            self._configuration = command
        self._waiting_bytes += pcm_bytes
        self._waiting.append(command)

    async def _load(self) -> ApiError | None:
        assert self._loader is not None
        try:
            await self._loader.load()
        except ApiError as error:
            self._task, self._retry_at = None, asyncio.get_running_loop().time() + RETRY_S
            self._error, self._is_reported = error, False
            self._drop_waiting(error)
            return error
        while self._hear is not None and self._waiting:
            self._hand_on(self._hear)
            await asyncio.sleep(0)
        self._is_over = True
        self._task = None
        return None

    def _hand_on(self, hear: Callable[[InputCommand], None]) -> None:
        """Give the input about as much of what waited as takes `_SLICE_MS` to say."""
        handed_bytes, slice_bytes = 0, size_bytes(_SLICE_MS, self._configuration.rate_hz)
        while self._waiting and handed_bytes < slice_bytes:
            item = self._waiting.popleft()
            if isinstance(item, float):  # in slices, too
                rest_ms = item - _SLICE_MS
                if rest_ms > 0:
                    self._waiting.appendleft(rest_ms)
                item = commands.AppendAudio(bytes(size_bytes(min(item, _SLICE_MS), self._configuration.rate_hz)))
                handed_bytes += slice_bytes
            elif isinstance(item, commands.AppendAudio):
                self._waiting_bytes -= len(item.pcm)
                handed_bytes += len(item.pcm)
            hear(item)

    def _drop_waiting(self, error: ApiError) -> None:
        """
        Drop what waited, and tell the client why it isn't heard.

        Silence takes the place of the audio: the input's clock counts all of the session's.
        """
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque([self._configuration]), 0
        audio = [item.pcm for item in waiting if isinstance(item, commands.AppendAudio)]
        silence_ms = sum(item for item in waiting if isinstance(item, float))
        silence_ms += duration_ms(sum(map(len, audio)), self._configuration.rate_hz)
        turn_ids = [item.id for item in waiting if isinstance(item, commands.CommitAudio)]
        if silence_ms:
            self._waiting.append(silence_ms)
        batch: list[events.EngineEvent] = []
        if (audio or turn_ids) and not self._is_reported:
            self._is_reported = True
            batch.append(events.EngineError(message=error.message, code=error.code, type=error.type))
        if self._configuration.transcription is not None:
            batch += [events.InputTranscriptFailed(id=id, message=error.message, code=error.code, type=error.type) for id in turn_ids]
        if batch:
            self._deliver(batch)
