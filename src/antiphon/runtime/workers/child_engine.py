"""
An embedded engine in a process of its own, which is replaced when it dies and killed when it hangs.

Native code may crash and take its process down. In a process of its own it only breaks its own conversations; requests
that arrive before the next process is ready wait a moment for it.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation
from antiphon.engine_api.forwarding import REATTACHABLE_KINDS
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.remote.engine import RemoteEngine, unavailable_error
from antiphon.errors import ApiError, ServerError
from antiphon.link import FIRST_MESSAGE_S, LOAD_SILENCE_S, StreamLinkTransport
from antiphon.runtime.workers.reattach import reattaching_conversation
from antiphon.subprocesses import EXIT_GRACE_S, SupervisedProcess, exit_reason, reap, spawn
from antiphon.wire.internal.worker_link import VERSION, BuildEngine

CHILD_MODULE = ("-m", "antiphon.runtime.workers.child_main")


RESTART_TIMEOUT_S = 5.0
"""How long requests wait for a process that is being replaced; enough to load a small model."""


class _EngineProcess:
    """One process and the engine in it; `exit_event` is set once it is lost."""

    def __init__(
        self,
        begin_frame: BuildEngine,
        on_lost: Callable[[], None],
        notice: Callable[[str], None],
        load_silence_s: float = LOAD_SILENCE_S,
    ) -> None:
        self.exit_event = asyncio.Event()
        self.engine = RemoteEngine(on_gone=self._on_gone, notice=notice, load_silence_s=load_silence_s)
        self.process: asyncio.subprocess.Process | None = None
        self._begin_frame = begin_frame
        self._on_lost = on_lost

    async def start(self) -> None:
        self.process = await spawn((sys.executable, "-P", *CHILD_MODULE), lambda: StreamLinkTransport(self.engine.endpoint))
        self.engine.endpoint.send(self._begin_frame)
        # Its first heartbeat comes when it begins to load the model. One that never comes so far is silent from here on.
        asyncio.get_running_loop().call_later(FIRST_MESSAGE_S, self.engine.endpoint.start_heartbeat)
        try:
            hello = await self.engine.wait_for_hello()
        except ApiError as error:
            if error.status != 503:
                raise
            if self.engine.endpoint.is_silent:
                raise ServerError(
                    f"The process of the model '{self._begin_frame.model}' stopped answering while it loaded the model, and was killed."
                ) from None
            await asyncio.shield(self.stop(EXIT_GRACE_S))
            raise ServerError(
                f"The process of the model '{self._begin_frame.model}' {exit_reason(self.process)} before it could answer."
            ) from None
        # The program's files may have been replaced by an update while the server ran.
        if hello.version != VERSION:
            raise ServerError(f"The process of the model speaks version {hello.version} of the link, but the server speaks {VERSION}.")

    async def stop(self, grace_s: float) -> None:
        # The process ends by itself when its link is closed.
        await self.engine.stop()
        if self.process is not None:
            await reap(self.process, grace_s)

    def _on_gone(self, _reason: str) -> None:
        self.exit_event.set()
        self._on_lost()


class ChildEngine:
    """
    An engine that survives its process.

    Args:
        begin_frame: tells each process which engine to build.
        capabilities: of the engine, as far as they are known before it is loaded.
        notice: takes lines for the operator.
        restart_timeout_s: how long requests wait for a process that is being replaced.
        load_silence_s: how long a process may be silent while it loads its model.
    """

    def __init__(
        self,
        begin_frame: BuildEngine,
        capabilities: Capabilities,
        notice: Callable[[str], None] = lambda _line: None,
        restart_timeout_s: float = RESTART_TIMEOUT_S,
        load_silence_s: float = LOAD_SILENCE_S,
    ) -> None:
        self._last_capabilities = capabilities
        self._model = begin_frame.model
        self._restart_timeout_s = restart_timeout_s
        self._process = SupervisedProcess(
            f"process of the model '{begin_frame.model}'",
            lambda on_lost: _EngineProcess(begin_frame, on_lost, notice, load_silence_s),
            notice,
        )

    @property
    def capabilities(self) -> Capabilities:
        """Those of the latest process, once there was one."""
        if self._process.child is not None:
            self._last_capabilities = self._process.child.engine.capabilities
        return self._last_capabilities

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return self._process.pid

    async def start(self) -> None:
        await self._process.start()

    async def stop(self) -> None:
        await self._process.stop()

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """
        A conversation; one whose requests carry their whole history goes on with the next process if this one dies.
        """
        # An engine that listens holds audio that the next process has never heard.
        outlasts = settings.kind in REATTACHABLE_KINDS and not self.capabilities.listens
        async with (
            reattaching_conversation(self._open_once, settings, deliver) if outlasts else self._open_once(settings, deliver) as conversation
        ):
            yield conversation

    @contextlib.asynccontextmanager
    async def _open_once(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation with one process, or with the next if that died before it could begin."""
        engine = await self._live_engine()
        async with contextlib.AsyncExitStack() as stack:
            try:
                conversation = await stack.enter_async_context(engine.open(settings, deliver))
            # Nothing was asked of it yet, so it can begin again at the next process.
            except ApiError:
                if not engine.endpoint.is_over:
                    raise
                conversation = await stack.enter_async_context((await self._live_engine()).open(settings, deliver))
            yield conversation

    async def count(self, request: commands.Respond) -> int:
        return await (await self._live_engine()).count(request)

    async def probe(self) -> None:
        await (await self._live_engine()).probe()

    async def _live_engine(self) -> RemoteEngine:
        """
        The engine in the present process, or in the next one.

        Raises:
            ServerError: there was none in time.
        """
        child = await self._process.wait_ready(self._restart_timeout_s)
        if child is None:
            raise unavailable_error(f"The model '{self._model}' is being loaded again. Please try again soon.", retry_after_s=5)
        return child.engine


def embedded_engine(module: str, model: str, options: Mapping[str, Any], context: BuildContext, capabilities: Capabilities) -> ChildEngine:
    """
    A model's engine in a process of its own.

    Args:
        module: of the engine.
        context: its observer and fetch stay here, as embedded engines use neither.
        capabilities: of the engine, as it would be built here.
    """
    begin_frame = BuildEngine(
        module=module,
        model=model,
        options=dict(options),
        base=str(context.base_folder),
        weights=str(context.weights_folder),
        # Only the secrets that its options name; it needs no others.
        secrets={name: context.secrets[name] for key, name in options.items() if key.endswith("_env") and name in context.secrets},
    )
    return ChildEngine(begin_frame, capabilities, context.notice)
