"""
`GET /openapi.json`: what each route takes and gives, from the types that read and write it.

Every route has a row in `OPERATIONS`; one without can't be described, and a test says so.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response as Reply
from starlette.routing import Route

from antiphon import __version__
from antiphon.runtime.service import Service
from antiphon.server.auth import GuardedRoute
from antiphon.wire.base import EXTRA_NAME, Nothing, Unknown
from antiphon.wire.responses_endpoints import InputTokens, InputTokensRequest, ItemList, ResponseDeleted
from antiphon.wire.responses_events import StreamEvent
from antiphon.wire.responses_items import ItemReference, Message
from antiphon.wire.responses_request import CreateRequest
from antiphon.wire.responses_response import Response

Schema = dict[str, Any]


class WhatWentWrong(msgspec.Struct):
    """An error; `param` is the path of the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    """The body of every answer that is an error."""

    error: WhatWentWrong


class Health(msgspec.Struct):
    """Whether the server lives, or takes work."""

    status: str


class Version(msgspec.Struct):
    """What the server is."""

    name: str
    version: str


class Model(msgspec.Struct):
    """A model that can be asked; `created` is in Unix seconds."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelList(msgspec.Struct):
    """The models that can be asked."""

    object: str
    data: list[Model]


class Operation(NamedTuple):
    """
    What a route does.

    Attributes:
        takes: the type of its body; None for none.
        gives: the type of its answer with status 200, or the media type where that is no JSON.
        streams: the type of each event where the answer may be a stream.
        refuses: statuses of its own with which it answers, and when.
        query: its parameters, as OpenAPI has them.
    """

    summary: str
    gives: Any
    takes: Any = None
    streams: Any = None
    refuses: Mapping[int, str] = {}
    query: Sequence[Schema] = ()


MALFORMED = "The request is malformed, or asks for what the model can't do; `param` says where."
UNREADY = {503: "No new work is taken."}
ASKED = {400: MALFORMED, 404: "There is no such model or item.", 413: "The body is over 32 MiB.", 502: "The engine failed."} | UNREADY
MISSING = {404: "There is no such response."}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/responses"): Operation("Answer, whole or as a stream of events", Response, CreateRequest, StreamEvent, ASKED),
    ("POST", "/v1/responses/input_tokens"): Operation("Count the tokens of an input", InputTokens, InputTokensRequest, refuses=ASKED),
    ("GET", "/v1/responses/{id}"): Operation("Retrieve a response", Response, refuses={400: MALFORMED} | MISSING),
    ("DELETE", "/v1/responses/{id}"): Operation("Delete a response", ResponseDeleted, refuses=MISSING),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "Cancel a response", Response, refuses={400: "It is none in the background."} | MISSING
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "List the items that a response was asked with",
        ItemList,
        refuses={400: MALFORMED} | MISSING,
        query=[
            {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}},
            {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"], "default": "desc"}},
            {"name": "after", "in": "query", "schema": {"type": "string"}},
        ],
    ),
    ("GET", "/v1/models"): Operation("List the models", ModelList),
    ("GET", "/v1/models/{model}"): Operation("Retrieve a model", Model, refuses={404: "There is no such model."}),
    ("GET", "/livez"): Operation("Whether the process lives", Health),
    ("GET", "/readyz"): Operation("Whether new work is taken", Health, refuses=UNREADY),
    ("GET", "/health"): Operation("The same as `/readyz`", Health, refuses=UNREADY),
    ("GET", "/version"): Operation("Name and version", Version),
    ("GET", "/metrics"): Operation("What is counted, for Prometheus", "text/plain"),
    ("GET", "/openapi.json"): Operation("This document", dict[str, Any]),
    ("GET", "/docs"): Operation("This document as a page", "text/html"),
}

REFUSES_ALL = {421: "The request is for another host.", 500: "A defect of the server."}
REFUSES_KEYS = {401: "The key is missing or wrong.", 403: "The key, or the page, may not do that.", 429: "The key's limits are reached."}

HEADERS = {
    "x-request-id": ("The request's id, which is in the server's log.", {"type": "string"}),
    "openai-processing-ms": ("Milliseconds until the answer began.", {"type": "integer"}),
    "openai-version": ("The version of the API.", {"type": "string"}),
}


def routes(service: Service, others: Sequence[Route]) -> list[Route]:
    """`/openapi.json`, which describes itself and `others`."""
    made: list[bytes] = []

    async def openapi(_request: Request) -> Reply:
        if not made:
            made.append(msgspec.json.encode(document([*others, described])))
        return Reply(made[0], media_type="application/json")

    described = GuardedRoute("/openapi.json", openapi, service=service, access="public", methods=["GET"])
    return [described]


def document(all_routes: Iterable[Route]) -> Schema:
    """
    The OpenAPI document of these routes.

    Raises:
        KeyError: one is not described.
    """
    operations = {(method, path): (route, OPERATIONS[method, path]) for method, path, route in _operations(all_routes)}
    kinds = {kind for _, told in operations.values() for kind in (told.takes, told.gives, told.streams) if _is_type(kind)} | {Error}
    schemas, components = _schemas(sorted(kinds, key=str))
    paths: dict[str, Schema] = {}
    for (method, path), (route, told) in operations.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, route, told, schemas)
    headers = {name: {"description": text, "schema": schema} for name, (text, schema) in HEADERS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "antiphon", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components, "headers": headers, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operations(all_routes: Iterable[Route]) -> Iterator[tuple[str, str, Route]]:
    for route in all_routes:
        for method in sorted((route.methods or {"POST"}) - {"HEAD", "OPTIONS"}):
            yield method, re.sub(r":\w+}", "}", route.path), route


def _operation(path: str, route: Route, told: Operation, schemas: Mapping[Any, Schema]) -> Schema:
    access = route.access if isinstance(route, GuardedRoute) else "public"
    needs_key = access not in ("probe", "public")
    refuses = dict(told.refuses) | ({} if access == "probe" else REFUSES_ALL) | (REFUSES_KEYS if needs_key else {403: REFUSES_KEYS[403]})
    in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", path)]
    answers = {200: _answer("As asked.", _contents(told, schemas))}
    for status, when in sorted(refuses.items()):
        kind = Health if told.gives is Health and status == 503 else Error
        answers[status] = _answer(when, {"application/json": {"schema": schemas[kind]}})
    described: Schema = {
        "summary": told.summary,
        "parameters": [*in_path, *told.query],
        "responses": {str(status): answer for status, answer in answers.items()},
        "security": [{"key": []}, {}] if needs_key else [],
    }
    if told.takes is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[told.takes]}}}
    return described


def _contents(told: Operation, schemas: Mapping[Any, Schema]) -> Schema:
    if not _is_type(told.gives):
        return {told.gives: {"schema": {"type": "string"}}}
    contents: Schema = {"application/json": {"schema": schemas[told.gives]}}
    if told.streams is not None:
        # OpenAPI 3.1 has no word for the schema of an event; 3.2 calls it so.
        contents["text/event-stream"] = {"schema": {"type": "string"}, "x-itemSchema": schemas[told.streams]}
    return contents


def _answer(when: str, content: Schema) -> Schema:
    return {
        "description": when,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS},
        "content": content,
    }


def _is_type(kind: Any) -> bool:
    return kind is not None and not isinstance(kind, str)


# Schemas of wire types

_REF = "#/components/schemas/"
_OPEN, _NEVER = Unknown.__name__, Nothing.__name__
_UNTYPED = {Message.__name__, ItemReference.__name__}
"""Types that are known for what they are without their `type`."""


def _schemas(kinds: Sequence[Any]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    made, components = msgspec.json.schema_components(kinds, schema_hook=lambda _kind: {"type": "object"}, ref_template=_REF + "{name}")
    named = {name: _cleaned(schema) for name, schema in components.items() if name not in (_OPEN, _NEVER)}
    for name in _UNTYPED & named.keys():
        named[name]["required"].remove("type")
    return {kind: _cleaned(schema) for kind, schema in zip(kinds, made, strict=True)}, named


def _cleaned(node: Any) -> Any:
    """A schema as it holds on the wire: other fields are allowed, and where types may be unknown, any but the known ones."""
    if isinstance(node, list):
        return [_cleaned(each) for each in node]
    if isinstance(node, str):
        return node.replace(r"\Z", "$")
    if not isinstance(node, dict):
        return node
    cleaned = {key: _cleaned(value) for key, value in node.items()}
    if EXTRA_NAME in cleaned.get("properties", ()):
        del cleaned["properties"][EXTRA_NAME], cleaned["additionalProperties"]
    if "anyOf" in cleaned:
        return _alternatives(cleaned)
    return cleaned


def _alternatives(schema: Schema) -> Schema:
    names = [each.get("$ref", "").removeprefix(_REF) for each in schema["anyOf"]]
    known = [tag for tag in schema.get("discriminator", {}).get("mapping", {}) if not tag.startswith(EXTRA_NAME[0])]
    schema["anyOf"] = [each for each, name in zip(schema["anyOf"], names, strict=True) if name not in (_OPEN, _NEVER)]
    if _OPEN in names:
        of_another_type = {"type": "string", "not": {"enum": known}}
        schema["anyOf"].append({"type": "object", "properties": {"type": of_another_type}, "required": ["type"]})
    if _OPEN in names or _NEVER in names:
        schema.pop("discriminator", None)
    return schema["anyOf"][0] if len(schema["anyOf"]) == 1 else schema
