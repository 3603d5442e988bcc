"""The models, as OpenAI's `GET /v1/models` lists them, and as Anthropic's does for its clients."""

import datetime
from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import UNSET, Struct, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationKind
from antiphon.errors import unknown_cursor
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response, speaks_messages
from antiphon.server.http.operation import MODEL_NOT_FOUND, Operation
from antiphon.server.http.paging import page_limit
from antiphon.wire.codec.types import encode
from antiphon.wire.messages.response import ModelInfo, ModelInfoList

DEFAULT_PAGE, MAX_PAGE = 20, 1000
"""Of Anthropic's list; OpenAI's has no pages."""


class Architecture(Struct):
    """What a model reads and writes, where OpenRouter's clients look for it."""

    input_modalities: list[str]
    output_modalities: list[str]


class ModelDetails(Struct):
    """
    What this server knows of a model, beyond what OpenAI's clients look for.

    Attributes:
        engine: what runs it, such as `local`; null for a name of `routing`.
        state: `unavailable` while it has no worker, or none of its upstreams takes requests.
        abilities: of its engine, as `/workers` shows them; null for a name of `routing`.
        context_window: tokens, where it is known.
        listens: whether it hears what is said in Realtime sessions, by itself or with the server's transcription.
        speaks: whether it speaks there, by itself or with the server's voice.
        voices: with which it speaks, the default first; empty if any name works, or it doesn't speak.
        languages: codes of those that are understood when spoken; empty for any, or if it doesn't listen.
        kinds: of conversations, as the queue names them: `responses`, `realtime`, and MiniCPM-o's `chat`, `audio` and
            `video`; empty for a model that makes vectors of texts.
    """

    engine: str | None
    state: Literal["ready", "unavailable"]
    abilities: Capabilities | None
    context_window: int | None = None
    listens: bool = False
    speaks: bool = False
    voices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    kinds: tuple[ConversationKind, ...] = ()


class Model(Struct):
    """
    A model of this server; `created` is in Unix seconds.

    Attributes:
        context_length: tokens, where it is known, under the name that OpenRouter gives it; `max_model_len` is vLLM's name.
        input_modalities: what it reads: `text`, `image`, `file`, `audio`, `video`.
    """

    id: str
    object: str
    created: int
    owned_by: str
    input_modalities: list[str]
    architecture: Architecture
    context_length: int | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    antiphon: ModelDetails | UnsetType = UNSET


class ModelList(Struct):
    """The models of this server."""

    object: str
    data: list[Model]


_BY_HEADER = "With the header `anthropic-version` the answer is as in Anthropic's API, with its pages for the list."
_LIST_MODELS = Operation(
    "listModels",
    "Models",
    "List the models",
    ModelList,
    description=_BY_HEADER,
)
_RETRIEVE_MODEL = Operation("retrieveModel", "Models", "Retrieve a model", Model, errors=MODEL_NOT_FOUND, description=_BY_HEADER)


def routes(service: Service) -> list[GuardedRoute]:
    """The routes under `/v1/models`."""

    async def list_models(request: Request) -> Response:
        models = await service.registry.list_models()
        if speaks_messages(request.scope):
            infos = [*map(_model_info, models), *(_named_info(name, service.started_at) for name in service.router.names)]
            return json_response(encode(_page(request, infos)))
        # Needed below for what `with_speech` adds to a model; Anthropic's list says nothing of speech.
        await service.speech.prepare()
        routes = [_route_object(name, service.started_at) for name in service.router.names]
        return json_response(ModelList("list", [*(_model_object(service, model) for model in models), *routes]))

    async def retrieve_model(request: Request) -> Response:
        name = request.path_params["model"]
        # The parameter takes slashes, as in `org/model`, and so the empty name too.
        if not name:
            raise HTTPException(404)
        is_route = service.router.has(name)
        if speaks_messages(request.scope):
            info = _named_info(name, service.started_at) if is_route else _model_info(service.registry.find_any(name))
            return json_response(encode(info))
        await service.speech.prepare()
        answer = _route_object(name, service.started_at) if is_route else _model_object(service, service.registry.find_any(name))
        return json_response(answer)

    return guarded_routes(
        service,
        [
            ("GET", "/v1/models", list_models, "models:read", _LIST_MODELS),
            ("GET", "/v1/models/{model:path}", retrieve_model, "models:read", _RETRIEVE_MODEL),
        ],
    )


def _model_object(service: Service, model: ServedModel) -> Model:
    # Of the bare engine, as for requests; what speech adds to live conversations is in `antiphon`.
    capabilities = model.engine.capabilities
    modalities = _input_modalities(capabilities)
    output_modalities = ["text", *(["audio"] if capabilities.audio_out else [])] if model.answers else ["embeddings"]
    window = UNSET if capabilities.context_window is None else capabilities.context_window
    return Model(
        id=model.name,
        object="model",
        created=model.created_at,
        owned_by="antiphon",
        input_modalities=modalities,
        architecture=Architecture(modalities, output_modalities),
        context_length=window,
        max_model_len=window,
        antiphon=_details(service, model),
    )


def _details(service: Service, model: ServedModel) -> ModelDetails:
    # MiniCPM-o's full duplex takes another engine than Realtime, and what each can do differs.
    live, duplex = model.live_engine.capabilities, model.duplex_engine.capabilities
    kinds = {
        "responses": model.answers,
        "realtime": model.answers and live.listens,
        "chat": model.answers,
        "audio": duplex.full_duplex,
        "video": duplex.full_duplex,
    }
    return ModelDetails(
        engine=model.engine_name,
        state="unavailable" if service.registry.is_unavailable(model) else "ready",
        abilities=model.engine.capabilities,
        context_window=model.engine.capabilities.context_window,
        listens=model.answers and live.listens,
        speaks=model.answers and live.audio_out,
        voices=live.voices,
        languages=live.languages,
        kinds=tuple(kind for kind in get_args(ConversationKind) if kinds[kind]),
    )


def _route_object(name: str, created_at: int) -> Model:
    """A name for which the server chooses a model, so that what it reads depends on the request."""
    details = ModelDetails(engine=None, state="ready", abilities=None, kinds=("responses",))
    return Model(name, "model", created_at, "antiphon", ["text"], Architecture(["text"], ["text"]), antiphon=details)


def _input_modalities(capabilities: Capabilities) -> list[str]:
    kinds = {
        "image": capabilities.images,
        "file": capabilities.files,
        "audio": capabilities.audio_in or capabilities.listens,
        "video": capabilities.videos or capabilities.sees,
    }
    return ["text", *(kind for kind, is_read in kinds.items() if is_read)]


def _model_info(model: ServedModel) -> ModelInfo:
    return _named_info(model.name, model.created_at, model.engine.capabilities.context_window)


def _named_info(name: str, created_at: int, window: int | None = None) -> ModelInfo:
    time = datetime.datetime.fromtimestamp(created_at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelInfo(id=name, display_name=name, created_at=time, max_input_tokens=window, max_tokens=window)


def _page(request: Request, models: Sequence[ModelInfo]) -> ModelInfoList:
    query = request.query_params
    limit = page_limit(query, DEFAULT_PAGE, MAX_PAGE)
    names = [model.id for model in models]
    # Models, "List": `has_more` is about the direction of the page.
    has_more = False
    if (before := query.get("before_id")) is not None:
        end = _position(names, before, "before_id")
        start = max(0, end - limit)
        has_more = start > 0
    else:
        after = query.get("after_id")
        start = 0 if after is None else _position(names, after, "after_id") + 1
        end = start + limit
        has_more = end < len(names)
    page = [*models[start:end]]
    return ModelInfoList(data=page, has_more=has_more, first_id=page[0].id if page else None, last_id=page[-1].id if page else None)


def _position(names: Sequence[str], name: str, param: str) -> int:
    if name not in names:
        error = unknown_cursor("Model", name)
        error.param = param
        raise error
    return names.index(name)
