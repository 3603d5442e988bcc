"""What the tool `mcp` needs of a server, wherever it is and whatever it speaks: list the tools, and call one."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from antiphon.wire.responses.hosted_calls import HttpError, McpProtocolError, McpToolExecutionError

CallError: TypeAlias = HttpError | McpProtocolError | McpToolExecutionError
"""
Why a call failed: the server can't be reached or answered with an HTTP error; it refused the call, or its answer makes
no sense; or the tool itself failed.
"""


class ToolDescription(Struct, frozen=True, kw_only=True):
    """
    A tool that a server has.

    Attributes:
        name: the server's own; unique in the server.
        input_schema: JSON Schema of the arguments, which are an object.
        read_only: whether the server says that it changes nothing.
    """

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    read_only: bool = False


class ListingError(Exception):
    """
    A server's tools can't be listed.

    Attributes:
        reason: for the client, as the end of a sentence; it says nothing about this machine.
        status: the HTTP status that the server answered with, or None.
    """

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class ToolServer(Protocol):
    """
    A server of tools. One that runs in this process is shared by all clients, so it holds nothing of any of them.

    Its caller limits the time of each call, and cancels it.
    """

    async def list_tools(self) -> Sequence[ToolDescription]:
        """
        The tools that it has.

        Raises:
            ListingError: they can't be listed.
        """

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str | CallError:
        """
        What the tool answers, as text for the model, or why there is no answer.

        Args:
            name: as listed, or anything: a model, or a client that resends an approval, may make it up.
            arguments: JSON, not checked against the tool's schema.
        """


class LocalServer(ToolServer, Protocol):
    """A server of tools on this machine, which lives as long as this one."""

    async def close(self) -> None:
        """End what it runs; idempotent."""
