"""The tool `image_generation` in front of a server with the Images API."""

import asyncio
import contextlib
import json

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings, strategies as st

from antiphon.config.tools.images import ImagesEntry
from antiphon.engine_api.events import HostedToolDone, HostedToolProgress, HostedToolStarted
from antiphon.errors import ClientError, ServerError
from antiphon.tool_api import ImageTokens, ServerToolCall
from antiphon.tools.base import ToolContext
from antiphon.tools.image_generation.tool import ImageGeneration
from antiphon.tools.toolbox import Toolbox, ToolLimits
from antiphon.wire.responses.items import decode_item
from antiphon.wire.responses.tools import decode_tool
from support.speech.running import run
from support.tools.images_server import ImagesServer, b64, data_url, images_server, picture, png, stream

FILES = {"file-mask": png(4, 3, 0), "file-a": png(shade=1), "file-text": b"text"}


async def read_file(tenant, file_id, param):
    if tenant != "t" or file_id not in FILES:
        raise ClientError(f"No such File object: {file_id}", param=param, status=404)
    return FILES[file_id]


async def fetch(url, param, _types):
    if url == "https://a.example/cat.png":
        return png(shade=2), "image/png"
    raise ClientError(f"Failed to download '{param}': it is not public.", code="invalid_url", param=param)


class Talk:
    """The tool of one response, and what it says."""

    def __init__(self, tool, server):
        self.tool = tool
        self.server: ImagesServer = server
        self.events = []

    async def call(self, arguments=None, **more):
        self.events.clear()
        text = json.dumps({"prompt": "a cat", **more}) if arguments is None else arguments
        self.output = await self.tool.run(
            ServerToolCall(response_id="resp_1", call_id="call_1", name="image_generation", arguments=text), self.events.append
        )
        return self.output.parts[0].text

    @property
    def names(self):
        return [
            {HostedToolStarted: "added", HostedToolDone: "done"}.get(type(event))
            or event.event["type"].removeprefix("response.image_generation_call.")
            for event in self.events
        ]

    @property
    def item(self):
        (done,) = [event.item for event in self.events if isinstance(event, HostedToolDone)]
        return done


def message(*parts):
    return {"type": "message", "role": "user", "content": [*parts]}


@contextlib.asynccontextmanager
async def talking(conversation=(), *, entry=None, **tool):
    async with images_server() as server:
        settings = {"model": "picasso", "base_url": server.base_url, "key_env": "KEY", **(entry or {})}
        kind = ImageGeneration([ImagesEntry(**settings)], {"KEY": "sesame "}, read_file, fetch)
        items = [decode_item(json.dumps(each).encode()) for each in conversation]
        context = ToolContext(response_id="resp_1", tenant="t", model="m", items=items)
        given = decode_tool(json.dumps({"type": "image_generation", **tool}).encode())
        try:
            opened = kind.open([("tools[0]", given)], context)
            if opened.must_prepare:
                await opened.prepare(lambda _event: None)
            yield Talk(opened, server)
        finally:
            await kind.close()


def scenario(test):
    """A test whose function is asynchronous."""
    return lambda: run(test())


@scenario
async def test_a_picture_is_made_and_told_as_the_original_tells_it():
    async with talking(quality="high") as talk:
        assert "4x3, png" in await talk.call()
        assert talk.names == ["added", "in_progress", "generating", "completed", "done"]
        started, done = talk.events[0], talk.item
        assert started.item == {"id": done["id"], "type": "image_generation_call", "status": "in_progress"}
        assert done == {
            "id": started.item["id"],
            "type": "image_generation_call",
            "status": "completed",
            "action": "generate",
            "background": "opaque",
            "output_format": "png",
            "quality": "high",
            "size": "4x3",
            "result": b64(png()),
            "revised_prompt": "better a cat",
        }
        assert done["id"].startswith("ig_")
        assert talk.output.image_tokens == ImageTokens(input_image=10, input_text=20, output_image=35, output_text=5)
        assert talk.server.requests == [
            ("/v1/images/generations", {"model": "picasso", "prompt": "a cat", "n": 1, "quality": "high"}, []),
        ]
        assert talk.server.keys == ["Bearer sesame"]
        decode_item(msgspec.json.encode(done))


@scenario
async def test_partial_pictures_are_streamed():
    async with talking(partial_images=2) as talk:
        await talk.call()
        assert talk.names == ["added", "in_progress", "generating", "partial_image", "partial_image", "completed", "done"]
        partial = talk.events[4]
        assert isinstance(partial, HostedToolProgress)
        assert partial.event == {
            "type": "response.image_generation_call.partial_image",
            "item_id": talk.item["id"],
            "output_index": 0,
            "partial_image_b64": b64(png(shade=1)),
            "partial_image_index": 1,
            "background": "opaque",
            "output_format": "png",
            "quality": "high",
            "size": "4x3",
        }
        assert talk.output.image_tokens.output_image == 35


@scenario
async def test_a_server_may_send_more_or_fewer_partial_pictures_than_asked_for_or_none():
    async with talking(partial_images=2) as talk:

        async def many(request, fields):
            return await picture(request, fields | {"partial_images": 5})

        async def whole(request, fields):
            return await picture(request, fields | {"stream": False})

        talk.server.answer = many
        await talk.call()
        assert talk.names.count("partial_image") == 2
        talk.server.answer = whole
        await talk.call()
        assert talk.names.count("partial_image") == 0 and talk.item["status"] == "completed"


@scenario
async def test_pictures_of_the_conversation_are_changed_in_their_order():
    conversation = [
        message({"type": "input_image", "image_url": data_url(png(shade=3))}, {"type": "input_text", "text": "this"}),
        message({"type": "input_image", "file_id": "file-a"}, {"type": "input_image", "image_url": "https://a.example/cat.png"}),
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": b64(png(shade=4))},
        {"type": "image_generation_call", "id": "ig_2", "status": "failed", "result": None},
    ]
    async with talking(conversation, input_fidelity="low", partial_images=1) as talk:
        await talk.call(action="edit")
        path, fields, files = talk.server.requests[0]
        assert path == "/v1/images/edits"
        expected = {"model": "picasso", "prompt": "a cat", "n": "1", "input_fidelity": "low", "stream": "true", "partial_images": "1"}
        assert fields == expected
        shades = (3, 1, 2, 4)
        assert files == [("image[]", f"image_{index}.png", png(shade=shade)) for index, shade in enumerate(shades)]
        assert talk.item["action"] == "edit" and talk.names[3] == "partial_image"
        await talk.call(action="edit")
        assert talk.server.requests[1][2][-1][2] == png()  # what was made in this response
        await talk.call()
        assert talk.server.requests[2][0] == "/v1/images/generations"
        assert "input_fidelity" not in talk.server.requests[2][1]


@scenario
async def test_at_most_sixteen_pictures_are_changed_at_once():
    pictures = [message({"type": "input_image", "image_url": data_url(png(shade=shade))}) for shade in range(20)]
    async with talking(pictures, action="edit") as talk:
        await talk.call()
        assert [content for *_, content in talk.server.requests[0][2]] == [png(shade=shade) for shade in range(4, 20)]


@pytest.mark.parametrize("mask", [{"file_id": "file-mask"}, {"image_url": data_url(png(4, 3, 0))}, {"image_url": b64(png(4, 3, 0))}])
def test_a_mask_says_where_a_picture_may_change(mask):
    async def test():
        conversation = [message({"type": "input_image", "file_id": "file-a"})]
        async with talking(conversation, input_image_mask=mask) as talk:
            assert "action" not in talk.tool.functions[0].parameters["properties"]
            await talk.call()
            path, _, files = talk.server.requests[0]
            assert path == "/v1/images/edits"
            assert files == [("image", "image_0.png", png(shade=1)), ("mask", "mask.png", png(4, 3, 0))]

    run(test())


@pytest.mark.parametrize(
    ("mask", "param"),
    [
        ({"file_id": "file-none"}, "input_image_mask.file_id"),
        ({"file_id": "file-text"}, "input_image_mask"),
        ({"image_url": "data:image/png,raw"}, "input_image_mask.image_url"),
        ({"image_url": "https://b.example/x"}, "input_image_mask.image_url"),
    ],
)
def test_a_mask_that_cannot_be_read_is_an_error_of_the_request(mask, param):
    async def test():
        with pytest.raises(ClientError) as caught:
            async with talking(input_image_mask=mask):
                pass
        assert caught.value.param == f"tools[0].{param}"

    run(test())


@scenario
async def test_the_model_chooses_the_action_only_where_the_request_leaves_it_open():
    async with talking() as talk:
        assert talk.tool.functions[0].parameters["properties"]["action"]["enum"] == ["generate", "edit"]
        assert await talk.call(action="edit") == "There is no picture in the conversation that could be changed."
        assert talk.events == []
    async with talking(action="generate") as talk:
        assert "action" not in talk.tool.functions[0].parameters["properties"]
        await talk.call(action="edit")
        assert talk.item["action"] == "generate"
    conversation = [message({"type": "input_image", "file_id": "file-a"})]
    async with talking(conversation, entry={"edits": False}) as talk:
        assert "action" not in talk.tool.functions[0].parameters["properties"]
        assert await talk.call(action="edit") == "Pictures can't be changed here; a new one can be made."
        assert (talk.events, talk.server.requests) == ([], [])


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", '{"prompt": ""}', '{"prompt": 1}', '{"x": 1}', '{"prompt": "a", "action": "draw"}', "[" * 5000]
)
def test_wrong_arguments_are_told_to_the_model_alone(arguments):
    async def test():
        async with talking() as talk:
            assert (await talk.call(arguments)).startswith("The arguments are wrong: ")
            assert talk.events == [] and talk.server.requests == []

    run(test())


def answering(*, status=200, **body):
    async def answer(_request, _fields):
        return web.json_response(body, status=status)

    return answer


async def not_json(_request, _fields):
    return web.Response(text="<html>oops at /srv/secret")


async def huge(_request, _fields):
    return web.json_response({"data": [{"b64_json": "A" * (3 << 20)}]})


async def cut_off(request, _fields):
    return await stream(request, [])


async def huge_event(request, _fields):
    return await stream(request, [{"type": "image_generation.partial_image", "b64_json": "A" * (3 << 20)}])


async def refusing_stream(request, _fields):
    return await stream(
        request, [{"type": "error", "error": {"code": "moderation_blocked", "message": "No.", "type": "image_generation_user_error"}}]
    )


async def redirect(_request, _fields):
    raise web.HTTPTemporaryRedirect("http://127.0.0.1:1/")


BLOCKED = {
    "code": "moderation_blocked",
    "message": "Your request was rejected.",
    "type": "image_generation_user_error",
    "param": "prompt",
    "moderation_details": {"categories": ["violence"], "moderation_stage": "input"},
}
FAILED = {"code": "server_error", "param": None, "type": "server_error"}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (answering(status=400, error=BLOCKED), BLOCKED),
        (refusing_stream, {"code": "moderation_blocked", "message": "No.", "type": "image_generation_user_error", "param": None}),
        (
            answering(status=401, error={"message": "key sk-secret of host x"}),
            FAILED
            | {
                "code": "upstream_credentials",
                "message": "The images server refused this server's credentials. Its operator has to fix this; you can't.",
            },
        ),
        (
            answering(status=429, error={"message": "slow down"}),
            FAILED
            | {
                "code": "rate_limit_exceeded",
                "type": "rate_limit_error",
                "message": "The images server takes no more requests at the moment.",
            },
        ),
        (answering(status=500, error={"message": "at /srv/x.py"}), FAILED | {"message": "The images server failed."}),
        (answering(status=404, error={"message": "no model x"}), FAILED | {"message": "The images server failed (404)."}),
        (redirect, FAILED | {"message": "The images server failed (307)."}),
        (not_json, FAILED | {"message": "The images server answered with something that is not of the Images API."}),
        (answering(data=[]), FAILED | {"message": "The images server answered without a picture."}),
        (answering(data=[{"b64_json": "no base64"}]), FAILED | {"message": "The images server answered with a picture that is no base64."}),
        (
            answering(data=[{"url": "https://b.example/x"}]),
            FAILED | {"message": "The images server answered with a picture that can't be downloaded."},
        ),
        (huge, FAILED | {"message": "The picture is larger than 1 MiB (tools.images.max_mib)."}),
        (huge_event, FAILED | {"message": "The picture is larger than 1 MiB (tools.images.max_mib)."}),
        (cut_off, FAILED | {"message": "The images server ended its answer before the picture was complete."}),
    ],
)
def test_a_failure_is_an_item_with_its_error_and_the_model_is_told(answer, error):
    async def test():
        async with talking(entry={"max_mib": 1}, partial_images=1) as talk:
            talk.server.answer = answer
            assert await talk.call() == f"There is no picture: {error['message']}"
            assert talk.names == ["added", "in_progress", "generating", "done"]
            item = talk.item
            assert (item["status"], item["result"], item["error"]) == ("failed", None, error)
            decode_item(msgspec.json.encode(item))

    run(test())


@scenario
async def test_a_server_that_is_not_there_or_too_slow_is_a_failure():
    never = asyncio.Event()

    async def hang(_request, _fields):
        await never.wait()

    async with talking(entry={"timeout_s": 0.05}) as talk:
        talk.server.answer = hang
        assert await talk.call() == "There is no picture: The picture took longer than 0.05 seconds (tools.images.timeout_s)."
        assert talk.item["error"]["code"] == "timeout"
    async with talking(entry={"base_url": "http://127.0.0.1:9/v1"}) as talk:
        assert "can't be reached" in await talk.call()
        assert "127.0.0.1" not in json.dumps(talk.item)


@scenario
async def test_pictures_come_by_url_too():
    async with talking(entry={"fields": ["response_format"]}) as talk:
        talk.server.answer = answering(data=[{"url": talk.server.base_url.replace("/v1", "/files/a.png")}])
        await talk.call()
        assert (talk.item["result"], talk.item["size"]) == (b64(png(7, 7)), "7x7")
        assert talk.server.requests[0][1]["response_format"] == "b64_json"
        talk.server.answer = answering(data=[{"url": "https://a.example/cat.png"}])
        await talk.call()
        assert talk.item["result"] == b64(png(shade=2))
        talk.server.answer = answering(data=[{"url": data_url(png(9, 9))}])
        await talk.call()
        assert talk.item["size"] == "9x9"


@scenario
async def test_a_picture_that_cannot_be_changed_is_told():
    conversation = [message({"type": "input_image", "file_id": "file-text"})]
    async with talking(conversation, action="edit") as talk:
        assert await talk.call() == "There is no picture: Invalid 'picture 1': only PNG, WebP and JPEG images can be changed."
        assert talk.item["status"] == "failed"
    conversation = [message({"type": "input_image", "file_id": "file-gone"})]
    async with talking(conversation, action="edit") as talk:
        assert "No such File object" in await talk.call()


@scenario
async def test_pictures_that_can_not_be_changed_are_left_out_and_told():
    gone = {"type": "input_image", "image_url": "https://a.example/gone.png"}
    gif = {"type": "input_image", "image_url": data_url(b"GIF89a" + bytes(20), "image/gif")}
    conversation = [message(gone, {"type": "input_image", "file_id": "file-a"}, gif)]
    async with talking(conversation, action="edit") as talk:
        told = await talk.call()
        assert told.startswith("The picture is made") and "2 of the conversation's pictures could not be used" in told
        ((path, _, files),) = talk.server.requests
        assert (path, len(files)) == ("/v1/images/edits", 1)
    mask = {"input_image_mask": {"file_id": "file-mask"}}
    async with talking(conversation, action="edit", **mask) as talk:
        assert (await talk.call()).startswith("There is no picture: Failed to download")


def test_a_request_has_one_such_tool():
    kind = ImageGeneration([ImagesEntry(model="m", base_url="http://127.0.0.1:9/v1")], {})
    tool = decode_tool(b'{"type": "image_generation"}')
    with pytest.raises(ClientError) as caught:
        kind.open([("tools[0]", tool), ("tools[4]", tool)], ToolContext(response_id="r", tenant="t", model="m"))
    assert caught.value.param == "tools[4]"


@scenario
async def test_a_call_that_the_toolbox_stops_is_a_failed_item():
    never = asyncio.Event()

    async def hang(_request, _fields):
        await never.wait()

    async with images_server() as server:
        server.answer = hang
        kind = ImageGeneration([ImagesEntry(model="m", base_url=server.base_url)], {})
        toolbox = Toolbox([kind], ToolLimits(call_s=0.05))
        tools = toolbox.open(
            [("tools[0]", decode_tool(b'{"type": "image_generation"}'))], ToolContext(response_id="r", tenant="t", model="m")
        )
        events = []
        call = ServerToolCall(response_id="r", call_id="c", name="image_generation", arguments='{"prompt": "x"}')
        await tools.run(call, events.append)
        assert events[-1].item["status"] == "failed"
        assert "tools.call_s" in events[-1].item["error"]["message"]
        decode_item(msgspec.json.encode(events[-1].item))
        await toolbox.close()


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["", "x", b64(png()), "data:,", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["data", "b64_json", "url", "error", "message", "code", "type", "usage", "size", "input_tokens_details"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.lists(st.tuples(ANY_JSON, st.sampled_from([200, 400, 403, 418, 500]), st.booleans()), min_size=1, max_size=10))
@settings(max_examples=10)
def test_any_answer_is_a_picture_or_a_failure(answers):
    async def test():
        async with talking(partial_images=1) as talk:
            for body, status, is_stream in answers:

                async def answer(_request, _fields, body=body, status=status, is_stream=is_stream):
                    text = json.dumps(body)
                    if is_stream:
                        return web.Response(text=f"data: {text}\n\n", content_type="text/event-stream")
                    return web.Response(text=text, status=status, content_type="application/json")

                talk.server.answer = answer
                await talk.call()
                assert talk.item["status"] in ("completed", "failed")
                decode_item(msgspec.json.encode(talk.item))

    run(test())


def test_a_key_that_cannot_be_sent_is_refused_at_the_start():
    with pytest.raises(ServerError, match="the key in KEY must be ASCII"):
        ImageGeneration([ImagesEntry(model="m", base_url="http://127.0.0.1:9/v1", key_env="KEY")], {"KEY": "a b"})
