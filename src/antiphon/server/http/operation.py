"""What a route takes and returns: every `GuardedRoute` has an `Operation`, from which `/openapi.json` is written."""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Literal, NamedTuple, TypeAlias

from antiphon.server.transport.limits import BODY_LIMIT_BYTES
from antiphon.wire.codec.types import JsonDict

Tag = Literal[
    "Realtime",
    "Responses",
    "Chat",
    "Messages",
    "Embeddings",
    "Conversations",
    "Containers",
    "Files",
    "Vector stores",
    "Audio",
    "Sessions",
    "MiniCPM-o",
    "Queue",
    "Models",
    "Console",
    "Server",
]

JsonType: TypeAlias = type | UnionType
"""The type of a JSON body: a struct, a union of structs, or a collection of them."""

JSON_MEDIA_TYPE = "application/json"
FORM_MEDIA_TYPE = "multipart/form-data"


class Parameter(NamedTuple):
    """A query parameter, and the JSON Schema of its value."""

    name: str
    description: str
    schema: JsonDict


class Header(NamedTuple):
    """A response header, and the JSON Schema of its value."""

    description: str
    schema: JsonDict
    is_required: bool = False


class Operation(NamedTuple):
    """
    The description of a route.

    Attributes:
        id: generated clients name their methods after it.
        response_type: type of a JSON response.
        request_type: type of the body.
        event_type: type of each event, where the response may be a stream.
        errors: statuses besides the common ones, and when they occur.
        description: more than the summary.
        links: operations that take the `id` in this response, with the name of their parameter.
        status: of the response.
        media_types: of responses that are not JSON.
        headers: of the response, besides the common ones.
        request_media_types: the first one is that of `request_type`.
        form_type: type of a form that may be sent instead of a body of `request_type`.
        names_events: whether each event of a stream has a line with its name; a stream without them ends with `[DONE]`.
        error_type: of the body of every error; None for that of OpenAI's APIs.
    """

    id: str
    tag: Tag
    summary: str
    response_type: JsonType | None = None
    request_type: JsonType | None = None
    event_type: JsonType | None = None
    errors: Mapping[int, str] = {}
    query: Sequence[Parameter] = ()
    description: str | None = None
    links: Mapping[str, str] = {}
    status: int = 200
    media_types: Sequence[str] = ()
    headers: Mapping[str, Header] = {}
    request_media_types: Sequence[str] = (JSON_MEDIA_TYPE,)
    form_type: JsonType | None = None
    names_events: bool = True
    error_type: JsonType | None = None


# Sentences that operations share

INVALID_REQUEST = "The request is invalid, or asks for something that the model doesn't support; `param` names the field."
UNAVAILABLE = "The server is stopping or overloaded, and accepts no new work. `retry-after` says when to try again."
MODEL_NOT_FOUND = {404: "There is no such model."}
UPGRADE_REQUIRED = "The request is not a WebSocket handshake."
COMPRESSED_BODY = {415: "The body is compressed."}
BODY_ERRORS = COMPRESSED_BODY | {413: f"The body is over {BODY_LIMIT_BYTES >> 20} MiB."}
"""Errors of `read_json_body`."""
