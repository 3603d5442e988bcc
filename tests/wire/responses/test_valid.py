"""Everything that we can write is valid to openai-python, strictly, and reads as what it was."""

import json
from typing import Any

import openai.types.responses as original
import pytest
from openai.types.responses.responses_client_event import ResponsesClientEvent

from antiphon.wire.responses.events import OriginalEvent, decode_event, encode_event
from antiphon.wire.responses.items import Item, decode_item, encode_item
from antiphon.wire.responses.request import CreateRequest, decode_request, encode_request
from antiphon.wire.responses.response import Response, decode_response, encode_response
from antiphon.wire.responses.tools import Tool, decode_tool, encode_tool
from support.wire.adapters import adapter
from support.wire.our_samples import alternatives, samples

ITEMS: Any = original.ResponseInputItem | original.ResponseItem | original.ResponseOutputItem
TOOLS: Any = original.Tool
EVENTS: Any = original.ResponseStreamEvent
REQUESTS: Any = ResponsesClientEvent


def each_of(union: Any) -> Any:
    return pytest.mark.parametrize("kind", alternatives(union), ids=lambda kind: kind.__name__)


@each_of(Item)
def test_an_item_is_valid(kind):
    for item in samples(kind):
        written = encode_item(item)
        adapter(ITEMS).validate_json(written, strict=True)
        assert decode_item(written) == item


@each_of(Tool)
def test_a_tool_is_valid(kind):
    for tool in samples(kind):
        written = encode_tool(tool)
        adapter(TOOLS).validate_json(written, strict=True)
        assert decode_tool(written) == tool


@each_of(OriginalEvent)
def test_a_stream_event_is_valid(kind):
    for event in samples(kind):
        written = encode_event(event)
        adapter(EVENTS).validate_json(written, strict=True)
        assert decode_event(written) == event


def test_a_request_is_valid():
    for request in samples(CreateRequest):
        if isinstance(request.instructions, list):
            continue  # the original only shows them so in a response
        written = encode_request(request)
        adapter(REQUESTS).validate_python({"type": "response.create"} | json.loads(written), strict=True)
        assert decode_request(written) == request


def test_a_response_is_valid():
    for response in samples(Response):
        written = encode_response(response)
        original.Response.model_validate_json(written, strict=True)
        assert decode_response(written) == response
