"""
The contract of a protocol machine: past-tense events in, imperative effects out.

A session decides and never does: it is synchronous, touches no socket, reads no clock and rolls no dice. Times come with the events
and ids from the `NewId` it was given, so that a test can replay any dialogue to the byte.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from antiphon.engine_api import commands, events as engine_events
from antiphon.errors import ApiError
from antiphon.records import ResponseRecord

NewId = Callable[[str], str]
"""A fresh id for a prefix: `mint("msg")` is something like `msg_68af…`."""


class FromClient(Struct, frozen=True):
    """The client said something; `at` is Unix seconds."""

    message: Any
    at: float


class FromEngine(Struct, frozen=True):
    """The engine said these, together; `at` is Unix seconds."""

    events: Sequence[engine_events.EngineEvent]
    at: float


class Hangup(Struct, frozen=True):
    """The client is gone; nothing sent from now on reaches it."""

    at: float


class PersistFailed(Struct, frozen=True):
    """A record could not be stored; every `Send` that waited for it was dropped unsent."""

    record: ResponseRecord
    error: ApiError
    at: float


class Shutdown(Struct, frozen=True):
    """The session is to end, as the server does or the key of its client; the client is to be told so, and why, while it still can be."""

    error: ApiError
    at: float


class Tick(Struct, frozen=True):
    """The time that a `WakeAt` asked for has come."""

    at: float


Event = FromClient | FromEngine | Hangup | PersistFailed | Shutdown | Tick


class Send(Struct, frozen=True):
    """Give the client this wire event."""

    event: Any


class SendToEngine(Struct, frozen=True):
    """Give the engine this word."""

    command: commands.EngineCommand


class Persist(Struct, frozen=True):
    """Store this record; no `Send` or `Close` that follows is performed before it is durable."""

    record: ResponseRecord


class CountTokens(Struct, frozen=True):
    """An answer came to so many tokens, which count against the limits of whoever is asking."""

    tokens: int


class WakeAt(Struct, frozen=True):
    """Say so when it is that late, in Unix seconds; takes the place of the last one. None: never."""

    at: float | None


class Close(Struct, frozen=True):
    """The session is over; `fault` says why where it was not the plain end."""

    error: ApiError | None = None


Effect = Send | SendToEngine | Persist | CountTokens | WakeAt | Close


class Session(Protocol):
    """A protocol machine. Never raises, whatever arrives; after `Close` it answers every event with nothing."""

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done about `event`, in order."""
