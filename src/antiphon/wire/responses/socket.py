"""What is said on a WebSocket beyond the events of a stream: requests as messages, and steering."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.reading import Reader, check_depth
from antiphon.wire.codec.types import Maybe, Tagged, Unknown, Wire
from antiphon.wire.responses.events import Event, StreamEvent
from antiphon.wire.responses.items import FunctionCallOutput
from antiphon.wire.responses.parts import LongText, ToolOutputPart
from antiphon.wire.responses.request import CreateRequest, check_request

StreamId = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_.-]+\Z")]


class SteerMessage(Tagged, kw_only=True, tag="message"):
    """What the user says meanwhile."""

    id: Maybe[str] = UNSET
    status: Maybe[str] = UNSET
    content: list[ToolOutputPart] | LongText
    role: Literal["user"]


SteerInput = LongText | list[SteerMessage | FunctionCallOutput]


class ResponseCreate(CreateRequest, kw_only=True, tag_field="type", tag="response.create"):
    """
    A request for a response.

    Attributes:
        generate: false for a response without output, to be continued later.
        stream_id: the lane that it belongs to.
    """

    generate: Maybe[bool] = UNSET
    stream_id: Maybe[StreamId] = UNSET


class ResponseSteer(Tagged, kw_only=True, tag="response.steer"):
    """More input for a response that is being made."""

    input: SteerInput
    previous_response_id: str


ClientEvent = ResponseCreate | ResponseSteer


class Steer(Wire, kw_only=True):
    """The steering that an event is about."""

    id: str
    previous_response_id: str


class RefusedSteer(Wire, kw_only=True):
    """The steering that was refused, as it was asked for."""

    id: Maybe[str] = UNSET
    input: SteerInput
    previous_response_id: str


class SteerError(Wire, kw_only=True):
    """Why steering was refused."""

    code: str
    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"


class SteerAccepted(Event, kw_only=True, tag="response.steer.accepted"):
    """The input was taken."""

    steer: Steer


class OwedFunctionCallOutput(Tagged, kw_only=True, tag="function_call_output"):
    """A function's output is owed."""

    call_id: str
    name: str


class OwedCustomToolCallOutput(Tagged, kw_only=True, tag="custom_tool_call_output"):
    """A custom tool's output is owed."""

    call_id: str


class OwedComputerCallOutput(Tagged, kw_only=True, tag="computer_call_output"):
    """A screenshot is owed."""

    call_id: str


class OwedShellCallOutput(Tagged, kw_only=True, tag="shell_call_output"):
    """A shell's output is owed."""

    call_id: str


class OwedApplyPatchCallOutput(Tagged, kw_only=True, tag="apply_patch_call_output"):
    """Whether files were changed is owed."""

    call_id: str


class OwedToolSearchOutput(Tagged, kw_only=True, tag="tool_search_output"):
    """Found tools are owed."""

    call_id: str
    execution: Literal["client"] = "client"


class OwedMcpApprovalResponse(Tagged, kw_only=True, tag="mcp_approval_response"):
    """The user's approval is owed."""

    approval_request_id: str


Owed = (
    OwedFunctionCallOutput
    | OwedCustomToolCallOutput
    | OwedComputerCallOutput
    | OwedShellCallOutput
    | OwedApplyPatchCallOutput
    | OwedToolSearchOutput
    | OwedMcpApprovalResponse
    | Unknown
)


class SteerPending(Event, kw_only=True, tag="response.steer.pending"):
    """The input waits; `reason` is `waiting_for_required_input` where something is owed first."""

    reason: str
    required_input: list[Owed]
    steer: Steer


class SteerFailed(Event, kw_only=True, tag="response.steer.failed"):
    """The input was refused."""

    error: SteerError
    steer: RefusedSteer


ServerEvent = StreamEvent | SteerAccepted | SteerPending | SteerFailed

_client_reader: Reader[ClientEvent] = Reader(ClientEvent)
_server_reader: Reader[ServerEvent] = Reader(ServerEvent)


def decode_client_event(body: bytes) -> ClientEvent:
    """
    What a client says in one message.

    Raises:
        ClientError: it is no such event.
    """
    check_depth(body)
    event = _client_reader.read(body)
    if isinstance(event, ResponseCreate):
        check_request(event)
    return event


def decode_server_event(body: bytes) -> ServerEvent:
    """
    What a server says in one message.

    Raises:
        ClientError: it is no such event.
    """
    return _server_reader.read(body)
