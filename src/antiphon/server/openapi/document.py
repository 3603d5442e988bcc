"""
`GET /openapi.json`: describes all routes, from the types that read and write their bodies.

Every route needs a row in `operations.OPERATIONS`; a test checks that.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from antiphon import __version__
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.openapi import operations as operations
from antiphon.server.openapi.operations import OPERATIONS, Error, Health, Operation
from antiphon.server.openapi.schemas import Schema, Schemas, build_schemas, reference
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.profiles import PROFILES, Profile

JSON_TYPE = "application/json"


def routes(service: Service, others: Sequence[Route]) -> list[Route]:
    """The route `/openapi.json`, which describes itself and `others`."""
    documents: dict[bool, bytes] = {}

    async def openapi(_request: Request) -> HttpResponse:
        is_open = service.keyring.is_open
        if is_open not in documents:
            profile = PROFILES[service.config.responses.profile]
            documents[is_open] = msgspec.json.encode(document([*others, own_route], profile, is_open=is_open))
        return HttpResponse(documents[is_open], media_type=JSON_TYPE)

    own_route = GuardedRoute("/openapi.json", openapi, service=service, access="public", methods=["GET"])
    return [own_route]


def document(all_routes: Iterable[Route], profile: Profile, *, is_open: bool) -> Schema:
    """
    The OpenAPI document.

    Args:
        all_routes: each must have a row in `OPERATIONS`.
        profile: how events are written.
        is_open: whether no key is needed.

    Raises:
        KeyError: a route has no row.
    """
    rows = {(method, path): (route, OPERATIONS[method, path]) for method, path, route in _operations(all_routes)}
    all_operations = [each for _, each in rows.values()]
    gives = {kind for each in all_operations for kind in (each.response_type, each.event_type) if _is_type(kind)} | {Error, Health}
    schemas = build_schemas([each.request_type for each in all_operations if each.request_type], list(gives), profile.event_names)
    writer = _DocumentWriter(schemas, profile, is_open=is_open, examples=_examples())
    paths: dict[str, Schema] = {}
    for (method, path), (route, row) in rows.items():
        paths.setdefault(path, {})[method.lower()] = writer.operation(path, route, row)
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "antiphon",
            "version": __version__,
            "description": "One self-hosted server for the conversation protocols that AI clients use, in front of any engine.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in operations.TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "headers": {
                name: {"description": each.description, "required": each.is_required, "schema": each.schema}
                for name, each in operations.HEADERS.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key of `antiphon keys create`."},
                "header": {"type": "apiKey", "in": "header", "name": "api-key", "description": "The same key, as Azure's clients send it."},
                "worker": {"type": "http", "scheme": "bearer", "description": "The key that workers join with."},
            },
        },
    }


def _operations(all_routes: Iterable[Route]) -> Iterator[tuple[str, str, Route]]:
    for route in all_routes:
        for method in sorted((route.methods or {"POST"}) - {"HEAD", "OPTIONS"}):
            yield method, re.sub(r":\w+}", "}", route.path), route


def _is_type(annotation: Any) -> bool:
    return annotation is not None and not isinstance(annotation, str)


def _examples() -> Any:
    """Examples by operation id: `request`s, `answers` and, for a stream, its `events`."""
    return msgspec.json.decode(files("antiphon.server.openapi").joinpath("examples.json").read_bytes())


class _DocumentWriter:
    """Writes operations."""

    def __init__(self, schemas: Schemas, profile: Profile, *, is_open: bool, examples: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._profile = profile
        self._is_open = is_open
        self._examples = examples

    def operation(self, path: str, route: Route, operation: Operation) -> Schema:
        """One route with one method."""
        scope = route.access if isinstance(route, GuardedRoute) and route.access not in ("probe", "public") else None
        path_parameters = [
            {"name": name, "in": "path", "required": True, "description": "Its id.", "schema": {"type": "string", "minLength": 1}}
            for name in re.findall(r"{(\w+)}", path)
        ]
        result: Schema = {
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            **({"description": operation.description} if operation.description else {}),
            "parameters": [*path_parameters, *operation.query],
            "responses": {str(status): answer for status, answer in self._responses(route, operation, scope)},
            "security": self._security(scope),
        }
        if operation.request_type is not None:
            examples = self._examples.get(operation.id, {}).get("request")
            content = {operation.request_media_type: self._media_type(operation.request_type, examples)}
            content |= {media_type: {"schema": {"type": "string"}} for media_type in operation.extra_request_media_types}
            result["requestBody"] = {"required": True, "content": content}
        return result

    def _security(self, scope: str | None) -> list[Schema]:
        if scope is None:
            return []
        if scope == "worker":
            return [{"worker": []}]
        return [{"bearer": [scope]}, {"header": [scope]}, *([{}] if self._is_open else [])]

    def _responses(self, route: Route, operation: Operation, scope: str | None) -> Iterator[tuple[int, Schema]]:
        if operation.response_type is not None:
            yield (
                operation.status,
                _response(operation.status, "As asked.", self._contents(operation), operation, scope) | _links(operation),
            )
        is_probe = isinstance(route, GuardedRoute) and route.access == "probe"
        common_errors = (
            operations.COMMON_ERRORS | ({} if is_probe else operations.GUARDED_ERRORS) | (operations.AUTHENTICATION_ERRORS if scope else {})
        )
        for status, when in sorted((common_errors | dict(operation.errors)).items()):
            is_health = operation.response_type is Health and status in operation.errors
            schema = {"anyOf": [reference("Health"), reference("Error")]} if is_health else reference("Error")
            yield (
                status,
                _response(status, when, {JSON_TYPE: {"schema": schema, **self._examples_for(operation, status)}}, operation, scope),
            )

    def _examples_for(self, operation: Operation, status: int) -> Schema:
        examples = self._examples.get(operation.id, {}).get("answers", {}).get(str(status)) or self._examples["errors"].get(str(status))
        return {"examples": _examples_by_name(examples)} if examples else {}

    def _contents(self, operation: Operation) -> Schema:
        contents: Schema = {}
        if _is_type(operation.response_type):
            contents[JSON_TYPE] = self._media_type(
                operation.response_type, self._examples.get(operation.id, {}).get("answers", {}).get("200")
            )
        for media_type in (
            *([] if _is_type(operation.response_type) else [operation.response_type]),
            *operation.extra_response_media_types,
        ):
            contents[media_type] = {"schema": {"type": "string"}}
        if operation.event_type is not None:
            contents["text/event-stream"] = self._event_stream(operation)
        return contents

    def _media_type(self, annotation: Any, examples: Mapping[str, Any] | None) -> Schema:
        return {"schema": self._schemas.by_type[annotation], **({"examples": _examples_by_name(examples)} if examples else {})}

    def _event_stream(self, operation: Operation) -> Schema:
        """An event stream, as OpenAPI 3.2 describes it: a schema for each event."""
        json: Schema = {"type": "string", "contentMediaType": JSON_TYPE, "contentSchema": self._schemas.by_type[operation.event_type]}
        fields: Schema = {"event": {"type": "string", "description": "The event's `type`."}, "data": json}
        required_fields = ["event", "data"]
        if self._profile.done_marker and operation.event_type is StreamEvent:
            fields["data"] = {"anyOf": [json, {"const": "[DONE]"}]}
            required_fields = ["data"]
        events = self._examples[operation.id]["events"]
        text = "".join(f"event: {event['type']}\ndata: {msgspec.json.encode(event).decode()}\n\n" for event in events)
        return {
            "itemSchema": {"type": "object", "required": required_fields, "properties": fields},
            "examples": {"text": {"summary": "In two pieces", "serializedValue": text}},
        }


def _examples_by_name(examples: Mapping[str, Any]) -> Schema:
    """Examples, named after their summaries."""
    return {re.sub(r"\W+", "_", summary.lower()): {"summary": summary, "value": value} for summary, value in examples.items()}


def _links(operation: Operation) -> Schema:
    links = {other: {"operationId": other, "parameters": {name: "$response.body#/id"}} for other, name in operation.links.items()}
    return {"links": links} if links else {}


def _response(status: int, description: str, content: Schema, operation: Operation, scope: str | None) -> Schema:
    headers = [
        name
        for name, header in operations.HEADERS.items()
        if status in (header.statuses or (status,))
        and header.operation_id in (None, operation.id)
        and (scope or not name.startswith("x-ratelimit"))
    ]
    return {
        "description": description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers},
        "content": content,
    }
