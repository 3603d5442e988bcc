"""
The engine that says what it is told, at the pace it is told: for tests, benchmarks and machines without a model.

A script is a list of answers; the first whose `when` is found in the last turn is given. With no script it repeats what it was told.
`docs/reference/engine-scripted.md` describes every key.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, Deliver, EngineOverrun, Place
from antiphon.engine_api.options import Settings
from antiphon.engines.scripted.answers import performance, tokens_in
from antiphon.engines.scripted.duplex import Performer
from antiphon.engines.scripted.listening import Ears
from antiphon.engines.scripted.script import ALL_ABILITIES, Script as Script, load
from antiphon.engines.scripted.voice import Recordings


def build(model: str, options: Mapping[str, Any], place: Place) -> "Scripted":
    """
    A scripted engine from the model's table in the configuration.

    Raises:
        OurFault: the script or a recording can't be read, or it has a key that is no part of a script.
    """
    return Scripted(*load(model, options, place))


class Scripted:
    """An engine that says what its script says."""

    def __init__(self, script: Script, abilities: Abilities = ALL_ABILITIES, recordings: Recordings | None = None) -> None:
        self.abilities = abilities
        self._script = script
        self._recordings = recordings or Recordings(Path())

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to let go of."""

    async def count(self, ask: commands.Respond) -> int:
        """One token a word, as in every answer that claims nothing else."""
        return tokens_in(ask)[0]

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation in which every `Respond` is answered from the script."""
        async with asyncio.TaskGroup() as tasks:
            conversation = _Conversation(self._script, self._recordings, deliver, tasks)
            try:
                yield conversation
            finally:
                conversation.hush()


class _Conversation:
    """Says answers and transcripts, each in a task of its own, until it is hushed."""

    LIMIT = 64
    BREATH = 1000

    def __init__(self, script: Script, recordings: Recordings, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._script = script
        self._recordings = recordings
        self._deliver = deliver
        self._tasks = tasks
        self._ears = Ears(script, self._say, self._transcribe)
        self._performer: Performer | None = None
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._transcribing: set[asyncio.Task[None]] = set()
        self._may_speak = asyncio.Event()
        self._may_speak.set()
        self._hushed = False

    def tell(self, word: commands.ToEngine) -> None:
        match word:
            case commands.Converse() | commands.See() | commands.Listen():
                self._converse(word)
            case commands.Hear() if self._performer is not None:
                self._performer.tell(word)
            case commands.Hear() | commands.Configure():
                self._ears.take(word)
            case commands.Commit(id):
                self._ears.commit(id)
            case commands.Forget():
                self._ears.forget()
            case commands.Respond():
                self._answer(word)
            case commands.Cancel(id):
                if id in self._answering:
                    self._answering[id].cancel()
            case commands.Foresee():
                pass  # it takes no time to know what a script says

    def _converse(self, word: commands.Converse | commands.See | commands.Listen) -> None:
        if not isinstance(word, commands.Converse):
            if self._performer is not None:
                self._performer.tell(word)
        elif self._performer is None:
            self._performer = Performer(self._script, self._recordings, word, self._say, self._transcribe)

    def pause(self) -> None:
        self._may_speak.clear()
        if self._performer is not None:
            self._performer.pause()

    def resume(self) -> None:
        self._may_speak.set()
        if self._performer is not None:
            self._performer.resume()

    def hush(self) -> None:
        """Say nothing more."""
        self._hushed = True
        self._ears.shut()
        if self._performer is not None:
            self._performer.hush()
        for task in (*self._answering.values(), *self._transcribing):
            task.cancel()

    def _answer(self, ask: commands.Respond) -> None:
        if len(self._answering) >= self.LIMIT:
            raise EngineOverrun(f"{self.LIMIT} answers are under way already")
        steps = performance(self._script, self._recordings, ask, self._ears.heard)
        task = self._answering[ask.id] = self._tasks.create_task(self._recite(steps))
        task.add_done_callback(partial(self._over, ask.id))

    def _over(self, id: str, task: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step runs none of its own code.
        del self._answering[id]
        if task.cancelled():
            self._say((talk_events.Ended(id, "cancelled"),))

    def _transcribe(self, steps: Iterable[talk_events.FromEngine | float]) -> None:
        task = self._tasks.create_task(self._recite(steps))
        self._transcribing.add(task)
        task.add_done_callback(self._transcribing.discard)

    async def _recite(self, steps: Iterable[talk_events.FromEngine | float]) -> None:
        # Never delivered from within `tell`: the task's first step already runs after it.
        pace_s = self._script.pace_ms / 1000
        together: list[talk_events.FromEngine] = []
        for step in steps:
            if isinstance(step, float):
                self._say(together)
                together = []
                await asyncio.sleep(step)
                continue
            together.append(step)
            if pace_s or len(together) == self.BREATH:
                await self._may_speak.wait()
                self._say(together)
                together = []
                await asyncio.sleep(pace_s)
        await self._may_speak.wait()
        self._say(together)

    def _say(self, words: Sequence[talk_events.FromEngine]) -> None:
        if words and not self._hushed:
            self._deliver(words)
