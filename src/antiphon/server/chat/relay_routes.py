"""`POST /v1/completions` and `POST /v1/embeddings`: answered by engines that take such requests as they are."""

import time
from collections.abc import Iterable

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.errors import ClientError, invalid_type, is_or_are, unparsable_json
from antiphon.offload import offload
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.routing.features import route_caller
from antiphon.runtime.routing.router import Resolution
from antiphon.runtime.service import Service
from antiphon.server.chat.create import send_answer
from antiphon.server.chat.relay import RelayHead, prepare_relay, read_head
from antiphon.server.chat.routing import chat_features
from antiphon.server.http.answered_by import ANSWER_HEADERS, ROUTE_HEADERS
from antiphon.server.http.auth import GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.body import read_question
from antiphon.server.http.operation import BODY_ERRORS, INVALID_REQUEST, UNAVAILABLE, Operation
from antiphon.wire.http.completions import Completion, CompletionRequest
from antiphon.wire.http.embeddings import EmbeddingList, EmbeddingsRequest

_ERRORS = BODY_ERRORS | {
    400: INVALID_REQUEST,
    404: "There is no such model.",
    502: "The engine failed, or the server behind it.",
    503: UNAVAILABLE,
}

_COMPLETE = Operation(
    "createCompletion",
    "Chat",
    "Continue a text, whole or as a stream",
    Completion,
    CompletionRequest,
    Completion,
    _ERRORS,
    description="The request is passed on to the model's server as it is, and its answer to the client. Models that are not behind a "
    "server with chat completions don't take it: use `/v1/chat/completions`.",
    headers=ROUTE_HEADERS | ANSWER_HEADERS,
    names_events=False,
)
_EMBED = Operation(
    "createEmbeddings",
    "Embeddings",
    "Make vectors of texts",
    EmbeddingList,
    EmbeddingsRequest,
    errors=_ERRORS,
    description="A model behind another server is passed the request as it is. The embedded model reads the first 256 tokens of each "
    "text, and its vectors have 384 numbers and unit length. Without a `model`, the first that makes vectors answers.",
    headers=ROUTE_HEADERS | ANSWER_HEADERS,
)


def routes(service: Service) -> list[GuardedRoute]:
    """The routes `/v1/completions` and `/v1/embeddings`."""
    rows = (("completions", _COMPLETE), ("embeddings", _EMBED))
    return guarded_routes(
        service, [("POST", f"/v1/{path}", RelayEndpoint(service, path), "responses:write", operation) for path, operation in rows]
    )


class RelayEndpoint:
    """
    A bare ASGI endpoint, because a stream writes to the transport.

    Args:
        path: of the model server's API.
    """

    def __init__(self, service: Service, path: str) -> None:
        self._service = service
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, started_at = self._service, time.perf_counter()
        body = await read_question(service, Request(scope, receive))
        head = await offload(len(body), _read_head, body)
        resolution = await self._resolve(scope, body, head)
        model = resolution.model
        # First: what a model can do is not known while it has no worker.
        model.require_worker()
        if self._path not in model.engine.capabilities.relays:
            raise _refusal(self._path, model, service.registry.all())
        answer = prepare_relay(service, scope, self._path, body, head, resolution)
        del body
        await send_answer(service, answer, scope, receive, send, started_at)

    async def _resolve(self, scope: Scope, body: bytes, head: RelayHead) -> Resolution[ServedModel]:
        service, path = self._service, self._path
        # Not by the router: without a name it takes the first model that answers, and here it is the first with this path.
        if not service.router.has(head.model):
            return Resolution(service.registry.find_relaying(head.model or None, path))
        caller = route_caller(request_caller(scope))
        return await service.router.resolve(head.model, lambda: chat_features(body, relay_path=path), caller, len(body))


def _read_head(body: bytes) -> RelayHead:
    if (head := read_head(body)) is not None:
        return head
    # Once more, for the error: `read_head` doesn't keep it.
    try:
        msgspec.json.decode(body, type=RelayHead)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        param = place.rstrip("`") or None
        expectation, _, actual = message.removeprefix("Expected ").partition(", got ")
        raise invalid_type(param, expectation.strip("`"), actual.strip("`")) from None
    except (ValueError, RecursionError) as error:
        raise unparsable_json(str(error)) from None
    return RelayHead()


def _refusal(path: str, model: ServedModel, models: Iterable[ServedModel]) -> ClientError:
    """The error for a model that takes no such requests; it says what to use instead."""
    takers = [each.name for each in models if path in each.engine.capabilities.relays]
    hint = f" There {is_or_are(takers)} for that." if takers else ""
    problem = {
        "completions": f"The model '{model.name}' takes no bare prompts: use /v1/chat/completions, with `messages`.",
        "embeddings": f"The model '{model.name}' makes no vectors of texts.{hint}",
    }
    return ClientError(problem[path], code="unsupported_model", param="model")
