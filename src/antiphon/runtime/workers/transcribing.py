"""Recordings in what a worker is asked, written down there: for an engine with ears put around it, which only hear what is live."""

import asyncio
import binascii
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast

from msgspec import structs

from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engine_api.engine import Conversation, CountingEngine, Deliver, Engine, EngineOverrun
from antiphon.engine_api.options import Settings
from antiphon.errors import Fault, invalid_base64
from antiphon.runtime.core.driver import overrun

SaidIn = Callable[[bytes], Awaitable[str]]
"""What is said in a file of sound; raises `Fault` where it can't be read or written down."""


class Dictated:
    """
    An engine that is asked in writing what was asked with recordings.

    Args:
        within: answers. Whoever made it starts and stops it.
    """

    def __init__(self, within: Engine, said_in: SaidIn) -> None:
        self.abilities = within.abilities
        self._within = within
        self._said_in = said_in

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def stop(self) -> None:
        """Nothing of its own to let go of."""

    async def count(self, ask: commands.Respond) -> int:
        """The tokens that the engine within reads."""
        return await cast(CountingEngine, self._within).count(await _written(ask, self._said_in))

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation; what is asked with a recording reaches the engine when that is written down."""
        async with self._within.open(settings, deliver) as within, asyncio.TaskGroup() as tasks:
            conversation = _Conversation(within, self._said_in, deliver, tasks)
            try:
                yield conversation
            finally:
                conversation.close()


class _Conversation:
    """One conversation, and the asks in it whose recordings are being written down."""

    def __init__(self, within: Conversation, said_in: SaidIn, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._within = within
        self._said_in = said_in
        self._deliver = deliver
        self._tasks = tasks
        self._pending: dict[str, asyncio.Task[None]] = {}
        self.pause, self.resume = within.pause, within.resume

    def tell(self, word: commands.ToEngine) -> None:
        if isinstance(word, commands.Respond) and any(map(_recordings, word.history)):
            self._pending[word.id] = self._tasks.create_task(self._ask(word))
        elif isinstance(word, commands.Cancel) and word.id in self._pending:
            self._pending.pop(word.id).cancel()
            asyncio.get_running_loop().call_soon(self._deliver, (talk_events.Ended(word.id, "cancelled"),))
        else:
            self._within.tell(word)

    def close(self) -> None:
        """Ask nothing more, and say nothing more."""
        self._deliver = lambda _words: None
        for task in self._pending.values():
            task.cancel()

    async def _ask(self, ask: commands.Respond) -> None:
        try:
            written = await _written(ask, self._said_in)
        except Fault as fault:
            del self._pending[ask.id]
            self._deliver((talk_events.Broke.by(ask.id, fault),))
            return
        del self._pending[ask.id]
        try:
            self._within.tell(written)
        except EngineOverrun as full:
            self._deliver((overrun(ask, full),))


def _recordings(turn: turns.Turn) -> bool:
    return isinstance(turn, turns.Message) and any(isinstance(part, turns.AudioPart) for part in turn.parts)


async def _written(ask: commands.Respond, said_in: SaidIn) -> commands.Respond:
    """
    The ask, with words for its recordings.

    Raises:
        Fault: one can't be read, or not be written down.
    """
    return structs.replace(ask, history=tuple([await _turn(turn, said_in) if _recordings(turn) else turn for turn in ask.history]))


async def _turn(turn: turns.Turn, said_in: SaidIn) -> turns.Turn:
    assert isinstance(turn, turns.Message)
    parts: Sequence[turns.Part] = [await _part(part, said_in) if isinstance(part, turns.AudioPart) else part for part in turn.parts]
    return structs.replace(turn, parts=tuple(parts))


async def _part(part: turns.AudioPart, said_in: SaidIn) -> turns.TextPart:
    try:
        return turns.TextPart(await said_in(binascii.a2b_base64(part.inline, strict_mode=True)))
    except binascii.Error:
        raise invalid_base64("input") from None
