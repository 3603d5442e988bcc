"""The OpenAPI document is true: it has every route, and describes the server's answers."""

import base64
import hashlib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema_rs
import openapi_spec_validator
import pytest
from openai.types import Model as TheirModel
from openai.types.chat import ChatCompletion
from openai.types.responses import Response as TheirResponse, ResponseItemList, ResponseStreamEvent
from openapi_schema_validator import OAS32Validator
from openapi_schema_validator._specifications import REGISTRY
from openapi_spec_validator.validation.keywords import OpenAPIV32SchemaValidator

from antiphon.config.webhooks import EVENTS, WebhookEntry
from antiphon.runtime.service import Service
from antiphon.runtime.webhooks.endpoint import WebhookEndpoint, new_test_delivery
from antiphon.runtime.webhooks.signing import new_secret, signed_headers
from antiphon.server.app import routes
from antiphon.server.openapi.document import document
from antiphon.wire.responses.profiles import PROFILES
from support.server.scripted_server import configured
from support.wire.adapters import adapter

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


ADDRESS = "urn:document"


class Api(dict):
    """
    A document.

    Attributes:
        registry: the document, prepared once for all schemas that refer to it.
    """

    def __init__(self, fields):
        super().__init__(fields)
        self.registry = jsonschema_rs.Registry([(ADDRESS, {"components": fields["components"]})])


@pytest.fixture(scope="module")
def api(base_url):
    """The document that the server gives."""
    return Api(json.loads(answered(base_url, "GET", "/openapi.json")[2]))


def validator(api, schema):
    """Judges by a schema of the document, whose references lead into it."""
    absolute = json.dumps(schema).replace('"#/components/', f'"{ADDRESS}#/components/')
    return jsonschema_rs.Draft202012Validator(json.loads(absolute), registry=api.registry)


def made(profile="openai", *, is_open=True):
    """The document of a server that does not run."""
    service = Service(configured(Path("/nowhere"), {}, **{"store.url": "memory"}), print)
    return document(routes(service), PROFILES[profile], is_open=is_open)


def test_every_route_is_described_and_every_description_has_its_route():
    described = made()["paths"]
    service = Service(configured(Path("/nowhere"), {}, **{"store.url": "memory"}), print)
    expected = {(route.method, route.path.replace(":path}", "}")): route.operation.id for route in routes(service)}
    assert {
        (method.upper(), path): told["operationId"] for path, methods in described.items() for method, told in methods.items()
    } == expected
    assert len(set(expected.values())) == len(expected)


def test_every_reference_leads_somewhere_and_no_schema_betrays_how_it_is_made(api):
    text = json.dumps(api)
    for kind, name in re.findall(r'"#/components/(\w+)/([\w-]+)"', text):
        assert name in api["components"][kind]
    assert "\\u007f" not in text
    assert "\\Z" not in text
    for schema in api["components"]["schemas"].values():
        validator(api, schema)


SCHEMAS = jsonschema_rs.Draft202012Validator(
    OAS32Validator.META_SCHEMA, registry=jsonschema_rs.Registry([(uri, REGISTRY.contents(uri)) for uri in REGISTRY])
)
"""Judges schemas by the rules of OpenAPI."""


class SchemaValidator(OpenAPIV32SchemaValidator):
    """Asks the compiled library about each schema: the other one takes three quarters of the time of the whole document."""

    def _get_schema_checker(self, _schema, _schema_value):
        return SCHEMAS.validate


class DocumentValidator(openapi_spec_validator.OpenAPIV32SpecValidator):
    keyword_validators = openapi_spec_validator.OpenAPIV32SpecValidator.keyword_validators | {"schema": SchemaValidator}


class DocumentValidator31(openapi_spec_validator.OpenAPIV31SpecValidator):
    keyword_validators = openapi_spec_validator.OpenAPIV31SpecValidator.keyword_validators | {"schema": SchemaValidator}


@pytest.mark.parametrize(
    "profile", [profile if profile == "openai" else pytest.param(profile, marks=pytest.mark.long) for profile in PROFILES]
)
def test_it_is_an_openapi_document(profile):
    openapi_spec_validator.validate(json.loads(json.dumps(made(profile))), cls=DocumentValidator)


@pytest.mark.parametrize("wrong", [{"type": "text"}, {"discriminator": 7}, {"minimum": "1"}])
def test_a_wrong_schema_within_another_is_seen(wrong):
    given = {"openapi": "3.2.0", "info": {"title": "x", "version": "1"}, "paths": {}}
    right = given | {"components": {"schemas": {"A": {"allOf": [{"properties": {"b": {"type": "string"}}}]}}}}
    openapi_spec_validator.validate(right, cls=DocumentValidator)
    right["components"]["schemas"]["A"]["allOf"][0]["properties"]["b"] |= wrong
    with pytest.raises(jsonschema_rs.ValidationError):
        openapi_spec_validator.validate(right, cls=DocumentValidator)


def test_a_key_is_said_to_be_needed_where_and_when_it_is():
    operations = {path: told.get("get") or told["post"] for path, told in made()["paths"].items()}
    assert operations["/v1/models"]["security"] == [{"bearer": ["models:read"]}, {"header": ["models:read"]}, {}]
    assert operations["/livez"]["security"] == []
    assert "401" in operations["/v1/models"]["responses"] and "401" not in operations["/version"]["responses"]
    assert {} not in made(is_open=False)["paths"]["/v1/models"]["get"]["security"]


def test_events_are_described_as_the_profile_writes_them():
    told = {profile: made(profile) for profile in PROFILES}
    names = {profile: set(each["components"]["schemas"]["StreamEvent"]["discriminator"]["mapping"]) for profile, each in told.items()}
    assert names["openai"] - names["open-responses"] == {"response.reasoning_text.delta", "response.reasoning_text.done"}
    assert names["open-responses"] - names["openai"] == {"response.reasoning.delta", "response.reasoning.done"}
    streams = {profile: json.dumps(each["paths"]["/v1/responses"]) for profile, each in told.items() if "/v1/responses" in each["paths"]}
    assert "[DONE]" in streams["open-responses"] and "[DONE]" not in streams["openai"]


def operations_of(api):
    return {told["operationId"]: told for methods in api["paths"].values() for told in methods.values()}


def test_every_example_is_one(api):
    count, wrong = 0, []
    for operation, told in operations_of(api).items():
        for place, content in {"request": told.get("requestBody", {}), **told["responses"]}.items():
            body = content.get("content", {}).get("application/json", {})
            judge = validator(api, body["schema"]) if body.get("examples") else None
            for name, example in body.get("examples", {}).items():
                count += 1
                wrong += [(operation, place, name, error.message) for error in judge.iter_errors(example["value"])]
    assert count > 300
    assert wrong == []


def test_the_official_types_read_the_examples(api):
    told = {name: each["responses"]["200"]["content"] for name, each in operations_of(api).items() if "200" in each["responses"]}
    theirs = {"createChatCompletion": ChatCompletion, "createResponse": TheirResponse, "getResponse": TheirResponse}
    theirs |= {"listInputItems": ResponseItemList, "retrieveModel": TheirModel}
    read = 0
    for name, kind in theirs.items():
        for example in told[name]["application/json"]["examples"].values():
            kind.model_validate(example["value"], strict=True)
            read += 1
    assert read == 6
    stream = told["createResponse"]["text/event-stream"]["examples"]["text"]["serializedValue"]
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    their_event = adapter(ResponseStreamEvent)
    judge = validator(api, {"$ref": "#/components/schemas/StreamEvent"})
    for number, event in enumerate(events):
        assert their_event.validate_python(event).sequence_number == number
        judge.validate(event)


@pytest.mark.parametrize("operation", ["createResponse", "countInputTokens"])
def test_every_example_of_a_request_can_be_sent(base_url, api, operation):
    path = {"createResponse": "/v1/responses", "countInputTokens": "/v1/responses/input_tokens"}[operation]
    for example in operations_of(api)[operation]["requestBody"]["content"]["application/json"]["examples"].values():
        assert answered(base_url, "POST", path, example["value"])[0] == 200, example


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
    always = {name for name, header in api["components"]["headers"].items() if header["required"]}
    assert all(name in headers for name in always & told["responses"][str(status)]["headers"].keys())
    if body is not None:
        asked = validator(api, told["requestBody"]["content"]["application/json"]["schema"])
        assert asked.is_valid(body) is (body["input"] not in (7, []))


def test_a_stored_response_and_its_items_are_as_described(base_url, api):
    _, _, made = answered(base_url, "POST", "/v1/responses", {"input": "Hello"})
    response_id = json.loads(made)["id"]
    for path, suffix in (("/v1/responses/{id}", ""), ("/v1/responses/{id}/input_items", "/input_items")):
        _, _, payload = answered(base_url, "GET", f"/v1/responses/{response_id}{suffix}")
        schema = api["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        validator(api, schema).validate(json.loads(payload))


def test_every_event_of_a_stream_is_as_described(base_url, api):
    item = api["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]["text/event-stream"]["itemSchema"]
    judge = validator(api, item["properties"]["data"]["contentSchema"])
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
    assert judge.is_valid({"input": [{"id": "msg_1"}]})
    assert not judge.is_valid({"input": [{"id": "msg_1", "role": "user"}]})


def test_a_null_is_allowed_where_it_stands_for_a_default(api):
    judge = validator(api, {"$ref": "#/components/schemas/CreateRequest"})
    image = {"type": "input_image", "image_url": "data:,", "detail": None}
    assert judge.is_valid({"input": [{"role": "user", "content": [image]}], "temperature": None})
    assert judge.is_valid({"input": "x", "tools": None})
    assert not judge.is_valid({"input": "x", "stream_options": {"include_obfuscation": None}})


def test_parts_of_messages_are_those_of_their_role(api):
    judge = validator(api, {"$ref": "#/components/schemas/Message"})
    said, asked = {"type": "output_text", "text": "x"}, {"type": "input_text", "text": "x"}
    assert judge.is_valid({"role": "assistant", "content": [said]}) and judge.is_valid({"role": "user", "content": [asked]})
    assert not judge.is_valid({"role": "assistant", "content": [asked]}) and not judge.is_valid({"role": "user", "content": [said]})


def test_a_request_needs_something_to_answer(api):
    judge = validator(api, {"$ref": "#/components/schemas/CreateRequest"})
    for nothing in ({}, {"model": "parrot"}, {"input": []}, {"instructions": ""}, {"previous_response_id": None}):
        assert not judge.is_valid(nothing), nothing
    for something in ({"input": ""}, {"instructions": "x"}, {"input": [], "previous_response_id": "resp_1"}):
        assert judge.is_valid(something), something


def test_the_form_for_a_containers_file_may_have_the_id_of_one_in_its_place(api):
    form = api["components"]["schemas"]["AddContainerFileForm"]
    assert set(form["properties"]) == {"file", "file_id"} and not form.get("required")


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


def test_the_webhooks_are_described_as_they_are_sent(api):
    endpoint = WebhookEndpoint(WebhookEntry(name="hook", url="https://example.com", secret=new_secret()), (bytes(32),))
    assert set(api["webhooks"]) == set(EVENTS)
    for event in EVENTS:
        operation = api["webhooks"][event]["post"]
        delivery = new_test_delivery(endpoint, event, 0)
        validator(api, operation["requestBody"]["content"]["application/json"]["schema"]).validate(json.loads(delivery.body))
        headers = signed_headers([bytes(32), bytes(24)], delivery.id, 5, delivery.body)
        for parameter in operation["parameters"]:
            validator(api, parameter["schema"]).validate(headers[parameter["name"]])


def test_generators_of_clients_get_a_document_in_openapi_31(base_url, api):
    plain = json.loads(answered(base_url, "GET", "/openapi-3.1.json")[2])
    openapi_spec_validator.validate(plain, cls=DocumentValidator31)
    assert plain["openapi"] == "3.1.1"
    operations = [
        {(path, method): told["operationId"] for path, methods in each["paths"].items() for method, told in methods.items()}
        for each in (plain, api)
    ]
    assert operations[0] == operations[1]
    fields = [{name: [*schema.get("properties", ())] for name, schema in each["components"]["schemas"].items()} for each in (plain, api)]
    fields[0]["Response"] = fields[0].pop("ResponseObject")
    assert fields[0] == fields[1]
    text = json.dumps(plain)
    assert not [word for word in ("itemSchema", "serializedValue", "defaultMapping", '/Response"') if word in text]
    stream = plain["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    assert stream == {"schema": {"$ref": "#/components/schemas/StreamEvent"}}
    examples = [each["paths"]["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]["examples"] for each in (plain, api)]
    assert examples[0] == examples[1]


def test_no_two_schemas_have_one_title(api):
    assert [name for name, schema in api["components"]["schemas"].items() if schema.get("title", name) != name] == []
