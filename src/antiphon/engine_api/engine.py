"""The contract of an engine. `tests/contracts/test_engines.py` holds every engine to it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.options import Settings
from antiphon.errors import ClientMistake, Fault, OurFault

Deliver = Callable[[Sequence[talk_events.FromEngine]], None]
"""
Takes the engine's words; synchronous, on the event loop. What arrived together comes together.

Must not be called from within `tell`: the session that is telling has not finished what it is doing.
"""


class EngineOverrun(RuntimeError):
    """The engine was told more than it has room for; the word was not taken."""

    def fault(self) -> Fault:
        """The same, as whoever asked is told it."""
        return OurFault(
            f"The model is overloaded: {self}. Please try again later.",
            status=503,
            type="service_unavailable_error",
            code="server_is_overloaded",
            retry_after_s=1,
        )


class Conversation(Protocol):
    """One client's conversation with an engine. Words of one response carry its id."""

    def tell(self, word: commands.ToEngine) -> None:
        """
        Give the engine a word; never blocks.

        Every `Respond` is answered by words with its id that end in exactly one `Ended` or `Broke`, also after a `Cancel`.

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
    def abilities(self) -> Abilities:
        """What it can do."""

    async def start(self) -> None:
        """
        Load or connect; once, before the first `open`.

        Raises:
            errors.Fault: what it needs is missing, with how to get it.
        """

    async def stop(self) -> None:
        """Let go of everything; idempotent. Conversations still open end with `Broke`."""

    def open(self, settings: Settings, deliver: Deliver) -> AbstractAsyncContextManager[Conversation]:
        """A conversation; leaving it cancels what is still being answered and delivers nothing more."""


class CountingEngine(Engine, Protocol):
    """An engine whose abilities say `counts_tokens`."""

    async def count(self, ask: commands.Respond) -> int:
        """
        The tokens that `ask` would be read as; nothing is answered.

        Raises:
            errors.Fault: they can't be counted.
        """


@runtime_checkable
class ListingEngine(Engine, Protocol):
    """An engine before a server of several models."""

    async def names(self) -> Sequence[str]:
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
class PooledEngine(Engine, Protocol):
    """
    An engine of several workers; it starts and stops them, and whoever wants one of them waits for it.

    Attributes:
        places: the workers by their addresses; each has one conversation at a time unless its abilities say more.
    """

    places: Mapping[str, Engine]


class Watcher(Protocol):
    """Counts what becomes of upstream servers."""

    def upstream_is(self, name: str, state: Literal["closed", "half_open", "open"]) -> None:
        """The circuit breaker of the model's upstream has a new state."""

    def upstream_failed(self, name: str, reason: str) -> None:
        """The model's upstream did not answer as it should; `reason` is one of few words."""


class Unwatched:
    """A watcher that counts nothing."""

    def upstream_is(self, name: str, state: str) -> None:
        """Nobody asks."""

    def upstream_failed(self, name: str, reason: str) -> None:
        """Nobody asks."""


UNWATCHED = Unwatched()

Fetch = Callable[[str, str, tuple[str, ...]], Awaitable[tuple[bytes, str]]]
"""
Fetches what a client's URL names, and no more than the client could have fetched itself.

Takes the URL, the field that it came in, and what the answer's type must begin with; gives the body and its type. Raises
`errors.ClientMistake` where it can't or may not be fetched.
"""


async def fetch_nothing(_url: str, param: str, _content_types: tuple[str, ...]) -> tuple[bytes, str]:
    """A `Fetch` of a place that has none."""
    raise ClientMistake(f"Failed to download '{param}': URLs are not fetched here.", code="invalid_url", param=param)


class Place(Struct, frozen=True, kw_only=True):
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

    weights: Path
    base: Path
    notice: Callable[[str], None] = lambda _line: None
    secrets: Mapping[str, str] = {}
    watcher: Watcher = UNWATCHED
    fetch: Fetch = fetch_nothing


Build = Callable[[str, Mapping[str, Any], Place], Engine]
"""
What each engine's module offers as `build`: the model's name and the rest of its table in the configuration, to an engine not yet
started. Raises `errors.Fault` where an option is unknown, missing or wrong, naming it.
"""
