"""
Steering: more input for a response that is in progress.

The response is not cut short. When it has ended, the input begins the next one: at once, with the same settings, or,
if the client owes results of tools, with the request that brings them.

Source: openai-python's `response_steer_*_event`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET, Raw, Struct, structs

from antiphon.errors import ApiError
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.core.ids import new_id
from antiphon.server.websocket_mode.memory import Lane
from antiphon.wire.codec.fields import is_set
from antiphon.wire.codec.types import Opt, Unknown
from antiphon.wire.responses.items import Item, Message
from antiphon.wire.responses.response import Response
from antiphon.wire.responses.websocket import (
    ResponseCreate,
    ResponseSteer,
    Steer,
    SteerAccepted,
    SteerError,
    SteerFailed,
    SteeringEvent,
    SteerPending,
)

SUBMISSION_LIMIT = 16
"""How many submissions one response may have; OpenAI names no limit."""

_REMEMBERED_ENDS = 64
"""How many ended responses are known, so that input that comes too late gets another code than a wrong id."""

_OUTPUT_BY_CALL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "function_call": ("function_call_output", ("call_id", "name")),
    "custom_tool_call": ("custom_tool_call_output", ("call_id",)),
    "computer_call": ("computer_call_output", ("call_id",)),
    "shell_call": ("shell_call_output", ("call_id",)),
    "apply_patch_call": ("apply_patch_call_output", ("call_id",)),
    "tool_search_call": ("tool_search_output", ("call_id", "execution")),
    "mcp_approval_request": ("mcp_approval_response", ("approval_request_id",)),
}
"""By the type of a call, the item that the client owes for it, and the fields that identify it."""

_OUTPUT_TYPES = frozenset(kind for kind, _ in _OUTPUT_BY_CALL.values())


class Submission(Struct):
    """
    The input of one `response.steer` that was accepted.

    Attributes:
        lease: of the input's bytes.
        sequence_number: of the next event about it.
    """

    id: str
    lane: Lane
    previous_response_id: str
    messages: list[Message]
    input: Raw
    lease: BodyLease
    sequence_number: int = 0


class _Target(Struct):
    lane: Lane
    request: ResponseCreate
    submissions: list[Submission]


class NextTurn(Struct, frozen=True):
    """A response that the server begins when a steered one has ended."""

    lane: Lane
    request: ResponseCreate
    submissions: Sequence[Submission]


class Steering:
    """
    The submissions of one connection.

    Args:
        send: sends an event about one.
    """

    def __init__(self, send: Callable[[SteeringEvent], None]) -> None:
        self._send = send
        self._active: dict[str, _Target] = {}
        self._waiting: dict[str, list[Submission]] = {}
        self._ends: deque[str] = deque(maxlen=_REMEMBERED_ENDS)

    def begin(self, response_id: str, lane: Lane, request: ResponseCreate) -> None:
        """A response was created, and can be steered."""
        self._active[response_id] = _Target(lane, request, [])

    def submit(self, event: ResponseSteer, raw_input: Raw, lease: BodyLease) -> None:
        """Accept or refuse a submission."""
        target = self._active.get(event.previous_response_id)
        lane = target.lane if target is not None else None
        problem = self._problem(event.previous_response_id, target)
        if problem is not None or target is None:
            lease.release()
            self.refuse(event.previous_response_id, raw_input, lane, *(problem or ("response_not_found", "")))
            return
        submission = Submission(new_id("steer"), lane, event.previous_response_id, event.messages, raw_input, lease)
        target.submissions.append(submission)
        self._send(SteerAccepted(sequence_number=_next_number(submission), stream_id=_stream_id(lane), steer=_steer(submission)))

    def refuse(self, response_id: str, raw_input: Raw, lane: Lane, code: str, message: str) -> None:
        """Refuse a submission that has no id yet."""
        # Without an id there are no other events about it, so this is number 0.
        steer = Steer(previous_response_id=response_id, input=raw_input)
        error = SteerError(code=code, message=message)
        self._send(SteerFailed(sequence_number=0, stream_id=_stream_id(lane), steer=steer, error=error))

    def end(self, response: Response) -> NextTurn | None:
        """A response has ended. Returns the one that the server is to begin; None where there is no input, or outputs are owed."""
        target = self._active.pop(response.id, None)
        self._ends.append(response.id)
        if target is None or not target.submissions:
            return None
        if response.status not in ("completed", "incomplete"):
            self.fail(target.submissions, "response_not_active", "The response failed.")
            return None
        # The outputs of these calls must come first, and only the client has them: its next request brings both.
        if required_input := _required_input(response.output):
            self._waiting[response.id] = target.submissions
            for submission in target.submissions:
                number, stream_id = _next_number(submission), _stream_id(submission.lane)
                pending = SteerPending(sequence_number=number, stream_id=stream_id, steer=_steer(submission), required_input=required_input)
                self._send(pending)
            return None
        messages: list[Item] = [message for submission in target.submissions for message in submission.messages]
        request = structs.replace(target.request, input=messages, previous_response_id=response.id)
        return NextTurn(target.lane, request, target.submissions)

    def abandon(self, response_id: str) -> None:
        """A response that may have begun is over by an error, so it has no `end`; idempotent."""
        target = self._active.pop(response_id, None)
        if target is not None:
            self._ends.append(response_id)
            self.fail(target.submissions, "response_not_active", "The response failed.")

    def take(self, previous_response_id: str, lane: Lane) -> Sequence[Submission]:
        """The submissions that wait for a request that continues this response in its lane."""
        waiting = self._waiting.get(previous_response_id)
        return self._waiting.pop(previous_response_id) if waiting and waiting[0].lane == lane else ()

    def release(self, submissions: Sequence[Submission]) -> None:
        """Their input has become part of a response, so their bytes are not counted here any more; idempotent."""
        for submission in submissions:
            submission.lease.release()

    def fail(self, submissions: Sequence[Submission], code: str, message: str) -> None:
        """Give submissions back to the client."""
        for submission in submissions:
            submission.lease.release()
            number, stream_id = _next_number(submission), _stream_id(submission.lane)
            steer = structs.replace(_steer(submission), input=submission.input)
            error = SteerError(code=code, message=message)
            self._send(SteerFailed(sequence_number=number, stream_id=stream_id, steer=steer, error=error))

    def fail_creation(self, submissions: Sequence[Submission], error: ApiError) -> None:
        """Give back submissions whose response could not be created."""
        self.fail(submissions, "successor_creation_failed", error.message)

    def close(self) -> None:
        """The connection has ended: give back the bytes of all submissions."""
        for submissions in (*self._waiting.values(), *(target.submissions for target in self._active.values())):
            self.release(submissions)
        self._waiting.clear()
        self._active.clear()

    def _problem(self, response_id: str, target: _Target | None) -> tuple[str, str] | None:
        """The code and the message with which a submission is refused."""
        if target is None:
            if response_id in self._ends:
                return "response_already_completed", "The response has ended; continue it with `response.create`."
            return "response_not_found", "This connection has no response with that id in progress."
        if is_set(target.request.conversation) or is_set(target.request.context_management):
            return "steering_not_supported", "Responses of a conversation or with `context_management` can't be steered."
        if len(target.submissions) >= SUBMISSION_LIMIT:
            return "too_many_pending_steers", f"Too much input waits for the end of this response: the limit is {SUBMISSION_LIMIT}."
        return None


def input_behind_outputs(input_items: Sequence[Item], submissions: Sequence[Submission]) -> list[Item]:
    """A request's input with that of submissions: behind the outputs that they waited for, ahead of what the client says since."""
    last_output = max((index for index, item in enumerate(input_items) if item.type in _OUTPUT_TYPES), default=-1)
    messages = (message for submission in submissions for message in submission.messages)
    return [*input_items[: last_output + 1], *messages, *input_items[last_output + 1 :]]


def _next_number(submission: Submission) -> int:
    submission.sequence_number += 1
    return submission.sequence_number - 1


def _steer(submission: Submission) -> Steer:
    return Steer(id=submission.id, previous_response_id=submission.previous_response_id)


def _stream_id(lane: Lane) -> Opt[str]:
    return UNSET if lane is None else lane


def _required_input(output: Sequence[Item]) -> list[dict[str, str]]:
    """What the client owes for the calls in a response's output, each without its result."""
    outputs = {_field(item, "call_id") for item in output if item.type.endswith("_output")} - {""}
    stubs: list[dict[str, str]] = []
    for item in output:
        # A call that was cut off can't be run, and a search of the server's was run here.
        kind, names = _OUTPUT_BY_CALL.get(item.type, ("", ()))
        is_open = _field(item, "call_id") not in outputs and _field(item, "status") != "incomplete"
        is_servers = item.type == "tool_search_call" and _field(item, "execution") != "client"
        if kind and is_open and not is_servers:
            stubs.append({"type": kind, **{name: _field(item, "id" if name == "approval_request_id" else name) for name in names}})
    return stubs


def _field(item: Item, name: str) -> str:
    value = item.extra.get(name) if isinstance(item, Unknown) else getattr(item, name, None)
    return value if isinstance(value, str) else ""
