"""The contract of an engine. `tests/contracts/test_engines.py` holds every engine to it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, ClientError, overloaded_error

Deliver = Callable[[Sequence[events.EngineEvent]], None]
"""
Takes the engine's events, in order; synchronous, on the event loop. What arrived together is delivered together.

An engine may call it at any time, also from within `send`.
"""


class EngineOverrun(RuntimeError):
    """The engine was told more than it has room for; the word was not taken."""

    def api_error(self) -> ApiError:
        """The same, as whoever asked is told it."""
        return overloaded_error(f"The model is overloaded: {self}. Please try again later.")


def overrun_event(command: commands.EngineCommand, error: EngineOverrun) -> events.EngineEvent:
    """The event that tells a session that the engine had no room for its command: the response's failure, or an error beside it."""
    api_error = error.api_error()
    if isinstance(command, commands.Respond | commands.Cancel):
        return events.ResponseFailed.from_error(command.id, api_error)
    return events.EngineError(message=api_error.message, code=api_error.code)


class EngineConversation(Protocol):
    """One client's conversation with an engine. Words of one response carry its id."""

    def send(self, command: commands.EngineCommand) -> None:
        """
        Give the engine a word; never blocks.

        Every `Respond` is answered by words with its id that end in exactly one `Ended` or `ResponseFailed`, also after a `Cancel`.

        Raises:
            EngineOverrun: there is no room for it.
        """

    def pause(self) -> None:
        """The client is behind: stop reading upstream until `resume`; words already on their way may still come."""

    def resume(self) -> None:
        """The client has caught up."""


class Engine(Protocol):
    """What answers."""

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
        """Let go of everything; idempotent. Conversations still open end with `ResponseFailed`."""

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        """A conversation; leaving it cancels what is still being answered and delivers nothing more."""


class CountingEngine(Engine, Protocol):
    """An engine whose abilities say `counts_tokens`."""

    async def count(self, request: commands.Respond) -> int:
        """
        The tokens that `ask` would be read as; nothing is answered.

        Raises:
            ApiError: they can't be counted.
        """


@runtime_checkable
class ListingEngine(Engine, Protocol):
    """An engine before a server of several models."""

    async def list_models(self) -> Sequence[str]:
        """The models that the server has, by the names it gives them; those last known where it can't be asked."""


@runtime_checkable
class ProbedEngine(Engine, Protocol):
    """An engine that can be asked whether it is well."""

    async def probe(self) -> None:
        """
        Find out whether it would take a conversation; asked while it has none.

        Raises:
            Exception: it would not.
        """


@runtime_checkable
class WorkerPoolEngine(Engine, Protocol):
    """
    An engine of several workers; it starts and stops them, and whoever wants one of them waits for it.

    Attributes:
        places: the workers by their addresses; each has one conversation at a time unless its abilities say more.
    """

    workers: Mapping[str, Engine]


class UpstreamObserver(Protocol):
    """Counts what becomes of upstream servers."""

    def on_upstream_state(self, name: str, state: Literal["closed", "half_open", "open"]) -> None:
        """The circuit breaker of the model's upstream has a new state."""

    def on_upstream_error(self, name: str, reason: str) -> None:
        """The model's upstream did not answer as it should; `reason` is one of few words."""


class NullObserver:
    """A watcher that counts nothing."""

    def on_upstream_state(self, name: str, state: str) -> None:
        """Nobody asks."""

    def on_upstream_error(self, name: str, reason: str) -> None:
        """Nobody asks."""


NULL_OBSERVER = NullObserver()

Fetch = Callable[[str, str, tuple[str, ...]], Awaitable[tuple[bytes, str]]]
"""
Fetches what a client's URL names, and no more than the client could have fetched itself.

Takes the URL, the field that it came in, and what the answer's type must begin with; gives the body and its type. Raises
`errors.ClientError` where it can't or may not be fetched.
"""


async def refuse_to_fetch(_url: str, param: str, _content_types: tuple[str, ...]) -> tuple[bytes, str]:
    """A `Fetch` of a place that has none."""
    raise ClientError(f"Failed to download '{param}': URLs are not fetched here.", code="invalid_url", param=param)


class BuildContext(Struct, frozen=True, kw_only=True):
    """
    Where an engine is built.

    Attributes:
        weights: the folder of verified model files.
        base: the folder that relative paths in the configuration start from.
        notice: takes a line for the operator, such as a fallback that was taken.
        secrets: values of the environment variables that the configuration names, by their names.
        watcher: is told how upstream servers fare.
        fetch: what URLs in requests are fetched by.
    """

    weights_folder: Path
    base_folder: Path
    notice: Callable[[str], None] = lambda _line: None
    secrets: Mapping[str, str] = {}
    observer: UpstreamObserver = NULL_OBSERVER
    fetch: Fetch = refuse_to_fetch


Build = Callable[[str, Mapping[str, Any], BuildContext], Engine]
"""
What each engine's module offers as `build`: the model's name and the rest of its table in the configuration, to an engine not yet
started. Raises `errors.ApiError` where an option is unknown, missing or wrong, naming it.
"""
