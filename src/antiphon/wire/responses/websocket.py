"""
The messages of the WebSocket mode that server-sent events don't have: what clients send, and the events of steering.

Source: openai-python's `responses_client_event` and `response_steer_*_event`; OpenAI's guide to WebSocket mode.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct

from antiphon import errors
from antiphon.wire.codec.json_errors import JSON_ERRORS, describe_json_error
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import Maybe, Opt, Tagged, Wire
from antiphon.wire.responses.items import Message, check_item
from antiphon.wire.responses.parts import LongText
from antiphon.wire.responses.request import CreateRequest, check_request

CLIENT_EVENTS = ("response.create", "response.steer")


class ResponseCreate(CreateRequest, kw_only=True, tag_field="type", tag="response.create"):
    """
    Create a response, which is always streamed.

    Attributes:
        generate: false to prepare a request of which the next ones begin, without output.
        stream_id: the lane; see `Envelope`.
    """

    generate: Maybe[bool] = UNSET
    stream_id: Maybe[str] = UNSET


class ResponseSteer(Tagged, kw_only=True, tag="response.steer"):
    """Give a response that is in progress more input, for the one that follows it."""

    previous_response_id: str
    input: LongText | list[Message]
    stream_id: Maybe[str] = UNSET

    @property
    def messages(self) -> list[Message]:
        """The input as messages of the user."""
        return [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input


class Envelope(Struct):
    """
    What concerns every event of a client, of any JSON type.

    Attributes:
        stream_id: the lane that it belongs to.
        input: as it came.
    """

    type: Any = None
    stream_id: Any = None
    previous_response_id: Any = None
    input: Raw = Raw(b"null")


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_create_reader: Reader[ResponseCreate] = Reader(ResponseCreate)
_steer_reader: Reader[ResponseSteer] = Reader(ResponseSteer)


def decode_envelope(message: bytes) -> Envelope:
    """
    The envelope of a client's message.

    Raises:
        ClientError: it is not a JSON object, or too deep or too large a one.
    """
    check_structure(message, is_event=True)
    try:
        return _decode_envelope(message)
    except msgspec.ValidationError:
        raise errors.invalid_event("An event must be a JSON object.") from None
    except JSON_ERRORS as error:
        raise errors.invalid_json(describe_json_error(message, error)) from None


def decode_create(message: bytes) -> ResponseCreate:
    """
    A `response.create`, whose envelope was decoded before.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    event = _create_reader.read(message)
    check_request(event)
    return event


def decode_steer(message: bytes) -> ResponseSteer:
    """
    A `response.steer`, whose envelope was decoded before.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    event = _steer_reader.read(message)
    if not event.messages:
        raise errors.too_short("input", "array", 1, 0)
    for index, message_item in enumerate(event.messages):
        if message_item.role != "user":
            raise errors.invalid_value(f"input[{index}].role", message_item.role, ["user"])
        check_item(message_item, f"input[{index}]")
    return event


class Steer(Wire, kw_only=True):
    """
    One `response.steer`.

    Attributes:
        id: absent where it was refused at once.
        input: as it came, where it could not be used.
    """

    id: Opt[str] = UNSET
    previous_response_id: str
    input: Opt[Raw] = UNSET


class SteerError(Wire, kw_only=True):
    """Why input could not be used."""

    type: Literal["invalid_request_error"] = "invalid_request_error"
    code: str
    message: str


class SteerEvent(Tagged, kw_only=True):
    """
    An event about steering.

    Attributes:
        sequence_number: from 0, one more with each event about the same `response.steer`.
    """

    sequence_number: int
    stream_id: Maybe[str] = UNSET
    steer: Steer


class SteerAccepted(SteerEvent, kw_only=True, tag="response.steer.accepted"):
    """The input waits for the end of the response."""


class SteerPending(SteerEvent, kw_only=True, tag="response.steer.pending"):
    """The response has ended, and the input waits for what the client owes it: `required_input`, without its results."""

    reason: str = "waiting_for_required_input"
    required_input: list[dict[str, str]]


class SteerFailed(SteerEvent, kw_only=True, tag="response.steer.failed"):
    """The input was not used."""

    error: SteerError


SteeringEvent = SteerAccepted | SteerPending | SteerFailed
