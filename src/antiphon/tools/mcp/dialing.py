"""What it takes to reach a server that speaks the Model Context Protocol. `remote` implements it, with the library `mcp`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from antiphon.tools.mcp.server import ToolServer


class AddressGuard(Protocol):
    """Decides which addresses may be dialled for URLs that clients send."""

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """
        The IP addresses of a host, each of which may be dialled; the name is not resolved again.

        Raises:
            OSError: the host has none, or may not be dialled; the message says why, as the end of a sentence for the
                client.
        """


class HttpTarget(Struct, frozen=True, kw_only=True):
    """
    A server at a URL.

    Attributes:
        headers: of every request to it; secrets.
        is_own: whether it is the operator's, and may be on any address.
    """

    url: str
    headers: Mapping[str, str]
    is_own: bool = False


class CommandTarget(Struct, frozen=True, kw_only=True):
    """
    A program that is asked over its standard input.

    Attributes:
        label: by which the operator names it.
        env: added to the few variables that programs need.
        processes: the most of them at once.
    """

    label: str
    command: Sequence[str]
    env: Mapping[str, str]
    folder: str | None = None
    processes: int = 16


Target: TypeAlias = HttpTarget | CommandTarget


class DialLimits(Struct, frozen=True, kw_only=True):
    """
    Limits of every connection.

    Attributes:
        connect_s: for a connection to be made.
        list_s: for the list of tools, with the connection that it needs.
        call_s: for a call, with the connection that it needs.
        idle_s: after which a session that nobody uses is closed.
        answer_bytes: of one answer, or of all pages of the list of tools.
        tools: in a list.
    """

    connect_s: float = 10.0
    list_s: float = 30.0
    call_s: float = 120.0
    idle_s: float = 60.0
    answer_bytes: int = 1 << 20
    tools: int = 1000


class ToolConnection(ToolServer, Protocol):
    """A server as one response sees it, with a session of its own, which the first use opens."""

    def close(self) -> None:
        """End the session, in the background; idempotent. The next use opens another."""


class Dialer(Protocol):
    """Makes connections; there is one in a process, for all clients."""

    def connect(self, target: Target) -> ToolConnection:
        """A connection that is not opened yet."""

    async def close(self) -> None:
        """End all sessions and processes; idempotent."""


MakeDialer: TypeAlias = Callable[[DialLimits], Dialer]
"""Loads the library and makes the dialer; it may take a second, and is called in a thread."""
