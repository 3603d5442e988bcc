"""The options of the tool `image_generation`."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.config.tools.images import IMAGE_FIELDS, ImagesEntry
from antiphon.errors import ClientError
from antiphon.tools.image_generation.options import read_options, with_defaults
from antiphon.wire.responses.tools import decode_tool, encode_tool

URL = "http://127.0.0.1:1/v1"
ALL = ImagesEntry(model="picasso", base_url=URL, fields=IMAGE_FIELDS)
PLAIN = ImagesEntry(model="plain-*", base_url=URL, fields=(), edits=False)


def read(*entries, **fields):
    tool = decode_tool(json.dumps({"type": "image_generation", **fields}).encode(), "tools[3]")
    return read_options(tool, "tools[3]", entries or (ALL, PLAIN))


def test_fields_go_to_the_server_as_they_are():
    fields = {
        "background": "transparent",
        "complexity": "high",
        "input_fidelity": "low",
        "moderation": "low",
        "output_compression": 80,
        "output_format": "webp",
        "quality": "max",
        "size": "1536x864",
    }
    options = read(**fields, partial_images=3, action="edit", model="picasso")
    assert (options.model, options.fields, options.partial_images, options.action) == ("picasso", fields, 3, "edit")
    gif = {"output_format": "gif", "frame_count": 16, "frame_duration_ms": 655_350}
    assert read(**gif).fields == gif
    svg = {"output_format": "svg", "svg": {"model": "m", "reasoning": {"effort": "max"}}}
    assert read(**svg).fields == svg


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"partial_images": 4}, "partial_images"),
        ({"partial_images": -1}, "partial_images"),
        ({"output_compression": 101}, "output_compression"),
        ({"output_format": "bmp"}, "output_format"),
        ({"quality": "best"}, "quality"),
        ({"background": "red"}, "background"),
        ({"moderation": "none"}, "moderation"),
        ({"action": "draw"}, "action"),
        ({"complexity": "max"}, "complexity"),
        ({"input_fidelity": "auto"}, "input_fidelity"),
        ({"model": "rembrandt"}, "model"),
        ({"model": 3}, "model"),
        ({"size": "big"}, "size"),
        ({"size": "0x10"}, "size"),
        ({"size": "1024x1024\n"}, "size"),
        ({"background": "transparent", "output_format": "jpeg"}, "background"),
        ({"background": "transparent", "output_format": "gif"}, "background"),
        ({"output_format": "gif", "partial_images": 1}, "partial_images"),
        ({"output_format": "gif", "output_compression": 50}, "output_compression"),
        ({"output_format": "gif", "input_image_mask": {"file_id": "file-1"}}, "input_image_mask"),
        ({"output_format": "svg", "partial_images": 1}, "partial_images"),
        ({"output_compression": 50}, "output_compression"),
        ({"frame_count": 3}, "frame_count"),
        ({"output_format": "gif", "frame_count": 1}, "frame_count"),
        ({"output_format": "gif", "frame_count": 17}, "frame_count"),
        ({"output_format": "gif", "frame_duration_ms": 0}, "frame_duration_ms"),
        ({"output_format": "gif", "frame_duration_ms": 700_000}, "frame_duration_ms"),
        ({"frame_duration_ms": 10}, "frame_duration_ms"),
        ({"svg": {}}, "svg"),
        ({"output_format": "svg", "svg": {"reasoning": {"effort": "much"}}}, "svg.reasoning.effort"),
        ({"input_image_mask": {}}, "input_image_mask"),
        ({"input_image_mask": {"file_id": "file-1", "image_url": "x"}}, "input_image_mask"),
        ({"input_image_mask": {"file_id": "file-1"}, "action": "generate"}, "input_image_mask"),
    ],
)
def test_wrong_options_are_refused_by_their_field(fields, param):
    with pytest.raises(ClientError) as caught:
        read(**fields)
    assert caught.value.param == f"tools[3].{param}"
    assert caught.value.code and caught.value.status == 400


def test_a_server_gets_the_fields_that_it_takes_and_hints_are_left_out():
    options = read(
        PLAIN, model="plain-1", quality="high", moderation="low", input_fidelity="high", partial_images=2, background="auto", size="auto"
    )
    assert (options.model, options.fields, options.partial_images) == ("plain-1", {}, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"background": "transparent"},
        {"output_format": "webp"},
        {"size": "10x10"},
        {"action": "edit"},
        {"input_image_mask": {"file_id": "file-1"}},
    ],
)
def test_what_a_server_cannot_do_is_refused_where_the_picture_would_be_another(fields):
    with pytest.raises(ClientError) as caught:
        read(PLAIN, **fields)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", f"tools[3].{next(iter(fields))}")


def test_the_first_server_answers_requests_without_a_model():
    assert read().entry is ALL
    assert read(model="plain-xl").entry is PLAIN
    named = ImagesEntry(model="a", upstream_model="b", base_url=URL)
    assert read(named, model="a").model == "b"
    with pytest.raises(ClientError, match=r"'picasso' and 'plain-\*'"):
        read(model="x")


def test_the_tool_is_shown_with_its_defaults():
    tool = decode_tool(b'{"type": "image_generation", "output_format": "webp", "size": null}')
    assert with_defaults(tool) == {
        "type": "image_generation",
        "background": "auto",
        "moderation": "auto",
        "n": 1,
        "output_compression": 100,
        "output_format": "webp",
        "quality": "auto",
        "size": "auto",
    }


JSON = st.none() | st.booleans() | st.integers(-5, 700_000) | st.sampled_from(["auto", "png", "gif", "svg", "edit", "low", "9x9", "x"])


@given(st.dictionaries(st.sampled_from([*IMAGE_FIELDS, "action", "input_image_mask", "model", "x"]), JSON | st.just({})))
def test_any_options_are_read_or_refused_by_their_field(fields):
    try:
        options = read(**fields)
    except ClientError as error:
        assert error.param is not None and error.param.startswith("tools[3]")
    else:
        assert options.fields.keys() <= set(IMAGE_FIELDS)
        assert encode_tool(decode_tool(json.dumps({"type": "image_generation", **fields}).encode()))
