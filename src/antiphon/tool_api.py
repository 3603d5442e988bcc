"""
What protocols and the tools that the server runs say to each other.

A session names a call (`ServerToolCall`), the server runs it, and the tool's events come back: the hosted tool's item as it
starts, moves on and is done, and what the model gets to read (`ToolOutput`). Neither side knows the other: a session
shows any tool's items, and a tool runs for any protocol.
"""

import re
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.engine_api.events import HostedToolDone, HostedToolProgress, HostedToolStarted
from antiphon.engine_api.history import HistoryPart
from antiphon.engine_api.options import FunctionTool

MAX_FUNCTION_NAME_LENGTH = 64
"""What the strictest servers of models take, with the namespace and the `__` that stands between."""

_MIN_ALIAS_LENGTH = 24


def mcp_function_name(server_label: str, tool_name: str) -> str:
    """
    The name under which the model gets a tool of an MCP server, in the namespace of the server's label.

    It is the tool's own where model servers accept that. MCP allows others, such as `files/read`; such a name is changed,
    and gets a few characters of its digest so that no two become the same. Items have the tool's own name.
    """
    max_length = max(_MIN_ALIAS_LENGTH, MAX_FUNCTION_NAME_LENGTH - len(server_label) - 2)
    if len(tool_name) <= max_length and re.fullmatch(r"[a-zA-Z0-9_-]+", tool_name):
        return tool_name
    digest = sha256(tool_name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^a-zA-Z0-9_-]', '_', tool_name)[: max_length - 9]}_{digest}"


def decode_arguments(text: str) -> object:
    """
    The arguments of a call, which are whatever the model wrote.

    Raises:
        ValueError: they are no JSON, or nested too deeply.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:  # The last for lone surrogates.
        raise ValueError(str(error)) from None


class ServerFunction(Struct, frozen=True):
    """
    A function that the model may call and the server runs.

    Attributes:
        type: of the tool that it belongs to, as in the request: `mcp`, `file_search`, ...
        function: what the model gets. A tool of several servers has their labels as the function's namespace.
    """

    type: str
    function: FunctionTool


class ServerToolCall(Struct, frozen=True, kw_only=True):
    """
    A call for the server to run.

    Attributes:
        response_id: of the response that it belongs to.
        call_id: by which the model's call and the events that follow are told apart; unique in the response.
        name: of the function; `namespace` is the function's own.
        arguments: JSON text as the model wrote it, so it may be anything.
        approval_request_id: of the item in which the user approved it; None where no approval was needed.
    """

    response_id: str
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    approval_request_id: str | None = None


class Citation(Struct, frozen=True, kw_only=True):
    """
    What the model cites when it writes `marker`.

    Attributes:
        marker: what stands in the model's text, such as `【3】`.
        annotation: the annotation in the shape of the Responses API without its places in the text (`index`, or
            `start_index` and `end_index`), which the session fills in.
        replacement: what stands in the text instead of the marker; None to leave the marker, and the annotation's range
            is that of the text that stands there.
        kind: `point`: the annotation has an `index`, the place where the marker was; `range`: it has the range of the
            replacement or the marker.
        evidence: the text that the model has read of it; where it writes no markers at all, sentences that clearly come from
            here are cited. Empty for what only its marker cites.
    """

    marker: str
    annotation: dict[str, Any]
    replacement: str | None = ""
    kind: Literal["point", "range"] = "point"
    evidence: str = ""


class ToolsListed(Struct, frozen=True):
    """More functions that the model may call from now on, such as those that an MCP server has."""

    functions: tuple[ServerFunction, ...]


class ImageTokens(Struct, frozen=True, kw_only=True):
    """Tokens that an images server counted, of images and of text."""

    input_image: int = 0
    input_text: int = 0
    output_image: int = 0
    output_text: int = 0

    def plus(self, more: "ImageTokens") -> "ImageTokens":
        """The tokens of both."""
        return ImageTokens(**{name: getattr(self, name) + getattr(more, name) for name in self.__struct_fields__})


class ToolOutput(Struct, frozen=True):
    """
    What the model gets to read of a call; the last event of each call that was run, whether it succeeded or not.

    Attributes:
        citations: what the model may cite in the text that follows.
        searches: web searches made, for the response's `tool_usage`.
        image_tokens: used to make images, for the response's `tool_usage`.
    """

    parts: tuple[HistoryPart, ...]
    citations: tuple[Citation, ...] = ()
    searches: int = 0
    image_tokens: ImageTokens = ImageTokens()


class ApprovalRequired(Struct, frozen=True):
    """The call was not run: its item asks the user for approval. The last event of such a call; the response ends after it."""


ToolEvent = HostedToolStarted | HostedToolProgress | HostedToolDone | ToolsListed | ToolOutput | ApprovalRequired
"""
What a running tool says. Items and progress are as in the Responses API; each item that is started is done before the
next is started, and the items' ids, and `item_id` and `output_index` of progress, are the session's to set.
"""


class ServerTools(Struct, frozen=True):
    """
    The tools of a request that the server runs.

    Attributes:
        types: of those tools, as in the request.
        functions: that the model may call from the start.
        must_prepare: whether there is something to do before the model is asked, such as to list an MCP server's tools.
    """

    types: frozenset[str] = frozenset()
    functions: tuple[ServerFunction, ...] = ()
    must_prepare: bool = False


NO_SERVER_TOOLS = ServerTools()
