"""How the short dialect tells of calls and failures: in its stream, in a whole answer, and in one that is retrieved."""

import json

import pytest
from msgspec import structs

from antiphon.wire.codec.types import Extra, Unknown, encode
from antiphon.wire.responses import events
from antiphon.wire.responses.profiles import ENCODERS
from antiphon.wire.responses.response import Response, ResponseError
from support.wire.our_samples import samples

EUGPT = ENCODERS["eugpt"]
RESPONSE = structs.replace(next(iter(samples(Response))), status="completed", error=None, incomplete_details=None, output=[], tools=[])
BASE64 = "aGVsbG8="
PICTURE, FILE = (f"(a {word} of 8 characters, left out)" for word in ("picture", "file"))
CHINESE = "工具的结果里没有空格" * 500
COMPACT = json.dumps({"rows": list(range(3000))}, separators=(",", ":"))
MCP = {"type": "mcp_call", "id": "mcp_1", "name": "add", "server_label": "calc", "arguments": "{}", "status": "completed"}
APPROVAL = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "add", "server_label": "calc", "arguments": "{}"}


def streamed(*written):
    body = bytearray()
    EUGPT.stream().encode_sse_into(written, body)
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().splitlines() if line.startswith("data: ")]


def item_events(index, item):
    yield events.OutputItemAdded(sequence_number=0, output_index=index, item=item)
    if item.type == "mcp_call":
        arguments = dict(item.extra)["arguments"]
        yield events.McpCallArgumentsDone(sequence_number=0, output_index=index, item_id="mcp_1", arguments=arguments)
    yield events.OutputItemDone(sequence_number=0, output_index=index, item=item)


def told_calls(*items, tools=()):
    """The calls of a response with these items, which its stream, its whole answer and the stored one must tell alike."""
    output = [Unknown(extra=Extra(item)) for item in items]
    response = structs.replace(RESPONSE, output=output, tools=list(tools))
    each_item = (event for index, item in enumerate(output) for event in item_events(index, item))
    start = events.ResponseCreated(sequence_number=0, response=structs.replace(response, output=[]))
    *got, end = streamed(start, *each_item, events.ResponseCompleted(sequence_number=0, response=response))
    calls = end["response"]["tool_calls"]
    assert [event["item"] for event in got if event["type"] == "response.output_item.done"] == [
        {"type": "function_call"} | call for call in calls
    ]
    for whole in (EUGPT.encode_response(response), EUGPT.encode_body(encode(response))):
        assert json.loads(whole)["tool_calls"] == calls
    return calls


NESTED = ["[" * depth + "]" * depth for depth in (300, 600, 5000)]


@pytest.mark.parametrize(
    "text", [CHINESE, COMPACT, "x" * 10_000, "data: 1\n\ndata: 2\n\n", *NESTED, '{"a":"' + CHINESE + '"}', "{]", "[1e999]"]
)
def test_a_text_is_never_taken_for_a_file(text):
    arguments = json.dumps({"text": text}, separators=(",", ":"), ensure_ascii=False)
    [call] = told_calls(MCP | {"output": text, "arguments": arguments})
    assert (call["output"], call["arguments"]) == (text, arguments)
    [call] = told_calls({"type": "web_search_call", "id": "ws_1", "status": "completed", "results": [], "action": {"query": text}})
    assert json.loads(call["arguments"]) == {"query": text}


def test_arguments_keep_their_files():
    arguments = json.dumps({"picture": f"data:image/png;base64,{BASE64}"})
    [call] = told_calls(MCP | {"output": "", "arguments": arguments})
    assert call["arguments"] == arguments


@pytest.mark.parametrize("result", [BASE64, BASE64 * 1000])
def test_a_generated_picture_is_left_out_however_small_it_is(result):
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": result, "revised_prompt": "A cat"}
    [call] = told_calls(image)
    assert call["output"] == f"(a picture of {len(result)} characters, left out)"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (f"data:image/png;base64,{BASE64}", "(a picture of 30 characters, left out)"),
        ("data:text/plain,hello", "(a file of 21 characters, left out)"),
        (
            [{"type": "text", "text": "Here:"}, {"type": "image", "mimeType": "image/png", "data": BASE64}],
            [{"type": "text", "text": "Here:"}, {"type": "image", "mimeType": "image/png", "data": PICTURE}],
        ),
        ([{"type": "audio", "mimeType": "audio/wav", "data": BASE64}], [{"type": "audio", "mimeType": "audio/wav", "data": FILE}]),
        (
            {"type": "resource", "resource": {"uri": "f:/a", "blob": BASE64}},
            {"type": "resource", "resource": {"uri": "f:/a", "blob": FILE}},
        ),
        ([{"type": "input_file", "file_data": BASE64}], [{"type": "input_file", "file_data": FILE}]),
        (
            {"type": "base64", "media_type": "image/png", "data": BASE64},
            {"type": "base64", "media_type": "image/png", "data": PICTURE},
        ),
        (
            [
                {"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}"},
                {"type": "input_image", "image_url": "https://a/b.png"},
            ],
            [
                {"type": "input_image", "image_url": "(a picture of 30 characters, left out)"},
                {"type": "input_image", "image_url": "https://a/b.png"},
            ],
        ),
        ({"data": BASE64, "type": "row"}, {"data": BASE64, "type": "row"}),
    ],
)
def test_only_files_are_left_out(output, shown):
    outputs = [output] if isinstance(output, str) else [output, json.dumps(output)]  # as parts, and as a text that is their JSON
    for each in outputs:
        [call] = told_calls({"type": "some_call", "id": "sc_1", "status": "completed", "output": each})
        assert call["output"] == shown or json.loads(call["output"]) == shown


@pytest.mark.parametrize("notes", [None, b'{"rewrite":{"status":"failed"}}', b'{"failure":"of a newer server"}'])
def test_a_failure_without_a_note_is_told_by_what_the_response_says(notes):
    error = ResponseError(code="rate_limit_exceeded", message="Later. (busy)")
    body = encode(structs.replace(RESPONSE, status="failed", error=error))
    assert json.loads(EUGPT.encode_body(body, notes))["error"] == {"code": "rate_limit_exceeded", "message": "Later. (busy)"}
