"""`GET /openapi.json`: describes all routes, from their operations and the types that read and write their bodies."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antiphon import __version__
from antiphon.offload import offload
from antiphon.runtime.service import Service
from antiphon.server.admin.health import Readiness
from antiphon.server.http.auth import Access, GuardedRoute
from antiphon.server.http.operation import FORM_MEDIA_TYPE, JSON_MEDIA_TYPE, JsonType, Operation
from antiphon.server.openapi.common import COMMON_HEADERS, KEYLESS, TAGS, Error, common_errors, common_headers
from antiphon.server.openapi.schemas import Schema, Schemas, build_schemas, reference
from antiphon.server.openapi.version_31 import to_version_31
from antiphon.server.openapi.webhooks import describe_webhooks
from antiphon.wire.http.webhooks import WebhookEvent
from antiphon.wire.responses.events import OriginalEvent
from antiphon.wire.responses.profiles import PROFILES, Profile


class Document(msgspec.Struct):
    """An OpenAPI document."""

    openapi: str
    info: Schema
    paths: Schema


class Examples(msgspec.Struct, frozen=True):
    """
    The examples of an operation.

    Attributes:
        request: bodies by their summary.
        answers: bodies by status and summary.
        events: of a stream.
    """

    request: Mapping[str, object] = {}
    answers: Mapping[str, Mapping[str, object]] = {}
    events: Sequence[Schema] = ()


_DOCUMENT = Operation("getDocument", "Server", "This document", Document)
_DOCUMENT_31 = Operation("getDocument31", "Server", "This document in OpenAPI 3.1, for generators of clients", Document)


def routes(service: Service, others: Sequence[GuardedRoute]) -> list[GuardedRoute]:
    """The routes of the document, which describes them and `others`."""
    # The first key changes `security`, so there are two at most of each version, each written when it is first asked for.
    documents: dict[tuple[bool, bool], bytes] = {}

    def write(is_open: bool, is_31: bool) -> bytes:
        profile = PROFILES[service.config.responses.profile]
        latest = document([*others, *own_routes], profile, is_open=is_open)
        return msgspec.json.encode(to_version_31(latest) if is_31 else latest)

    async def answer(is_31: bool) -> HttpResponse:
        key = (service.keyring.is_open, is_31)
        if key not in documents:
            documents[key] = await offload(_DOCUMENT_BYTES, write, *key)
        return HttpResponse(documents[key], media_type=JSON_MEDIA_TYPE)

    async def openapi(_request: Request) -> HttpResponse:
        return await answer(is_31=False)

    async def openapi_31(_request: Request) -> HttpResponse:
        return await answer(is_31=True)

    own_routes = [
        GuardedRoute("/openapi.json", openapi, service=service, access="public", operation=_DOCUMENT),
        GuardedRoute("/openapi-3.1.json", openapi_31, service=service, access="public", operation=_DOCUMENT_31),
    ]
    return own_routes


_DOCUMENT_BYTES = 2_000_000
"""Its size, roughly. It is written in a thread, as that takes a third of a second."""


def document(all_routes: Iterable[GuardedRoute], profile: Profile, *, is_open: bool) -> Schema:
    """
    The OpenAPI document.

    Args:
        profile: how events are written.
        is_open: whether no key is needed.
    """
    # The document is for anyone, so it names no model and no setting but the profile, in whose words events are described.
    operations = [route.operation for route in all_routes]
    request_types = [kind for each in operations for kind in (each.request_type, each.form_type) if kind is not None]
    response_types = [kind for each in operations for kind in (each.response_type, each.event_type) if kind is not None]
    error_types = [each.error_type for each in operations if each.error_type is not None]
    schemas = build_schemas(request_types, [*response_types, *error_types, Error, WebhookEvent], profile.event_names)
    writer = _DocumentWriter(schemas, profile, is_open=is_open)
    paths: dict[str, Schema] = {}
    for route in all_routes:
        # Starlette's converters, as in `{model:path}`, are no part of OpenAPI's paths.
        path = re.sub(r":\w+}", "}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = writer.describe(path, route)
    headers = COMMON_HEADERS | {name: header for each in operations for name, header in each.headers.items()}
    return {
        # Only 3.2 has schemas for the events of a stream, and defaults for unions that take unknown types (record 0012).
        "openapi": "3.2.0",
        "info": {
            "title": "antiphon",
            "version": __version__,
            "description": "One self-hosted server for the conversation protocols that AI clients use, in front of any engine. "
            "Generators of clients that don't read OpenAPI 3.2 take `/openapi-3.1.json`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "webhooks": describe_webhooks(),
        "components": {
            "schemas": schemas.components,
            "headers": {
                name: {"description": each.description, "required": each.is_required, "schema": each.schema}
                for name, each in headers.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key of `antiphon keys create`."},
                "header": {"type": "apiKey", "in": "header", "name": "api-key", "description": "The same key, as Azure's clients send it."},
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "antiphon_console_8642",
                    "description": "What `createConsoleKey` gives a browser, for this path only; the number is the port.",
                },
                "worker": {"type": "http", "scheme": "bearer", "description": "The key that workers join with."},
            },
        },
    }


_ANY_ID: Schema = {"type": "string", "minLength": 1}
_PATH_SCHEMAS: dict[str, Schema] = {"conversation_id": {"type": "string", "pattern": "^conv_"}}
"""Schemas of path parameters whose form is checked."""

_PATH_PARAMETERS = {
    ("assets", "name"): "The name of the file.",
    ("calls", "id"): "The id of the call, from `location`.",
    ("completions", "id"): "The id of the chat completion.",
    ("containers", "container_id"): "The id of the container.",
    ("conversations", "conversation_id"): "The id of the conversation.",
    ("file_batches", "batch_id"): "The id of the batch.",
    ("files", "file_id"): "The id of the file.",
    ("files", "name"): "The name of the file, with slashes where it lies in folders.",
    ("items", "item_id"): "The id of the item.",
    ("keys", "id"): "The id of the key, which is not its secret.",
    ("models", "model"): "The name of the model.",
    ("presets", "mode"): "The mode that the preset is listed under.",
    ("queue", "id"): "The id of the ticket.",
    ("ref_audio", "id"): "The id of the voice.",
    ("responses", "id"): "The id of the response.",
    ("sessions", "id"): "The id of the session.",
    ("vector_stores", "vector_store_id"): "The id of the vector store.",
    ("workers", "id"): "The id of the worker.",
    ("{mode}", "id"): "The id of the preset.",
}
"""What path parameters are, by the part of the path before them and their name."""


class _DocumentWriter:
    """Writes operations."""

    def __init__(self, schemas: Schemas, profile: Profile, *, is_open: bool) -> None:
        self._schemas = schemas
        self._profile = profile
        self._is_open = is_open
        self._examples = msgspec.json.decode(
            files("antiphon.server.openapi").joinpath("examples.json").read_bytes(), type=dict[str, Examples]
        )

    def describe(self, path: str, route: GuardedRoute) -> Schema:
        """A route as OpenAPI's Operation Object; `path` is the route's, without converters."""
        operation = route.operation
        path_parameters = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _PATH_PARAMETERS[folder, name],
                "schema": _PATH_SCHEMAS.get(name, _ANY_ID),
            }
            for folder, name in re.findall(r"([^/]+)/(?={(\w+)})", path)
        ]
        result: Schema = {
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            **({"description": operation.description} if operation.description else {}),
            "parameters": [*path_parameters, *({"in": "query", **parameter._asdict()} for parameter in operation.query)],
            "responses": {str(status): response for status, response in self._responses(route)},
            "security": self._security(route.access),
        }
        if operation.request_type is not None:
            media_type, *others = operation.request_media_types
            content = {media_type: self._media_type(operation.request_type, self._examples_of(operation).request)}
            content |= {other: {"schema": {"type": "string"}} for other in others}
            if operation.form_type is not None:
                content[FORM_MEDIA_TYPE] = self._media_type(operation.form_type, {})
            result["requestBody"] = {"required": True, "content": content}
        return result

    def _examples_of(self, operation: Operation) -> Examples:
        return self._examples.get(operation.id, Examples())

    def _security(self, access: Access) -> list[Schema]:
        if access in KEYLESS:
            return []
        if access == "worker":
            return [{"worker": []}]
        # OpenAPI, "Security Requirement Object": `{}` allows no key, which holds while the server needs none.
        if access == "console":
            return [{"bearer": []}, {"header": []}, {"cookie": []}, *([{}] if self._is_open else [])]
        return [{"bearer": [access]}, {"header": [access]}, *([{}] if self._is_open else [])]

    def _responses(self, route: GuardedRoute) -> Iterator[tuple[int, Schema]]:
        operation = route.operation
        if contents := self._contents(operation):
            yield operation.status, _response(operation.status, "The operation succeeded.", contents, route) | _links(operation)
        for status, when in sorted((common_errors(route.access) | dict(operation.errors)).items()):
            # One status, two bodies: a server that is not ready sends its readiness, one with too many connections an error.
            is_readiness = operation.response_type is Readiness and status in operation.errors
            error = reference("Error") if operation.error_type is None else self._schemas.by_type[operation.error_type]
            schema = {"anyOf": [reference("Readiness"), error]} if is_readiness else error
            examples = self._examples_of(operation).answers.get(str(status)) or self._examples["errors"].answers.get(str(status), {})
            yield status, _response(status, when, {JSON_MEDIA_TYPE: {"schema": schema, **_examples(examples)}}, route)

    def _contents(self, operation: Operation) -> Schema:
        contents: Schema = {media_type: {"schema": {"type": "string"}} for media_type in operation.media_types}
        if operation.response_type is not None:
            contents[JSON_MEDIA_TYPE] = self._media_type(operation.response_type, self._examples_of(operation).answers.get("200", {}))
        if operation.event_type is not None:
            describe = self._event_stream if operation.names_events else self._chunk_stream
            contents["text/event-stream"] = describe(operation.event_type, self._examples_of(operation).events)
        return contents

    def _media_type(self, kind: JsonType, examples: Mapping[str, object]) -> Schema:
        return {"schema": self._schemas.by_type[kind], **_examples(examples)}

    def _event_stream(self, event_type: JsonType, events: Sequence[Schema]) -> Schema:
        """An event stream, as OpenAPI 3.2 describes it: a schema for each event."""
        json: Schema = {"type": "string", "contentMediaType": JSON_MEDIA_TYPE, "contentSchema": self._schemas.by_type[event_type]}
        fields: Schema = {"event": {"type": "string", "description": "The event's `type`."}, "data": json}
        required_fields = ["event", "data"]
        if self._profile.done_marker and event_type is OriginalEvent:
            fields["data"] = {"anyOf": [json, {"const": "[DONE]"}]}
            required_fields = ["data"]  # `[DONE]` comes without an `event:` line
        text = "".join(f"event: {event['type']}\ndata: {msgspec.json.encode(event).decode()}\n\n" for event in events)
        return {
            "itemSchema": {"type": "object", "required": required_fields, "properties": fields},
            "examples": {"text": {"summary": "In two pieces", "serializedValue": text}},
        }

    def _chunk_stream(self, event_type: JsonType, events: Sequence[Schema]) -> Schema:
        """An event stream whose events have no names: chunks, an error if it fails, and the end."""
        chunk, error = (
            {"type": "string", "contentMediaType": JSON_MEDIA_TYPE, "contentSchema": schema}
            for schema in (self._schemas.by_type[event_type], reference("Error"))
        )
        text = "".join(f"data: {msgspec.json.encode(event).decode()}\n\n" for event in events) + "data: [DONE]\n\n"
        return {
            "itemSchema": {
                "type": "object",
                "required": ["data"],
                "properties": {"data": {"anyOf": [chunk, error, {"const": "[DONE]"}]}},
            },
            "examples": {"text": {"summary": "In two pieces", "serializedValue": text}},
        }


def _examples(examples: Mapping[str, object]) -> Schema:
    """Examples, named after their summaries."""
    by_name = {re.sub(r"\W+", "_", summary.lower()): {"summary": summary, "value": value} for summary, value in examples.items()}
    return {"examples": by_name} if by_name else {}


def _links(operation: Operation) -> Schema:
    links = {other: {"operationId": other, "parameters": {name: "$response.body#/id"}} for other, name in operation.links.items()}
    return {"links": links} if links else {}


def _response(status: int, description: str, content: Schema, route: GuardedRoute) -> Schema:
    headers = [*common_headers(route.access, status), *(route.operation.headers if status == route.operation.status else ())]
    return {
        "description": description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers},
        "content": content,
    }
