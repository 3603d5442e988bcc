"""
The contract of a tool that the server runs.

A `ToolKind` is made once from the configuration. For each response it opens the tools that the request has of its type;
an open `Tool` offers functions to the model and runs its calls. What a tool says is in `antiphon.tool_api`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from antiphon.engine_api.options import FunctionTool
from antiphon.tool_api import ApprovalRequired, ServerToolCall, ToolEvent, ToolOutput
from antiphon.wire.responses import tools as wire_tools
from antiphon.wire.responses.items import Item

Report: TypeAlias = Callable[[ToolEvent], None]
"""Takes what a tool says, at once; it never blocks and never raises."""


class ToolContext(Struct, frozen=True, kw_only=True):
    """
    What a tool may know of the response that it works for.

    Attributes:
        tenant: whose files, stores and containers it may use.
        model: that answers.
        items: the conversation, oldest first; with what earlier calls left in it.
    """

    response_id: str
    tenant: str
    model: str
    items: Sequence[Item] = ()


class Tool(Protocol):
    """The tools of one type that a request has, while its response is made."""

    @property
    def functions(self) -> Sequence[FunctionTool]:
        """What the model may call from the start."""

    @property
    def must_prepare(self) -> bool:
        """Whether `prepare` has to be called before the model is asked."""

    async def prepare(self, report: Report) -> None:
        """
        Do what is to be done before the model is first asked; `ToolsListed` offers it more functions.

        A failure is told as the original tells it, by the tool's own item.

        Raises:
            ApiError: the response must fail.
        """

    async def run(self, call: ServerToolCall, report: Report) -> ToolOutput | ApprovalRequired:
        """
        Run a call, and report the events of its item.

        What the model wrote may be anything: mistakes in it are told to the model, as an output. The toolbox cancels a
        call that takes too long, and then tells that itself, with `fail`.

        Raises:
            ApiError: the response must fail; anything that is only the call's failure is an output.
        """

    def fail(self, item: Mapping[str, Any], message: str) -> dict[str, Any]:
        """The item of a call that was started and was cut short, as it is shown when it has failed for that reason."""


@runtime_checkable
class ClosableTool(Protocol):
    """A tool that holds something while the response is made, such as a connection."""

    def close(self) -> None:
        """Release it in the background, when the response is over; idempotent."""


class ToolKind(Protocol):
    """A kind of tool, as the toolbox has it: made once, for all responses."""

    @property
    def types(self) -> frozenset[str]:
        """The types of tools in requests that it runs, such as `web_search` and `web_search_preview`."""

    def open(self, tools: Sequence[tuple[str, wire_tools.Tool]], context: ToolContext) -> Tool:
        """
        Open the tools of these types that a request has, each with its path: `tools[3]`.

        Raises:
            ClientError: a tool's options are wrong, or name what isn't there.
        """

    async def close(self) -> None:
        """Release what it holds; idempotent."""
