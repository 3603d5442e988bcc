"""
Items of tools that are not plain functions: searches, computers, shells, patches, containers, MCP servers, programs.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.types import JsonValue, Maybe, Opt, Tagged, Typed, Unknown, Wire
from antiphon.wire.responses.parts import ComputerScreenshot
from antiphon.wire.responses.tools import ContainerReference, LocalEnvironment, Tool

Status = Literal["in_progress", "completed", "incomplete"]
SearchStatus = Literal["in_progress", "searching", "completed", "incomplete", "failed"]
CallId = Annotated[str, Meta(min_length=1, max_length=64)]


class DirectCaller(Tagged, kw_only=True, tag="direct"):
    """The model called the tool itself."""


class ProgramCaller(Tagged, kw_only=True, tag="program"):
    """A program written by the model called the tool."""

    caller_id: str


Caller = Maybe[DirectCaller | ProgramCaller]


# Searches


class FileSearchResult(Wire, kw_only=True):
    """A piece of a file that was found; `score` is 0 to 1."""

    attributes: Maybe[dict[str, str | int | float | bool]] = UNSET
    file_id: Maybe[str] = UNSET
    filename: Maybe[str] = UNSET
    score: Maybe[float] = UNSET
    text: Maybe[str] = UNSET


class FileSearchCall(Tagged, kw_only=True, tag="file_search_call"):
    """A search of vector stores."""

    id: str
    queries: list[str]
    status: SearchStatus
    results: Maybe[list[FileSearchResult]] = UNSET


class ActionSearchSource(Tagged, kw_only=True, tag="url"):
    """A page that a search used."""

    url: str


class SearchAction(Tagged, kw_only=True, tag="search"):
    """The web was searched."""

    # OpenAI's types have `queries` and `query`, and require neither.
    queries: Maybe[list[str]] = UNSET
    query: Maybe[str] = UNSET
    sources: Maybe[list[ActionSearchSource | Unknown]] = UNSET  # `{"type": "api", "name": ...}` exists too, outside the SDK's types


class OpenPageAction(Tagged, kw_only=True, tag="open_page"):
    """A page was opened."""

    url: Maybe[str] = UNSET


class FindAction(Tagged, kw_only=True, tag="find_in_page"):
    """A page was searched for a pattern."""

    pattern: str
    url: str


class WebSearchCall(Tagged, kw_only=True, tag="web_search_call"):
    """A step of a search of the web."""

    id: str
    action: SearchAction | OpenPageAction | FindAction
    status: SearchStatus


class ToolSearchCall(Tagged, kw_only=True, tag="tool_search_call"):
    """A search for tools."""

    arguments: JsonValue
    id: Maybe[str] = UNSET
    call_id: Maybe[CallId] = UNSET
    execution: Maybe[Literal["server", "client"]] = UNSET
    status: Maybe[Status] = UNSET
    created_by: Maybe[str] = UNSET


class ToolSearchOutput(Tagged, kw_only=True, tag="tool_search_output"):
    """The tools that were found."""

    tools: list[Tool]
    id: Maybe[str] = UNSET
    call_id: Maybe[CallId] = UNSET
    execution: Maybe[Literal["server", "client"]] = UNSET
    status: Maybe[Status] = UNSET
    created_by: Maybe[str] = UNSET


# Computers; positions are in pixels from the top left


class Click(Tagged, kw_only=True, tag="click"):
    """A click of a button, while `keys` are pressed."""

    button: Literal["left", "right", "wheel", "back", "forward"]
    x: int
    y: int
    keys: Maybe[list[str]] = UNSET


class DoubleClick(Tagged, kw_only=True, tag="double_click"):
    """Two presses of the left button."""

    x: int
    y: int
    keys: Maybe[list[str]] = UNSET


class Point(Wire, kw_only=True):
    """A position on the screen."""

    x: int
    y: int


class Drag(Tagged, kw_only=True, tag="drag"):
    """A drag along a path."""

    path: list[Point]
    keys: Maybe[list[str]] = UNSET


class Keypress(Tagged, kw_only=True, tag="keypress"):
    """Keys pressed together."""

    keys: list[str]


class Move(Tagged, kw_only=True, tag="move"):
    """The pointer moves."""

    x: int
    y: int
    keys: Maybe[list[str]] = UNSET


class Screenshot(Tagged, kw_only=True, tag="screenshot"):
    """A screenshot."""


class Scroll(Tagged, kw_only=True, tag="scroll"):
    """A scroll at a position."""

    scroll_x: int
    scroll_y: int
    x: int
    y: int
    keys: Maybe[list[str]] = UNSET


class TypeText(Tagged, kw_only=True, tag="type"):
    """Text typed."""

    text: str


class Wait(Tagged, kw_only=True, tag="wait"):
    """A pause."""


ComputerAction = Click | DoubleClick | Drag | Keypress | Move | Screenshot | Scroll | TypeText | Wait


class SafetyCheck(Wire, kw_only=True):
    """What a person must confirm before an action."""

    id: str
    code: Maybe[str] = UNSET
    message: Maybe[str] = UNSET


class ComputerCall(Tagged, kw_only=True, tag="computer_call"):
    """An action on a computer, or several in a row."""

    id: str
    call_id: CallId
    pending_safety_checks: list[SafetyCheck]
    status: Status
    action: Maybe[ComputerAction] = UNSET
    actions: Maybe[list[ComputerAction]] = UNSET


class ComputerCallOutput(Tagged, kw_only=True, tag="computer_call_output"):
    """What the screen shows after the action."""

    call_id: CallId
    output: Typed[ComputerScreenshot]
    id: Maybe[str] = UNSET
    acknowledged_safety_checks: Maybe[list[SafetyCheck]] = UNSET
    status: Maybe[Literal["in_progress", "completed", "incomplete", "failed"]] = UNSET
    created_by: Maybe[str] = UNSET


# Shells and files


class ExecAction(Tagged, kw_only=True, tag="exec"):
    """A command with its environment."""

    command: list[str]
    env: dict[str, str]
    timeout_ms: Maybe[int] = UNSET
    user: Maybe[str] = UNSET
    working_directory: Maybe[str] = UNSET


class LocalShellCall(Tagged, kw_only=True, tag="local_shell_call"):
    """A command for the client's machine."""

    id: str
    action: Typed[ExecAction]
    call_id: CallId
    status: Status


class LocalShellCallOutput(Tagged, kw_only=True, tag="local_shell_call_output"):
    """
    The output of a local shell command.

    Attributes:
        id: of the call, by the specification, which has no `call_id`; OpenAI's guide names the call by `call_id`.
    """

    id: Maybe[str] = UNSET
    output: str
    call_id: Maybe[CallId] = UNSET
    status: Maybe[Status] = UNSET


class ShellAction(Wire, kw_only=True):
    """Commands to run; `max_output_length` counts characters."""

    commands: list[str]
    max_output_length: Maybe[int] = UNSET
    timeout_ms: Maybe[int] = UNSET


class ShellCall(Tagged, kw_only=True, tag="shell_call"):
    """Commands for a shell."""

    action: ShellAction
    call_id: CallId
    id: Maybe[str] = UNSET
    caller: Caller = UNSET
    environment: Maybe[LocalEnvironment | ContainerReference] = UNSET
    status: Maybe[Status] = UNSET
    created_by: Maybe[str] = UNSET


class ShellTimeout(Tagged, kw_only=True, tag="timeout"):
    """The command took too long."""


class ShellExit(Tagged, kw_only=True, tag="exit"):
    """The command ended."""

    exit_code: int


class ShellOutput(Wire, kw_only=True):
    """The output of one command."""

    outcome: ShellTimeout | ShellExit
    stderr: str
    stdout: str
    created_by: Maybe[str] = UNSET


class ShellCallOutput(Tagged, kw_only=True, tag="shell_call_output"):
    """The outputs of the commands, in order; `max_output_length` counts characters."""

    call_id: CallId
    output: list[ShellOutput]
    id: Maybe[str] = UNSET
    caller: Caller = UNSET
    max_output_length: Maybe[int] = UNSET
    status: Maybe[Status] = UNSET
    created_by: Maybe[str] = UNSET


class CreateFile(Tagged, kw_only=True, tag="create_file"):
    """A new file; `diff` is a unified diff."""

    diff: str
    path: str


class DeleteFile(Tagged, kw_only=True, tag="delete_file"):
    """A file to remove."""

    path: str


class UpdateFile(Tagged, kw_only=True, tag="update_file"):
    """A file to change; `diff` is a unified diff."""

    diff: str
    path: str


class ApplyPatchCall(Tagged, kw_only=True, tag="apply_patch_call"):
    """A change of a file."""

    call_id: CallId
    operation: CreateFile | DeleteFile | UpdateFile
    status: Literal["in_progress", "completed"]
    id: Maybe[str] = UNSET
    caller: Caller = UNSET
    created_by: Maybe[str] = UNSET


class ApplyPatchCallOutput(Tagged, kw_only=True, tag="apply_patch_call_output"):
    """Whether the file was changed."""

    call_id: CallId
    status: Literal["completed", "failed"]
    id: Maybe[str] = UNSET
    caller: Caller = UNSET
    output: Maybe[str] = UNSET
    created_by: Maybe[str] = UNSET


# Code and pictures


class LogsOutput(Tagged, kw_only=True, tag="logs"):
    """What code printed."""

    logs: str


class ImageOutput(Tagged, kw_only=True, tag="image"):
    """An image that code made."""

    url: str


class CodeInterpreterCall(Tagged, kw_only=True, tag="code_interpreter_call"):
    """A run of code in a container."""

    id: str
    code: Maybe[str] = UNSET
    container_id: str
    outputs: Maybe[list[LogsOutput | ImageOutput]] = UNSET
    status: Literal["in_progress", "completed", "incomplete", "interpreting", "failed"]


class ModerationDetails(Wire, kw_only=True):
    """Why an image was refused."""

    categories: list[str]
    moderation_stage: Literal["input", "output", "unknown"]


class ImageGenerationError(Wire, kw_only=True):
    """Why there is no image."""

    code: Maybe[str] = UNSET
    message: str
    param: Maybe[str] = UNSET
    type: str
    moderation_details: Maybe[ModerationDetails] = UNSET


class SvgUsage(Wire, kw_only=True):
    """Tokens used for an SVG image."""

    input_tokens: int
    model: str
    output_tokens: int
    reasoning_tokens: int
    total_tokens: int


class ImageGenerationCall(Tagged, kw_only=True, tag="image_generation_call"):
    """The generation of an image; `result` is the image in base64. Clients may name an earlier one by its id alone."""

    id: str
    result: Maybe[str] = UNSET
    # Required in OpenAI's document, and absent where a client names an image by its id.
    status: Opt[Literal["in_progress", "completed", "generating", "failed"]] = UNSET
    action: Maybe[Literal["generate", "edit", "auto"]] = UNSET
    background: Maybe[Literal["transparent", "opaque", "auto"]] = UNSET
    error: Maybe[ImageGenerationError] = UNSET
    output_format: Maybe[Literal["png", "webp", "jpeg", "gif", "svg"]] = UNSET
    quality: Maybe[Literal["low", "medium", "high", "xhigh", "max", "auto"]] = UNSET
    revised_prompt: Maybe[str] = UNSET
    size: Maybe[str] = UNSET
    svg_usage: Maybe[SvgUsage] = UNSET


class Program(Tagged, kw_only=True, tag="program"):
    """A program, written by the model, that calls tools."""

    id: str
    call_id: CallId
    code: str
    fingerprint: str


class ProgramOutput(Tagged, kw_only=True, tag="program_output"):
    """The result of a program."""

    id: str
    call_id: CallId
    result: str
    status: Literal["completed", "incomplete"]


# MCP servers


class McpListedTool(Wire, kw_only=True):
    """A tool as its server describes it."""

    input_schema: JsonValue
    name: str
    annotations: Maybe[JsonValue] = UNSET
    description: Maybe[str] = UNSET


class McpListTools(Tagged, kw_only=True, tag="mcp_list_tools"):
    """The tools of a server, or why they could not be listed."""

    id: str
    server_label: str
    tools: list[McpListedTool]
    error: Maybe[str] = UNSET


class McpApprovalRequest(Tagged, kw_only=True, tag="mcp_approval_request"):
    """A call that waits for the user's approval."""

    id: str
    arguments: str
    name: str
    server_label: str


class McpApprovalResponse(Tagged, kw_only=True, tag="mcp_approval_response"):
    """The user's answer to an approval request."""

    approval_request_id: str
    approve: bool
    id: Maybe[str] = UNSET
    reason: Maybe[str] = UNSET


class McpProtocolError(Tagged, kw_only=True, tag="mcp_protocol_error"):
    """A protocol error of either side."""

    code: int
    message: str


class McpToolExecutionError(Tagged, kw_only=True, tag="mcp_tool_execution_error"):
    """The tool failed."""

    content: JsonValue


class HttpError(Tagged, kw_only=True, tag="http_error"):
    """The server answered with an HTTP error."""

    code: int
    message: str


class McpCall(Tagged, kw_only=True, tag="mcp_call"):
    """A call of an MCP server's tool, with its result."""

    id: str
    arguments: str
    name: str
    server_label: str
    approval_request_id: Maybe[str] = UNSET
    error: Maybe[McpProtocolError | McpToolExecutionError | HttpError] = UNSET
    output: Maybe[str] = UNSET
    status: Maybe[Literal["in_progress", "completed", "incomplete", "calling", "failed"]] = UNSET
