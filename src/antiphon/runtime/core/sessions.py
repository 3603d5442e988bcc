"""The sessions under way, which end in order when the server stops or when their key is revoked."""

import contextlib
from collections.abc import Callable, Collection, Iterator, MutableMapping
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from antiphon.errors import SESSION_CLOSED_CODE, ApiError, ClientError, shutting_down
from antiphon.records import KeyRecord

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Stoppable(Protocol):
    """A session that can be ended; a `Driver` is one."""

    def shut_down(self, error: ApiError) -> None:
        """End the session and tell the client why."""


class LiveSession(Struct, kw_only=True, eq=False):
    """
    A live conversation as operators see it: a Realtime or a MiniCPM-o session.

    Attributes:
        session_id: as its client has it; None before that.
        started_at: Unix seconds.
        ends_at: when its time is over, in Unix seconds; None before it has begun, or for no limit.
        stop: ends it; None before it begins.
    """

    protocol: Literal["realtime", "minicpmo"]
    mode: str
    model: str
    tenant: str
    key_id: str | None
    is_recorded: bool
    started_at: float
    limit_s: float
    session_id: str | None = None
    ends_at: float | None = None
    stop: Callable[[ApiError], None] | None = None


class LiveSessions:
    """
    The sessions under way in this process.

    Attributes:
        is_draining: whether no new ones are admitted.
        details: of those that operators see.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self.details: dict[int, LiveSession] = {}
        self._drivers: dict[Stoppable, str | None] = {}
        self._drain_listeners: set[Callable[[], None]] = set()

    def __len__(self) -> int:
        return len(self._drivers)

    def check_admission(self) -> None:
        """
        Check whether a new session may begin.

        Raises:
            ServerError: the server is about to stop.
        """
        if self.is_draining:
            raise shutting_down()

    def track(self, driver: Stoppable, key: KeyRecord | None = None) -> "TableEntry[Stoppable, str | None]":
        """
        Count a session while this is entered.

        Args:
            key: ends the session when it is revoked; None for sessions without a key, and for short ones.
        """
        return TableEntry(self._drivers, driver, None if key is None else key.id)

    def show(self, session: "LiveSession") -> "TableEntry[int, LiveSession]":
        """Let operators see a session while this is entered."""
        return TableEntry(self.details, id(session), session)

    def close(self, session_id: str) -> bool:
        """End a session for an operator; returns whether there was one."""
        for session in self.details.values():
            if session.session_id == session_id and session.stop is not None:
                session.stop(_closed_error())
                return True
        return False

    @contextlib.contextmanager
    def on_drain(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` when the server begins to drain, while this is entered; at once where it has begun already."""
        # What was admitted may get here only later, and nobody would tell it any more.
        if self.is_draining:
            listener()
        self._drain_listeners.add(listener)
        try:
            yield
        finally:
            self._drain_listeners.discard(listener)

    def begin_drain(self) -> None:
        """Admit no new sessions, and let those end that have nothing under way."""
        self.is_draining = True
        for listener in tuple(self._drain_listeners):
            listener()

    @property
    def key_ids(self) -> frozenset[str]:
        """The keys of the tracked sessions."""
        return frozenset(key_id for key_id in self._drivers.values() if key_id is not None)

    def revoke(self, key_ids: Collection[str]) -> None:
        """End the sessions of these keys."""
        for driver in [driver for driver, key_id in self._drivers.items() if key_id in key_ids]:
            self._drivers[driver] = None  # so that it is ended only once
            driver.shut_down(_key_revoked_error())

    def shut_down(self) -> None:
        """End all sessions."""
        for driver in tuple(self._drivers):
            driver.shut_down(shutting_down())


class TableEntry(Generic[KeyT, ValueT]):
    """What is in a table while this is entered. A class, as a generator would cost three times as much."""

    __slots__ = ("_key", "_table", "_value")

    def __init__(self, table: MutableMapping[KeyT, ValueT], key: KeyT, value: ValueT) -> None:
        self._table = table
        self._key = key
        self._value = value

    def __enter__(self) -> None:
        self._table[self._key] = self._value

    def __exit__(self, *_error: object) -> None:
        del self._table[self._key]


def _closed_error() -> ApiError:
    return ClientError("An operator of this server closed the session.", status=409, code=SESSION_CLOSED_CODE)


def _key_revoked_error() -> ApiError:
    return ClientError("The API key that this session was opened with was revoked, or has expired.", status=401, code="invalid_api_key")
