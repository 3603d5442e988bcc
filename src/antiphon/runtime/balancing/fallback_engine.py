"""An engine that has other models answer where its own can't: for overload, too long an input, or a feature that it lacks."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, cast

from msgspec import structs

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, ListingEngine
from antiphon.engine_api.options import ConversationSettings
from antiphon.engine_api.token_estimate import estimate_input_tokens
from antiphon.errors import ClientError
from antiphon.offload import offload
from antiphon.open_conversations import OpenConversations
from antiphon.runtime.balancing.conversation import BalancedRequest, Request, RoutedConversation
from antiphon.runtime.balancing.failures import CONSEQUENCES, FallbackReason, classify
from antiphon.runtime.balancing.options import BalanceOptions
from antiphon.runtime.balancing.suitability import adapt, fits, missing_ability, missing_relay_ability
from antiphon.runtime.balancing.upstreams import RoutingObserver

CHAT_PATH = "chat/completions"
"""Requests for it can be translated for an engine that can't take them as they are."""


class FallbackModel(Protocol):
    """A model that answers in the place of another one."""

    @property
    def engine(self) -> Engine:
        """The engine that answers its requests."""


FindModel = Callable[[str], FallbackModel]
"""The model of that name; raises `ClientError` if there is none, as it may have been removed since it was configured."""


class FallbackEngine:
    """
    An engine whose requests other models answer where it fails before its first output.

    Args:
        model: the configured name of its own model.
        engine: of its own model; it is stopped with this one.
        find: finds the others.
    """

    def __init__(self, model: str, engine: Engine, options: BalanceOptions, find: FindModel, observer: RoutingObserver) -> None:
        self.engine = engine
        self._model = model
        self._options = options
        self._find = find
        self._observer = observer
        self._conversations = OpenConversations[RoutedConversation]()

    @property
    def capabilities(self) -> Capabilities:
        """
        Those of its own model; but chats are only relayed if every fallback relays them, too: translated, each of them
        can answer.
        """
        own = self.engine.capabilities
        if CHAT_PATH not in own.relays or all(CHAT_PATH in each.relays for each in self._fallback_capabilities()):
            return own
        return structs.replace(own, relays=tuple(path for path in own.relays if path != CHAT_PATH))

    def _fallback_capabilities(self) -> Iterator[Capabilities]:
        for name in self._options.fallback:
            # A fallback may have been removed since it was configured.
            with contextlib.suppress(ClientError):
                yield self._find(name).engine.capabilities

    async def start(self) -> None:
        await self.engine.start()

    async def stop(self) -> None:
        self._conversations.abort()
        await self.engine.stop()

    async def list_models(self) -> Sequence[str]:
        return await self.engine.list_models() if isinstance(self.engine, ListingEngine) else ()

    async def count(self, request: commands.Respond) -> int:
        return await cast(CountingEngine, self.engine).count(request)

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        return self._conversations.open(lambda tasks: RoutedConversation(settings, deliver, tasks, self._answer))

    async def _answer(self, request: BalancedRequest) -> None:
        one = await request.attempt(self.engine, request.settings, request.command, (request.settings.model, ""))
        first_failure = one.end if isinstance(one.end, events.ResponseFailed) and not one.is_delivered else None
        failure = first_failure
        # Looked up by each request: a fallback that was changed needs no new engine here (docs/decisions/0041).
        for name in self._options.fallback if first_failure is not None else ():
            assert failure is not None
            reason = CONSEQUENCES[classify(failure)].fallback
            if reason is None or reason not in self._options.fallback_on:
                break
            try:
                model = self._find(name)  # held for the whole attempt, as its engine stops once nobody holds it
            except ClientError:
                continue
            command = await self._suitable_command(request.command, model.engine.capabilities, reason)
            if command is None:
                continue
            request.fallback_reason = reason
            request.report_retry()
            settings = structs.replace(request.settings, model=name)
            one = await request.attempt(model.engine, settings, command, (name, ""), functools.partial(self._report, name, reason))
            failure = one.end if isinstance(one.end, events.ResponseFailed) and not one.is_delivered else None
            if failure is None:
                break
        if failure is not None:
            # What the model that was asked for said is what its client understands.
            assert first_failure is not None
            request.fallback_reason = ""
            request.fail(first_failure)

    def _report(self, name: str, reason: FallbackReason, _duration_s: float) -> None:
        self._observer.on_fallback(self._model, name, reason)

    async def _suitable_command(self, command: Request, capabilities: Capabilities, reason: FallbackReason) -> Request | None:
        """The request as the other model can take it; None if it can't."""
        if isinstance(command, commands.Relay):
            if command.path not in capabilities.relays:
                return None
            is_able = await offload(len(command.body), missing_relay_ability, command.body, capabilities) is None
            return command if is_able else None
        if missing_ability(command, capabilities) is not None:
            return None
        own_window, window = self.capabilities.context_window, capabilities.context_window
        # The input was too long for a window of that size.
        if reason == "context" and own_window is not None and window is not None and window <= own_window:
            return None
        if window is not None:
            input_tokens = await offload(command.size_bytes, estimate_input_tokens, command)
            if not fits(input_tokens, command, capabilities):
                return None
        return adapt(command, capabilities)
