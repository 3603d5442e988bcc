"""
An embedded engine in a process of its own: it is started, asked, replaced when it dies, and killed when it hangs.

Native code may crash, and takes the process with it. So it has one: conversations with it break off then, all others go on, and what is
asked while there is none waits a moment for the next.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon import talk
from antiphon.children import PAUSES_S, SOON_S, begun, ended, replacement
from antiphon.engines.base import Conversation, Deliver, Place
from antiphon.engines.worker import RemoteEngine, unavailable
from antiphon.engines.worker_end import StreamPipe
from antiphon.errors import Fault, OurFault
from antiphon.runtime.worker_lasting import LASTING, lasting
from antiphon.wire.worker_link import VERSION, Begin

PROGRAM = ("-m", "antiphon.runtime.worker_child")

BURIAL_S = 0.5
"""How long one may take to end that has closed its link, or been silent."""

LAST_WORDS_S = 2.0
"""How long a process may take to end that was told to, before it is killed."""


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

    def __init__(self, lost: Callable[[], None], notice: Callable[[str], None]) -> None:
        self.gone = asyncio.Event()
        self.engine = RemoteEngine(gone=self._gone, notice=notice)
        self.process: asyncio.subprocess.Process | None = None
        self._lost = lost

    async def begin(self, command: Sequence[str], begin: Begin) -> None:
        """
        Start the process; returns when it can answer.

        Raises:
            Fault: it can't.
        """
        self.process = await begun(command, lambda: StreamPipe(self.engine.end))
        self.engine.end.send(begin)
        hello = await self.engine.greeted()
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
        abilities: talk.Abilities,
        notice: Callable[[str], None] = lambda _line: None,
        patience: Patience | None = None,
    ) -> None:
        self.abilities = abilities
        self._begin = begin
        self._command = (sys.executable, "-P", *PROGRAM)
        self._notice = notice
        self._patience = patience or Patience()
        self._child: _Child | None = None
        self._is_up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._child.process.pid if self._child is not None and self._child.process is not None else None

    async def start(self) -> None:
        """
        Start the process, and see that there is one from here on; returns when it can answer.

        Raises:
            Fault: it can't, with what it needs.
        """
        child = await self._started()
        name = f"keeper of {self._begin.model}"
        self._keeper = asyncio.create_task(self._keep(child), name=name)  # noqa: TID251 - ours, ended by `stop`

    async def stop(self) -> None:
        """End the process; idempotent."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait((keeper,))
        child, self._child = self._child, None
        if child is not None:
            self._is_up.clear()
            await asyncio.shield(child.end(LAST_WORDS_S))

    @contextlib.asynccontextmanager
    async def open(self, settings: talk.Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation with whichever process there is; one that is more than its asks breaks off with it."""
        outlasts = settings.kind in LASTING and not self.abilities.listens
        async with lasting(self._one, settings, deliver) if outlasts else self._one(settings, deliver) as conversation:
            yield conversation

    @contextlib.asynccontextmanager
    async def _one(self, settings: talk.Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
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

    async def count(self, ask: talk.Respond) -> int:
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
        if not self._is_up.is_set() and self._keeper is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.back_s):
                    await self._is_up.wait()
        if self._child is None or not self._is_up.is_set():
            raise unavailable(f"The model '{self._begin.model}' is being loaded again. Please try again soon.", retry_after_s=5)
        return self._child.engine

    # Its life

    async def _keep(self, child: _Child) -> None:
        """One process after the other, until this is cancelled."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            up_at = loop.time()
            await child.gone.wait()
            await asyncio.shield(child.end(BURIAL_S))
            assert child.process is not None
            deaths = deaths + 1 if loop.time() - up_at < SOON_S else 0
            self._notice(f"The process of the model '{self._begin.model}', {child.process.pid}, {_end_of(child.process)} and is replaced.")
            child = await replacement(self._started, deaths, self._failed, self._patience.pauses_s)

    def _failed(self, fault: Fault) -> None:
        self._notice(f"The process of the model '{self._begin.model}' could not be replaced: {fault.message}")

    async def _started(self) -> _Child:
        child = _Child(self._is_up.clear, self._notice)
        try:
            await child.begin(self._command, self._begin)
        except BaseException as error:
            await asyncio.shield(child.end(BURIAL_S))
            if isinstance(error, Fault) and child.process is not None and error.status == 503:
                raise OurFault(f"The process of the model '{self._begin.model}' {_end_of(child.process)} before it could answer.") from None
            raise
        self._child = child
        self.abilities = child.engine.abilities
        if not child.gone.is_set():
            self._is_up.set()
        return child


def embedded(module: str, model: str, options: Mapping[str, Any], place: Place, abilities: talk.Abilities) -> ChildEngine:
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


def _end_of(process: asyncio.subprocess.Process) -> str:
    """How it ended, for people."""
    code = process.returncode or 0
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
