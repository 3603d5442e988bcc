"""The contract of an engine. `tests/contracts/test_engines.py` holds every engine to it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.fast_path import TextRoute
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, ClientError, overloaded_error

Deliver = Callable[[Sequence[events.EngineEvent]], TextRoute | None]
"""
Takes the engine's events, in order, and at least one; synchronous, on the event loop. What arrived together is delivered
together.

An engine may call it at any time, also from within `send`. Returns how text that follows may take the fast path; None
where each event must be delivered.
"""


def deliver_nowhere(_events: object) -> None:
    """For an engine whose conversation is over: a session and a conversation that refer to each other are freed late."""


class EngineOverrun(RuntimeError):
    """The engine has no room for the command, which was not taken."""

    def api_error(self) -> ApiError:
        """The error for the client that caused it."""
        return overloaded_error(f"The model is overloaded: {self}. Please try again later.")


def overrun_event(command: commands.EngineCommand, error: EngineOverrun) -> events.EngineEvent:
    """
    The event that tells a session that the engine had no room for its command: the response's failure, or an error
    beside it.
    """
    api_error = error.api_error()
    if isinstance(command, commands.Respond | commands.Relay | commands.Cancel):
        return events.ResponseFailed.from_error(command.id, api_error)
    return events.EngineError(message=api_error.message, code=api_error.code)


class EngineConversation(Protocol):
    """One client's conversation with an engine. Events of a response carry its id."""

    def send(self, command: commands.EngineCommand) -> None:
        """
        Give the engine a command; never blocks.

        Every `Respond` and `Relay` is answered by events with its id, which end in exactly one `ResponseEnded` or `ResponseFailed`,
        also after a `Cancel`. A response that has ended may go on with another `Respond` of its id, sent at any time from
        its last event on: a turn that follows on the results of tools.

        Raises:
            EngineOverrun: there is no room for it.
        """

    def pause(self) -> None:
        """
        Stop reading upstream until `resume`, as the client is behind; events that are on their way may still come.
        """

    def resume(self) -> None:
        """Go on reading upstream."""


class Engine(Protocol):
    """What produces a model's output."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    async def start(self) -> None:
        """
        Load or connect; once, before the first `open`.

        Raises:
            ApiError: what it needs is missing, with how to get it.
        """

    async def stop(self) -> None:
        """Release everything; idempotent. Responses under way end with `ResponseFailed`."""

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        """A conversation; leaving it cancels the responses under way, and nothing more is delivered."""


class CountingEngine(Engine, Protocol):
    """An engine whose capabilities say `counts_tokens`."""

    async def count(self, request: commands.Respond) -> int:
        """
        The input tokens of `request`; nothing is generated.

        Raises:
            ApiError: they can't be counted.
        """


@runtime_checkable
class ListingEngine(Engine, Protocol):
    """An engine in front of a server with several models."""

    async def list_models(self) -> Sequence[str]:
        """The names of the models that the server has; the last known ones while it does not answer."""


@runtime_checkable
class ProbedEngine(Engine, Protocol):
    """An engine with a health check."""

    async def probe(self) -> None:
        """
        Find out whether it would take a conversation; called while it has none.

        Raises:
            Exception: it would not.
        """


@runtime_checkable
class WorkerPoolEngine(Engine, Protocol):
    """
    An engine of several workers, which it starts and stops; conversations queue for a worker.

    Attributes:
        workers: by address; each has one conversation at a time unless its capabilities say more.
    """

    workers: Mapping[str, Engine]


class UpstreamObserver(Protocol):
    """Hears about the health of upstream servers, for the metrics."""

    def on_upstream_state(self, name: str, state: Literal["closed", "half_open", "open"]) -> None:
        """The circuit breaker of the model's upstream server has a new state."""

    def on_upstream_error(self, name: str, reason: str) -> None:
        """The model's upstream server did not answer as it should; `reason` is one of a few words."""

    def on_upstream_mend(self, name: str, kind: str) -> None:
        """An answer of the model's upstream server lacked something that was added; `kind` is one of a few words."""


class NullObserver:
    """An observer that does nothing."""

    def on_upstream_state(self, name: str, state: str) -> None:
        pass

    def on_upstream_error(self, name: str, reason: str) -> None:
        pass

    def on_upstream_mend(self, name: str, kind: str) -> None:
        pass


NULL_OBSERVER = NullObserver()

Fetch = Callable[[str, str, tuple[str, ...]], Awaitable[tuple[bytes, str]]]
"""
Fetches what a client's URL names, from public addresses only.

Takes the URL, the name of the field that it came in, and the allowed beginnings of the content type; returns the body
and its content type. Raises `errors.ClientError` if the URL can't or must not be fetched.
"""


async def refuse_to_fetch(_url: str, param: str, _content_types: tuple[str, ...]) -> tuple[bytes, str]:
    """A `Fetch` that fetches nothing."""
    raise ClientError(f"Failed to download '{param}': URLs are not fetched here.", code="invalid_url", param=param)


class BuildContext(Struct, frozen=True, kw_only=True):
    """
    What an engine is built with.

    Attributes:
        weights_folder: of verified model files.
        base_folder: that relative paths in the configuration start from.
        notice: takes a line for the operator, such as a fallback that was taken.
        secrets: values of the environment variables that the configuration names, by name.
        observer: hears about the health of upstream servers.
        fetch: fetches URLs in requests.
        has_alternatives: whether other servers can take the place of this one: the engine then neither
            tries again by itself nor refuses requests, as the engine that chooses between the servers does both.
        upstream_name: of this server among those; empty if it is the only one.
    """

    weights_folder: Path
    base_folder: Path
    notice: Callable[[str], None] = lambda _line: None
    secrets: Mapping[str, str] = {}
    observer: UpstreamObserver = NULL_OBSERVER
    fetch: Fetch = refuse_to_fetch
    has_alternatives: bool = False
    upstream_name: str = ""


Build = Callable[[str, Mapping[str, Any], BuildContext], Engine]
"""
Offered by each engine's module as `build`: takes the model's name and the rest of its table in the configuration, and
returns an engine that is not yet started. Raises `errors.ApiError` if an option is unknown, missing or wrong, naming it.
"""
