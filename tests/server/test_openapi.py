"""The description of the API is true: every route is in it, and what the server answers is what it says."""

import base64
import hashlib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema_rs
import pytest
from conftest import configured

from antiphon.runtime.service import Service
from antiphon.server.app import routes
from antiphon.server.openapi import OPERATIONS, document

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


def answered(base_url, method, path, body=None):
    """Status, headers and JSON of an answer."""
    payload = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base_url + path, payload, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


@pytest.fixture(scope="module")
def api(base_url):
    """The document that the server gives."""
    return json.loads(answered(base_url, "GET", "/openapi.json")[2])


def validator(api, schema):
    """Judges by a schema of the document, whose references lead into it."""
    return jsonschema_rs.Draft202012Validator({**schema, "components": api["components"]})


def test_every_route_is_described_and_every_description_has_its_route():
    service = Service(configured(Path("/nowhere"), {}, **{"store.url": "memory"}), print)
    described = document(routes(service))["paths"]
    assert {(method.upper(), path) for path, methods in described.items() for method in methods} == set(OPERATIONS)


def test_every_reference_leads_somewhere_and_no_schema_betrays_how_it_is_made(api):
    text = json.dumps(api)
    for kind, name in re.findall(r'"#/components/(\w+)/([\w-]+)"', text):
        assert name in api["components"][kind]
    assert "\\u007f" not in text
    assert "\\Z" not in text
    for schema in api["components"]["schemas"].values():
        validator(api, schema)


REQUESTS = [
    ("POST", "/v1/responses", {"input": "Hello"}),
    ("POST", "/v1/responses", {"input": [{"role": "user", "content": "weather"}], "tools": [WEATHER], "model": "parrot"}),
    ("POST", "/v1/responses", {"input": "think", "instructions": "Be brief.", "metadata": {"a": "b"}}),
    ("POST", "/v1/responses", {"input": "too long"}),
    ("POST", "/v1/responses", {"input": "break at once"}),
    ("POST", "/v1/responses", {"input": 7}),
    ("POST", "/v1/responses", {"model": "none", "input": "x"}),
    ("POST", "/v1/responses/input_tokens", {"input": "one two three"}),
    ("POST", "/v1/responses/input_tokens", {"input": []}),
    ("POST", "/v1/responses/resp_none/cancel", None),
    ("GET", "/v1/responses/resp_none", None),
    ("DELETE", "/v1/responses/resp_none", None),
    ("GET", "/v1/responses/resp_none/input_items?limit=200", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/parrot", None),
    ("GET", "/v1/models/none", None),
    ("GET", "/livez", None),
    ("GET", "/readyz", None),
    ("GET", "/health", None),
    ("GET", "/version", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_an_answer_is_as_described(base_url, api, method, path, body):
    status, headers, payload = answered(base_url, method, path, body)
    template = re.sub(r"/(resp_\w+|parrot|none)(?=/|$)", "/{id}" if "responses" in path else "/{model}", path.partition("?")[0])
    told = api["paths"][template][method.lower()]
    schema = told["responses"][str(status)]["content"]["application/json"]["schema"]
    validator(api, schema).validate(json.loads(payload))
    assert all(name in headers for name in told["responses"][str(status)]["headers"])
    if body is not None:
        asked = validator(api, told["requestBody"]["content"]["application/json"]["schema"])
        assert asked.is_valid(body) is not isinstance(body["input"], int)


def test_a_stored_response_and_its_items_are_as_described(base_url, api):
    _, _, made = answered(base_url, "POST", "/v1/responses", {"input": "Hello"})
    response_id = json.loads(made)["id"]
    for path, suffix in (("/v1/responses/{id}", ""), ("/v1/responses/{id}/input_items", "/input_items")):
        _, _, payload = answered(base_url, "GET", f"/v1/responses/{response_id}{suffix}")
        schema = api["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        validator(api, schema).validate(json.loads(payload))


def test_every_event_of_a_stream_is_as_described(base_url, api):
    schema = api["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]["text/event-stream"]["x-itemSchema"]
    judge = validator(api, schema)
    for question in ("Hi", "think", "weather", "two tools", "patch", "refuse", "break midway"):
        tools = [WEATHER, {"type": "function", "name": "get_time", "parameters": {}}, {"type": "custom", "name": "apply"}]
        _, _, payload = answered(base_url, "POST", "/v1/responses", {"input": question, "stream": True, "tools": tools})
        for line in payload.decode().splitlines():
            if line.startswith("data: "):
                judge.validate(json.loads(line.removeprefix("data: ")))


def test_items_of_unknown_types_are_allowed_but_known_ones_must_be_whole(api):
    judge = validator(api, {"$ref": "#/components/schemas/CreateRequest"})
    assert judge.is_valid({"input": [{"type": "from_the_future", "x": 1}]})
    assert judge.is_valid({"input": [{"role": "user", "content": "untyped"}], "unknown_field": True})
    assert not judge.is_valid({"input": [{"type": "function_call", "name": "x"}]})


def test_the_page_is_allowed_its_own_script_and_nothing_else(base_url):
    _, headers, payload = answered(base_url, "GET", "/docs")
    page = payload.decode()
    policy = headers["content-security-policy"]
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://|innerHTML|\son\w+=|src=", page)
