"""
An embedded engine in a process of its own: it is started, asked, replaced when it dies, and killed when it hangs.

Native code may crash, and takes the process with it. So it has one: conversations with it break off then, all others go on, and what is
asked while there is none waits a moment for the next.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, Deliver, Place
from antiphon.engine_api.options import Settings
from antiphon.engines.remote.engine import RemoteEngine, unavailable
from antiphon.engines.remote.link import StreamPipe
from antiphon.errors import Fault, OurFault
from antiphon.runtime.workers.reattach import LASTING, lasting
from antiphon.subprocesses import BURIAL_S, PAUSES_S, Kept, begun, ended, how_it_ended
from antiphon.wire.internal.worker_link import VERSION, Begin

PROGRAM = ("-m", "antiphon.runtime.workers.child_main")


class Patience(Struct, frozen=True, kw_only=True):
    """
    How long is waited for what.

    Attributes:
        back_s: for a process that is being replaced, by whoever asks meanwhile; small models are loaded in this time.
        pauses_s: before a process is replaced, after one, two and more that died soon.
    """

    back_s: float = 5.0
    pauses_s: tuple[float, ...] = PAUSES_S


class _Child:
    """One process, and the engine in it; `gone` is set once there is none."""

    def __init__(self, begin: Begin, lost: Callable[[], None], notice: Callable[[str], None]) -> None:
        self.gone = asyncio.Event()
        self.engine = RemoteEngine(gone=self._gone, notice=notice)
        self.process: asyncio.subprocess.Process | None = None
        self._begin = begin
        self._lost = lost

    async def begin(self) -> None:
        """
        Start the process; returns when it can answer.

        Raises:
            Fault: it can't.
        """
        self.process = await begun((sys.executable, "-P", *PROGRAM), lambda: StreamPipe(self.engine.end))
        self.engine.end.send(self._begin)
        try:
            hello = await self.engine.greeted()
        except Fault as fault:
            if fault.status != 503:
                raise
            await asyncio.shield(self.end(BURIAL_S))
            raise OurFault(f"The process of the model '{self._begin.model}' {how_it_ended(self.process)} before it could answer.") from None
        if hello.version != VERSION:
            raise OurFault(f"The process of the model speaks version {hello.version} of the link, and the server {VERSION}.")

    async def end(self, grace_s: float) -> None:
        """See the process end: of itself when the link is closed, or by force."""
        await self.engine.stop()
        if self.process is not None:
            await ended(self.process, grace_s)

    def _gone(self, _reason: str) -> None:
        self.gone.set()
        self._lost()


class ChildEngine:
    """
    An engine that is always there, whatever becomes of its process.

    Args:
        begin: what the process is told to be.
        abilities: of the engine, as far as they are known before it is loaded.
        notice: takes lines for the operator.
    """

    def __init__(
        self,
        begin: Begin,
        abilities: Abilities,
        notice: Callable[[str], None] = lambda _line: None,
        patience: Patience | None = None,
    ) -> None:
        self._known = abilities
        self._model = begin.model
        self._patience = patience or Patience()
        self._kept = Kept(
            f"process of the model '{begin.model}'", lambda lost: _Child(begin, lost, notice), notice, self._patience.pauses_s
        )

    @property
    def abilities(self) -> Abilities:
        """As its process tells them, once there has been one."""
        if self._kept.child is not None:
            self._known = self._kept.child.engine.abilities
        return self._known

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._kept.pid

    async def start(self) -> None:
        """
        Start the process, and see that there is one from here on; returns when it can answer.

        Raises:
            Fault: it can't, with what it needs.
        """
        await self._kept.start()

    async def stop(self) -> None:
        """End the process; idempotent."""
        await self._kept.stop()

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation with whichever process there is; one that is more than its asks breaks off with it."""
        outlasts = settings.kind in LASTING and not self.abilities.listens
        async with lasting(self._one, settings, deliver) if outlasts else self._one(settings, deliver) as conversation:
            yield conversation

    @contextlib.asynccontextmanager
    async def _one(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation with one process; with the next, where that was gone before it could begin."""
        engine = await self._living()
        async with contextlib.AsyncExitStack() as stack:
            try:
                conversation = await stack.enter_async_context(engine.open(settings, deliver))
            except Fault:
                if not engine.end.is_over:
                    raise
                conversation = await stack.enter_async_context((await self._living()).open(settings, deliver))
            yield conversation

    async def count(self, ask: commands.Respond) -> int:
        """The tokens that the engine reads `ask` as."""
        return await (await self._living()).count(ask)

    async def probe(self) -> None:
        """See whether the engine is well."""
        await (await self._living()).probe()

    async def _living(self) -> RemoteEngine:
        """
        The engine in the process that there is.

        Raises:
            OurFault: there is none, and there was none soon.
        """
        child = await self._kept.living(self._patience.back_s)
        if child is None:
            raise unavailable(f"The model '{self._model}' is being loaded again. Please try again soon.", retry_after_s=5)
        return child.engine


def embedded(module: str, model: str, options: Mapping[str, Any], place: Place, abilities: Abilities) -> ChildEngine:
    """
    A model's engine in a process of its own.

    Args:
        module: of the engine.
        place: where it is built; its watcher and its fetch stay here, as embedded engines use neither.
        abilities: of the engine, as it would be built here.
    """
    begin = Begin(
        module=module,
        model=model,
        options=dict(options),
        base=str(place.base),
        weights=str(place.weights),
        secrets={name: place.secrets[name] for key, name in options.items() if key.endswith("_env") and name in place.secrets},
    )
    return ChildEngine(begin, abilities, place.notice)
