"""
Warm-ups: `response.create` with `generate: false` makes a response without output, which others continue.

An engine that acts on `Prepare` meanwhile processes the prompt, until the connection's next request begins.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import Deliver, Engine, EngineConversation, EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError
from antiphon.runtime.scheduling.engine import QueuedEngine
from antiphon.server.transport import logs

PREFILL_S = 10.0
"""How long a prompt is processed for a request that does not come; meanwhile other clients have less of the engine."""


class WarmUpEngine:
    """
    Ends every response at once, without output.

    Attributes:
        capabilities: those of the engine that it stands for.
        request: the latest one.
    """

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.request: commands.Respond | None = None

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do."""

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        yield _WarmUpConversation(self, deliver)


class _WarmUpConversation:
    def __init__(self, engine: WarmUpEngine, deliver: Deliver) -> None:
        self._engine = engine
        self._deliver = deliver

    def send(self, command: commands.EngineCommand) -> None:
        if isinstance(command, commands.Respond):
            self._engine.request = command
            usage = events.Usage(id=command.id, input_tokens=0, output_tokens=0)
            self._deliver([usage, events.ResponseEnded(command.id)])

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


def can_prefill(engine: Engine) -> bool:
    """Whether an engine acts on `Prepare`, and has no queue of clients that wait for it."""
    return engine.capabilities.foresees and not isinstance(engine, QueuedEngine)


async def prefill(engine: Engine, settings: ConversationSettings, request: commands.Respond, has_begun: asyncio.Event) -> None:
    """Have an engine process a prompt until the next request of the connection has begun, or for `PREFILL_S`."""
    try:
        async with asyncio.timeout(PREFILL_S), engine.open(settings, lambda _events: None) as conversation:
            conversation.send(commands.Prepare(request))
            await has_begun.wait()
    except (ApiError, TimeoutError, EngineOverrun):
        pass  # the request itself will report what is wrong
    except ExceptionGroup:  # of the engine's tasks
        logs.get().exception("defect")
