"""The routes under `/v1/messages`."""

from antiphon.runtime.service import Service
from antiphon.server.http.answered_by import ANSWER_HEADERS, REWRITE_HEADERS, ROUTE_HEADERS
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.operation import BODY_ERRORS, INVALID_REQUEST, Header, Operation
from antiphon.server.messages.create import ESTIMATED_HEADER, MessagesEndpoint, count_message_tokens
from antiphon.wire.messages.events import MessageStreamEvent
from antiphon.wire.messages.request import CountTokensRequest, MessagesRequest
from antiphon.wire.messages.response import MessageError, MessageResponse, MessageTokensCount

_NAMES = {"type": "string", "examples": ["web_search_20250305"]}
_OMISSIONS = {
    "antiphon-tools-not-offered": Header("Tools that the model was not offered.", _NAMES),
    "antiphon-items-not-told": Header("Types of blocks that were not passed on to the model.", _NAMES),
}
_ERRORS = BODY_ERRORS | {
    400: INVALID_REQUEST,
    404: "There is no such model or file.",
    529: "The server, or the one behind it, is overloaded or stopping. `retry-after` says when to try again.",
}

_CREATE = Operation(
    "createMessage",
    "Messages",
    "Create a message, whole or as a stream of events",
    MessageResponse,
    MessagesRequest,
    MessageStreamEvent,
    _ERRORS,
    description="Anthropic's Messages API. Nothing is stored. Fields that this server does not know are ignored.",
    headers=_OMISSIONS | ROUTE_HEADERS | REWRITE_HEADERS | ANSWER_HEADERS,
    error_type=MessageError,
)
_COUNT = Operation(
    "countMessageTokens",
    "Messages",
    "Count the tokens of a message's input",
    MessageTokensCount,
    CountTokensRequest,
    errors=_ERRORS,
    description="The engine that would read them counts them; where it can't, they are estimated.",
    headers=_OMISSIONS | ROUTE_HEADERS | {ESTIMATED_HEADER: Header("Set if the tokens were estimated.", {"const": "1"})},
    error_type=MessageError,
)


class MessagesRoute(GuardedRoute):
    """A route of Anthropic's API."""

    is_messages = True


def routes(service: Service) -> list[GuardedRoute]:
    """`POST /v1/messages` and `POST /v1/messages/count_tokens`."""
    create, count = MessagesEndpoint(service), count_message_tokens(service)
    return [
        MessagesRoute("/v1/messages", create, service=service, access="responses:write", operation=_CREATE, method="POST"),
        MessagesRoute("/v1/messages/count_tokens", count, service=service, access="responses:write", operation=_COUNT, method="POST"),
    ]
