"""Everything that openai-python has a type for is read, and written again as it was."""

import json
from typing import Any, get_args

import openai.types.responses as original
import pytest
from openai.types.responses import response_create_params, response_output_text

from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import Unknown, encode
from antiphon.wire.responses import endpoints
from antiphon.wire.responses.events import decode_event
from antiphon.wire.responses.items import decode_item
from antiphon.wire.responses.parts import Annotation
from antiphon.wire.responses.request import decode_request
from antiphon.wire.responses.response import decode_response
from antiphon.wire.responses.tools import decode_tool
from support.wire.openai_samples import samples

ITEM_LISTS = {"input", "instructions", "items", "data"}


def as_written(value: Any, within: str = "") -> Any:
    """A sample with the fields that are always encoded, though the sample may leave them out."""
    if isinstance(value, list):
        return [as_written(each, within) for each in value]
    if not isinstance(value, dict):
        return value
    value = {name: as_written(each, name) for name, each in value.items()}
    if within in ITEM_LISTS and value.get("type") is None and value.keys() & {"id", "content"}:
        value["type"] = "message" if "role" in value else "item_reference"
    if value.get("object") == "response" and value.get("reasoning") is not None:
        value["reasoning"] = {"effort": None, "summary": None} | value["reasoning"]
    return value


def members(union: Any) -> list[Any]:
    """The members of a union, however it is annotated."""
    return [
        member for each in get_args(union) for member in (members(each) or [each]) if member is not type(None) and isinstance(member, type)
    ]


def assert_survives(decode: Any, sample: Any, within: str = "") -> None:
    read = decode(json.dumps(sample).encode())
    assert not isinstance(read, Unknown)
    assert json.loads(encode(read)) == as_written(sample, within), sample


@pytest.mark.parametrize("kind", members(original.ResponseInputItem), ids=lambda kind: kind.__name__)
def test_an_input_item_survives(kind):
    for sample in samples(kind, True):
        assert_survives(decode_item, sample, "input")


@pytest.mark.parametrize("kind", members(original.ResponseOutputItem), ids=lambda kind: kind.__name__)
def test_an_output_item_survives(kind):
    for sample in samples(kind, True):
        assert_survives(decode_item, sample, "input")


@pytest.mark.parametrize("kind", members(original.ResponseItem), ids=lambda kind: kind.__name__)
def test_a_listed_item_survives(kind):
    for sample in samples(kind, True):
        assert_survives(decode_item, sample, "input")


@pytest.mark.parametrize("kind", members(original.Tool), ids=lambda kind: kind.__name__)
def test_a_tool_survives(kind):
    for sample in samples(kind, True):
        assert_survives(decode_tool, sample)


@pytest.mark.parametrize("kind", members(original.ResponseStreamEvent), ids=lambda kind: kind.__name__)
def test_a_stream_event_survives(kind):
    for sample in samples(kind, True):
        assert_survives(decode_event, sample)


def test_a_response_survives():
    for sample in samples(original.Response, True):
        assert_survives(decode_response, sample)


def test_every_way_of_choosing_a_tool_survives():
    for choice in samples(original.Response.model_fields["tool_choice"].annotation, True):
        read = decode_request(json.dumps({"tool_choice": choice}).encode())
        assert json.loads(encode(read)) == {"tool_choice": choice}


@pytest.mark.parametrize("kind", members(Annotation), ids=lambda kind: kind.__name__)
def test_every_annotation_has_an_original(kind):
    originals = members(response_output_text.Annotation)
    assert kind.__struct_config__.tag in {each.model_fields["type"].annotation.__args__[0] for each in originals}


def test_a_request_survives():
    for sample in samples(response_create_params.ResponseCreateParamsStreaming, True):
        assert_survives(decode_request, sample)


@pytest.mark.parametrize(
    ("ours", "original_kind"),
    [
        (endpoints.ItemList, original.ResponseItemList),
        (endpoints.InputTokensRequest, original.InputTokenCountParams),
        (endpoints.InputTokens, original.InputTokenCountResponse),
    ],
    ids=lambda kind: kind.__name__,
)
def test_what_other_endpoints_take_and_give_survives(ours, original_kind):
    nulls = not original_kind.__name__.endswith("Params")
    for sample in samples(original_kind, nulls):
        assert_survives(Reader(ours).read, sample)
