"""Requests that are passed on: unchanged but for what this server must decide itself."""

import asyncio
import json

import pytest

from antiphon.engine_api import commands
from antiphon.engines.chat.quirks import QUIRKS
from antiphon.engines.chat.relay_request import RELAY_BLOCKED_KEYS, relay_body
from antiphon.errors import ClientError

PNG = b"\x89PNG\r\n\x1a\n"


def sent(body, kind="openai", path="chat/completions", stream=False, pass_image_urls=False, fetched=None):
    """The body that the server gets."""

    async def fetch(url, param, types):
        if fetched is not None:
            fetched.append((url, param))
        return {"image/": (PNG, "image/png"), "video/": (b"film", "video/mp4"), "audio/": (b"wave", "audio/wav")}[types[0]]

    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    relay = commands.Relay(id="r", path=path, body=text, stream=stream)
    result, _ = asyncio.run(relay_body(relay, "upstream", QUIRKS[kind], fetch, pass_image_urls=pass_image_urls))
    return result


def content(part):
    return {"model": "m", "messages": [{"role": "user", "content": [part]}]}


def test_a_request_is_as_it_came_but_for_the_model():
    body = (
        b'{"zeta":1.0,"model":"asked","big":123456789012345678901234567890,"temperature":0.70,"nothing":null,'
        b'"messages":[{"role":"user","name":"ann","content":"h\\u00e9 \\ud83d\\ude00"}],"chat_template_kwargs":{"enable_thinking":false}}'
    )
    assert sent(body) == body.replace(b'"asked"', b'"upstream"')


SURVIVE = {
    "chat_template_kwargs": {"enable_thinking": True},
    "continue_final_message": True,
    "add_generation_prompt": False,
    "structured_outputs": {"choice": ["a", "b"]},
    "guided_json": {"type": "object"},
    "top_k": 3,
    "min_p": 0.1,
    "logit_bias": {"5": -100},
    "n": 3,
    "logprobs": True,
    "top_logprobs": 5,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": True}},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}}}],
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "prediction": {"type": "content", "content": "x"},
    "session_id": "s",
    "cache_salt": "s",
    "reasoning": {"effort": "low"},
    "thinking": {"type": "disabled"},
    "from_the_future": [{"deep": {"er": [1, None]}}],
}


@pytest.mark.parametrize("key", SURVIVE)
@pytest.mark.parametrize("kind", ["openai", "vllm", "generic"])
def test_every_field_reaches_the_server(key, kind):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], key: SURVIVE[key]}
    assert json.loads(sent(body, kind)) == body | {"model": "upstream"}


PARTS = {
    "cache_control": {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
    "url in a text": {"type": "text", "text": "see http://10.0.0.1/"},
    "sound": {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    "file": {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
    "data URL": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "original"}},
    "film": {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}, "fps": 2.0},
    "unknown": {"type": "hologram", "hologram": {"x": 1.0}},
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_part_reaches_the_server(part):
    assert json.loads(sent(content(part), "vllm")) == content(part) | {"model": "upstream"}


@pytest.mark.parametrize("key", sorted(RELAY_BLOCKED_KEYS))
def test_what_a_mapped_request_is_not_allowed_this_one_is_not_either(key):
    assert key not in json.loads(sent({"model": "m", "messages": [], key: "x"}))


def test_templates_are_code_and_stay_behind():
    body = {"model": "m", "messages": [], "chat_template_kwargs": {"chat_template": "x", "tokenize": 1, "thinking": True}}
    assert json.loads(sent(body))["chat_template_kwargs"] == {"thinking": True}


@pytest.mark.parametrize(
    ("part", "param", "inline"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x.example/a", "detail": "low"}}, "image_url", "data:image/png;base64,"),
        ({"type": "image_url", "image_url": "HTTPS://x.example/a"}, "image_url", "data:image/png;base64,"),
        ({"image_url": {"url": "http://x.example/a"}}, "image_url", "data:image/png;base64,"),
        ({"type": "input_image", "image_url": "http://x.example/a"}, "image_url", "data:image/png;base64,"),
        ({"type": "image", "image": "http://x.example/a"}, "image_url", "data:image/png;base64,"),
        ({"type": "video_url", "video_url": {"url": "http://x.example/a"}}, "video_url", "data:video/mp4;base64,"),
        ({"type": "audio_url", "audio_url": {"url": "http://x.example/a"}}, "audio_url", "data:audio/wav;base64,"),
    ],
)
def test_what_a_url_names_is_fetched_here(part, param, inline):
    fetched = []
    result = sent(content(part), "vllm", fetched=fetched)
    assert b"x.example" not in result and inline.encode() in result
    assert [name for _url, name in fetched] == [param]


def test_a_key_spelt_in_another_way_is_the_same_key():
    fetched = []
    result = sent(
        rb'{"messages":[{"role":"user","content":[{"type":"image_url","image\u005furl":{"\u0075rl":"http:\/\/10.0.0.1"}}]}]}',
        fetched=fetched,
    )
    assert fetched == [("http://10.0.0.1", "image_url")] and b"10.0.0.1" not in result


def test_a_server_that_fetches_images_itself_gets_their_urls():
    fetched = []
    body = {
        "messages": [{"role": "user", "content": [{"image_url": {"url": "https://x.example/a"}}, {"video_url": "https://x.example/b"}]}]
    }
    parts = json.loads(sent(body, fetched=fetched, pass_image_urls=True))["messages"][0]["content"]
    assert parts[0] == {"image_url": {"url": "https://x.example/a"}} and fetched == [("https://x.example/b", "video_url")]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "/etc/passwd", "gopher://10.0.0.1", ""])
def test_other_urls_are_refused_by_their_place(url):
    with pytest.raises(ClientError) as raised:
        sent(content({"type": "image_url", "image_url": {"url": url}}))
    assert (raised.value.status, raised.value.param) == (400, "messages[0].content[0].image_url")


def test_the_server_counts_for_us_whether_or_not_the_client_asked():
    assert json.loads(sent({"messages": []}, stream=True))["stream_options"] == {"include_usage": True}
    options = {"include_usage": False, "include_obfuscation": False}
    assert json.loads(sent({"stream_options": options}, stream=True))["stream_options"] == {**options, "include_usage": True}
    assert "stream_options" not in json.loads(sent({"messages": []}))


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("openai", {"max_tokens": 5}, {"max_completion_tokens": 5}),
        ("llamacpp", {"max_completion_tokens": 5}, {"max_tokens": 5}),
        ("llamacpp", {"max_completion_tokens": 5, "max_tokens": None}, {"max_tokens": 5}),
        ("llamacpp", {"max_completion_tokens": None}, {"max_completion_tokens": None}),
        ("openai", {"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 5, "max_completion_tokens": 6}),
    ],
)
def test_the_output_limit_has_the_name_that_the_server_knows(kind, given, expected):
    body = json.loads(sent(given, kind))
    assert {key: value for key, value in body.items() if key != "model"} == expected
    assert json.loads(sent(given, kind, path="completions")) == given | {"model": "upstream"}


def tool(name):
    return {"type": "function", "function": {"name": name, "strict": None}}


@pytest.mark.parametrize(
    ("kind", "choice", "names", "expected"),
    [
        ("openai", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("a")]}}, "ab", "same"),
        ("vllm", {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("a")]}}, "a", "required"),
        ("vllm", {"type": "function", "function": {"name": "b"}}, "ab", "same"),
        ("llamacpp", {"type": "function", "function": {"name": "b"}}, "b", "required"),
        ("ollama", {"type": "function", "function": {"name": "b"}}, "b", None),
        ("llamacpp", "auto", "ab", "auto"),
    ],
)
def test_tools_are_chosen_in_the_form_that_the_server_knows(kind, choice, names, expected):
    body = json.loads(sent({"tools": [tool("a"), tool("b")], "tool_choice": choice}, kind))
    assert [each["function"]["name"] for each in body["tools"]] == list(names)
    assert body.get("tool_choice") == (choice if expected == "same" else expected)


def test_roles_and_reasoning_have_the_names_that_the_server_knows():
    messages = [{"role": "developer", "content": "x"}, {"role": "assistant", "content": "a", "reasoning_content": "hm"}]
    assert json.loads(sent({"messages": messages}))["messages"] == messages
    renamed = json.loads(sent({"messages": messages}, "vllm"))["messages"]
    assert renamed == [{"role": "system", "content": "x"}, {"role": "assistant", "content": "a", "reasoning": "hm"}]


@pytest.mark.parametrize("body", [b"[]", b"{", b'"x"', b"\xff", b'{"a":NaN}'])
def test_what_is_no_object_is_refused(body):
    with pytest.raises(ClientError):
        sent(body)


@pytest.mark.parametrize("messages", [3, "x", None, [3], [{"role": 3, "content": 4}], [{"content": [3, None, "x"]}], {"a": 1}])
def test_what_is_wrong_otherwise_is_for_the_server_to_say(messages):
    assert (
        json.loads(sent({"messages": messages, "tools": 3, "tool_choice": {"type": 4}, "stream_options": 5, "n": "x"}, "vllm"))["messages"]
        == messages
    )


PRIVATE = b'{"url":"http://10.0.0.1"}'
INLINE = b'{"url":"data:image/png;base64,AAAA"}'
HIDDEN = {
    "beside a number out of range": b'{"messages":[{"content":[{"image_url":%b,"x":1e999}]}]}' % PRIVATE,
    "beside a number of many digits": b'{"messages":[{"content":[{"image_url":%b,"x":%b}]}]}' % (PRIVATE, b"9" * 5000),
    "behind a second part": b'{"messages":[{"content":[{"image_url":%b,"image_url":%b}]}]}' % (PRIVATE, INLINE),
    "behind a second URL": b'{"messages":[{"content":[{"image_url":{"url":"http://10.0.0.1","url":"data:image/png;base64,AAAA"}}]}]}',
    "behind a second content": b'{"messages":[{"content":[{"image_url":%b}],"content":"hi"}]}' % PRIVATE,
    "in a list": b'{"messages":[{"content":[{"type":"video","video":["http://10.0.0.1"]}]}]}',
    "in an input": b'{"input":[{"image":"http://10.0.0.1"}]}',
}


@pytest.mark.parametrize("body", HIDDEN.values(), ids=HIDDEN)
def test_a_url_is_found_wherever_a_server_may_read_one(body):
    assert b"10.0.0.1" not in sent(body, path="embeddings" if b"input" in body else "chat/completions")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "/srv/pictures/a.png"},
        {"type": "input_audio", "input_audio": {"data": "http://10.0.0.1", "format": "wav"}},
        {"type": "file", "file": {"file_data": "http://10.0.0.1"}},
    ],
)
def test_a_location_in_the_place_of_data_is_refused(part):
    with pytest.raises(ClientError) as raised:
        sent(content(part))
    assert raised.value.code == "invalid_url" and raised.value.param.startswith("messages[0].content[0].")


def test_content_that_is_an_object_is_refused():
    with pytest.raises(ClientError) as raised:
        sent({"messages": [{"role": "user", "content": {"image_url": {"url": "http://10.0.0.1"}}}]})
    assert raised.value.param == "messages[0].content"


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"\xff"}]}]}',
        b'{"messages":[{"role":"\xff"}]}',
        b'{"messages":[{"\xff":1}]}',
        b'{"messages":[],"tools":[{"type":"\xff"}],"tool_choice":{"type":"\xff"}}',
    ],
)
def test_a_request_that_is_not_utf8_is_refused(body):
    with pytest.raises(ClientError, match="could not parse"):
        sent(body, kind="vllm")
