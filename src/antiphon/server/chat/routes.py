"""Chat Completions over HTTP."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError
from antiphon.runtime.service import Service
from antiphon.server.chat.create import ChatEndpoint
from antiphon.server.http.answered_by import ANSWER_HEADERS, REWRITE_HEADERS, ROUTE_HEADERS
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, guarded_routes
from antiphon.server.http.operation import BODY_ERRORS, INVALID_REQUEST, UNAVAILABLE, Header, Operation
from antiphon.wire.chat.request import ChatRequest
from antiphon.wire.chat.response import ChatCompletion, ChatCompletionChunk

_NOT_STORED_MESSAGE = (
    "Chat completions are not stored by this server. Use the Responses API, whose responses are: create one with `POST /v1/responses`, "
    "and retrieve it with `GET /v1/responses/{id}`."
)

_CREATE = Operation(
    "createChatCompletion",
    "Chat",
    "Create a chat completion, whole or as a stream of chunks",
    ChatCompletion,
    ChatRequest,
    ChatCompletionChunk,
    BODY_ERRORS
    | {
        400: INVALID_REQUEST,
        404: "There is no such model or file.",
        502: "The engine failed, or the server behind it.",
        503: UNAVAILABLE,
    },
    description="With `stream`, the completion is sent as server-sent events while it is made, and ends with `data: [DONE]`. It is never "
    "stored. Without a `model`, the first of those configured answers. Fields that this server does not know are passed on to the model's "
    "engine.",
    headers={"antiphon-not-stored": Header("The request had `store`, but chat completions are not stored.", {"const": "1"})}
    | ROUTE_HEADERS
    | REWRITE_HEADERS
    | ANSWER_HEADERS,
    names_events=False,
)
_CREATE_WITHOUT_VERSION = _CREATE._replace(
    id="createChatCompletionWithoutVersion",
    summary="The same, for clients whose base URL lacks `/v1`",
)


def _unavailable(id: str, action: str) -> Operation:
    return Operation(
        id, "Chat", f"Not available: {action}", errors={404: "Chat completions are not stored; the message says what to use instead."}
    )


def routes(service: Service) -> list[GuardedRoute]:
    """All routes of Chat Completions."""
    create, refuse = ChatEndpoint(service), _refuse()
    path = "/v1/chat/completions"
    return guarded_routes(
        service,
        [
            ("POST", path, create, "responses:write", _CREATE),
            ("POST", "/chat/completions", create, "responses:write", _CREATE_WITHOUT_VERSION),
            ("GET", path, refuse, "responses:read", _unavailable("listChatCompletions", "list chat completions")),
            ("GET", f"{path}/{{id}}", refuse, "responses:read", _unavailable("getChatCompletion", "retrieve a chat completion")),
            (
                "POST",
                f"{path}/{{id}}",
                refuse,
                "responses:write",
                _unavailable("updateChatCompletion", "change the metadata of a chat completion"),
            ),
            ("DELETE", f"{path}/{{id}}", refuse, "responses:write", _unavailable("deleteChatCompletion", "delete a chat completion")),
            (
                "GET",
                f"{path}/{{id}}/messages",
                refuse,
                "responses:read",
                _unavailable("listChatCompletionMessages", "list the messages of a chat completion"),
            ),
        ],
    )


# These routes exist only for a 404 that says what to use instead.
def _refuse() -> EndpointFunction:
    async def refuse(_request: Request) -> Response:
        raise ClientError(_NOT_STORED_MESSAGE, status=404, code="not_stored")

    return refuse
