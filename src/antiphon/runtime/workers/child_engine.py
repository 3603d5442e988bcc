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
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.remote.engine import RemoteEngine, unavailable_error
from antiphon.engines.remote.link import StreamLinkTransport
from antiphon.errors import ApiError, ServerError
from antiphon.runtime.workers.reattach import REATTACHABLE_KINDS, reattaching_conversation
from antiphon.subprocesses import EXIT_GRACE_S, RESTART_DELAYS_S, SupervisedProcess, exit_reason, reap, spawn
from antiphon.wire.internal.worker_link import VERSION, BuildEngine

CHILD_MODULE = ("-m", "antiphon.runtime.workers.child_main")


class RestartTimeouts(Struct, frozen=True, kw_only=True):
    """
    How long is waited for what.

    Attributes:
        back_s: for a process that is being replaced, by whoever asks meanwhile; small models are loaded in this time.
        pauses_s: before a process is replaced, after one, two and more that died soon.
    """

    restart_s: float = 5.0
    backoff_s: tuple[float, ...] = RESTART_DELAYS_S


class _EngineProcess:
    """One process, and the engine in it; `gone` is set once there is none."""

    def __init__(self, begin_frame: BuildEngine, on_lost: Callable[[], None], notice: Callable[[str], None]) -> None:
        self.exit_event = asyncio.Event()
        self.engine = RemoteEngine(on_gone=self._on_gone, notice=notice)
        self.process: asyncio.subprocess.Process | None = None
        self._begin_frame = begin_frame
        self._on_lost = on_lost

    async def start(self) -> None:
        """
        Start the process; returns when it can answer.

        Raises:
            ApiError: it can't.
        """
        self.process = await spawn((sys.executable, "-P", *CHILD_MODULE), lambda: StreamLinkTransport(self.engine.endpoint))
        self.engine.endpoint.send(self._begin_frame)
        try:
            hello = await self.engine.wait_for_hello()
        except ApiError as fault:
            if fault.status != 503:
                raise
            await asyncio.shield(self.stop(EXIT_GRACE_S))
            raise ServerError(
                f"The process of the model '{self._begin_frame.model}' {exit_reason(self.process)} before it could answer."
            ) from None
        if hello.version != VERSION:
            raise ServerError(f"The process of the model speaks version {hello.version} of the link, and the server {VERSION}.")

    async def stop(self, grace_s: float) -> None:
        """See the process end: of itself when the link is closed, or by force."""
        await self.engine.stop()
        if self.process is not None:
            await reap(self.process, grace_s)

    def _on_gone(self, _reason: str) -> None:
        self.exit_event.set()
        self._on_lost()


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
        begin_frame: BuildEngine,
        capabilities: Capabilities,
        notice: Callable[[str], None] = lambda _line: None,
        timeouts: RestartTimeouts | None = None,
    ) -> None:
        self._last_capabilities = capabilities
        self._model = begin_frame.model
        self._timeouts = timeouts or RestartTimeouts()
        self._process = SupervisedProcess(
            f"process of the model '{begin_frame.model}'",
            lambda lost: _EngineProcess(begin_frame, lost, notice),
            notice,
            self._timeouts.backoff_s,
        )

    @property
    def capabilities(self) -> Capabilities:
        """As its process tells them, once there has been one."""
        if self._process.child is not None:
            self._last_capabilities = self._process.child.engine.capabilities
        return self._last_capabilities

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._process.pid

    async def start(self) -> None:
        """
        Start the process, and see that there is one from here on; returns when it can answer.

        Raises:
            ApiError: it can't, with what it needs.
        """
        await self._process.start()

    async def stop(self) -> None:
        """End the process; idempotent."""
        await self._process.stop()

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation with whichever process there is; one that is more than its asks breaks off with it."""
        outlasts = settings.kind in REATTACHABLE_KINDS and not self.capabilities.listens
        async with (
            reattaching_conversation(self._open_once, settings, deliver) if outlasts else self._open_once(settings, deliver) as conversation
        ):
            yield conversation

    @contextlib.asynccontextmanager
    async def _open_once(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation with one process; with the next, where that was gone before it could begin."""
        engine = await self._live_engine()
        async with contextlib.AsyncExitStack() as stack:
            try:
                conversation = await stack.enter_async_context(engine.open(settings, deliver))
            except ApiError:
                if not engine.endpoint.is_over:
                    raise
                conversation = await stack.enter_async_context((await self._live_engine()).open(settings, deliver))
            yield conversation

    async def count(self, request: commands.Respond) -> int:
        """The tokens that the engine reads `ask` as."""
        return await (await self._live_engine()).count(request)

    async def probe(self) -> None:
        """See whether the engine is well."""
        await (await self._live_engine()).probe()

    async def _live_engine(self) -> RemoteEngine:
        """
        The engine in the process that there is.

        Raises:
            ServerError: there is none, and there was none soon.
        """
        child = await self._process.wait_ready(self._timeouts.restart_s)
        if child is None:
            raise unavailable_error(f"The model '{self._model}' is being loaded again. Please try again soon.", retry_after_s=5)
        return child.engine


def embedded_engine(module: str, model: str, options: Mapping[str, Any], context: BuildContext, capabilities: Capabilities) -> ChildEngine:
    """
    A model's engine in a process of its own.

    Args:
        module: of the engine.
        place: where it is built; its watcher and its fetch stay here, as embedded engines use neither.
        abilities: of the engine, as it would be built here.
    """
    begin = BuildEngine(
        module=module,
        model=model,
        options=dict(options),
        base=str(context.base_folder),
        weights=str(context.weights_folder),
        secrets={name: context.secrets[name] for key, name in options.items() if key.endswith("_env") and name in context.secrets},
    )
    return ChildEngine(begin, capabilities, context.notice)
