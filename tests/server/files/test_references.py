"""Files in requests: what models of every kind get of them, over a real socket with the official client."""

import asyncio
import base64
import json

import openai
import pytest

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.model_server import playing
from support.server.plain_http import post
from support.server.responses_peer import connected, said
from support.server.scripted_server import SCRIPT, configured

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"
OWLS = "# Owls\n\nThey hoot: ü.\n"
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
ANSWER = [
    CHUNK | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "So."}, "finish_reason": None}]},
    CHUNK | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


@pytest.fixture(scope="module")
def upstream():
    """A model server, and what it was asked."""
    with playing(lambda _body: ANSWER) as (url, asked):
        yield url, asked


@pytest.fixture(scope="module")
def served(tmp_path_factory, upstream):
    behind = {"engine": "chat", "base_url": upstream[0], "always_stream": True, "model": "m"}
    models = {
        "openai": behind | {"quirks": "openai", "fetch_urls": "here"},
        "vllm": behind | {"quirks": "vllm"},
        "unknown": behind | {"quirks": "generic", "abilities": {"files": True}},
        "parrot": {"engine": "scripted", **SCRIPT},
        "blind": {"engine": "scripted", "abilities": {"images": False, "files": False}, **SCRIPT},
    }
    settings = {"logging.level": "error", "server.fetch_networks": ["127.0.0.1/32"], "server.bodies_per_key_mib": 32}
    settings["prompts"] = [{"id": "pmpt_often", "instructions": "{{file}}" * 4}]
    config = configured(tmp_path_factory.mktemp("home"), models, **settings)
    with background_server(config) as url:
        yield url


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)


@pytest.fixture
def content_sent(client, upstream):
    """Ask a model, and return the content of the last message that its server got."""

    def ask(model, *parts, **fields):
        client.responses.create(model=model, input=[{"role": "user", "content": list(parts)}], **fields)
        return upstream[1][-1]["messages"][-1]["content"]

    return ask


def uploaded(client, content, name):
    return client.files.create(file=(name, content), purpose="user_data").id


def file(id):
    return {"type": "input_file", "file_id": id}


def inline(content, kind):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def text_of(name):
    return f'<file name="{name}">\n{OWLS}\n</file>\n'


def test_a_document_goes_as_such_to_who_takes_documents(client, content_sent):
    assert content_sent("openai", file(uploaded(client, PDF, "owls.pdf"))) == [
        {"type": "file", "file": {"filename": "owls.pdf", "file_data": inline(PDF, "application/pdf")}}
    ]


def test_an_image_goes_as_an_image_in_either_part(client, content_sent):
    id = uploaded(client, PNG, "owl.bin")
    image = {"type": "image_url", "image_url": {"url": inline(PNG, "image/png"), "detail": "low"}}
    for model in ("openai", "vllm"):
        assert content_sent(model, {"type": "input_image", "file_id": id, "detail": "low"}) == [image]
        assert content_sent(model, file(id) | {"detail": "low"}) == [image]


@pytest.mark.parametrize("name", ["owls.md", "owls.csv", "owls.json", "owls.py", "owls"])
def test_a_text_goes_as_text_to_who_takes_no_documents(client, content_sent, name):
    for model in ("vllm", "unknown"):
        assert content_sent(model, file(uploaded(client, OWLS.encode(), name))) == text_of(name)


def test_inline_data_is_read_alike_with_and_without_a_type(content_sent):
    for data in (base64.b64encode(OWLS.encode()).decode(), inline(OWLS.encode(), "text/plain"), inline(OWLS.encode(), "application/pdf")):
        part = {"type": "input_file", "file_data": data, "filename": "owls.md"}
        assert content_sent("vllm", part) == text_of("owls.md")
        assert content_sent("openai", part)[0]["file"] == {"filename": "owls.md", "file_data": inline(OWLS.encode(), "text/markdown")}
    nameless = content_sent("openai", {"type": "input_file", "file_data": base64.b64encode(PDF).decode()})
    assert nameless[0]["file"]["filename"] == "file.pdf"


@pytest.mark.parametrize(
    ("model", "part", "code", "param"),
    [
        ("openai", {"file_id": "file-0123"}, None, "file_id"),
        ("openai", {"file_id": "resp_1"}, "invalid_value", "file_id"),
        ("openai", {}, "missing_required_parameter", "file_id"),
        ("openai", {"file_data": "no base64!"}, "invalid_value", "file_data"),
        ("openai", {"file_data": "data:text/plain,owls"}, "invalid_value", "file_data"),
        ("openai", {"file_data": "A" * (28 << 20)}, "file_too_large", "file_data"),
        ("vllm", {"file_data": base64.b64encode(PDF).decode()}, "unsupported_parameter", ""),
        ("blind", {"file_data": base64.b64encode(PNG).decode()}, "unsupported_parameter", ""),
        ("blind", {"file_url": "http://192.168.0.1/a.txt"}, "invalid_url", "file_url"),
    ],
)
def test_what_a_model_can_not_get_is_refused_by_name(client, model, part, code, param):
    with pytest.raises(openai.APIStatusError) as refusal:
        client.responses.create(model=model, input=[{"role": "user", "content": [{"type": "input_file", **part}]}])
    assert refusal.value.status_code == (404 if part.get("file_id") == "file-0123" else 400)
    assert refusal.value.code == code
    assert refusal.value.param == f"input[0].content[0].{param}".removesuffix(".")


def test_a_file_that_is_no_image_is_no_input_image(client):
    id = uploaded(client, PDF, "owl.png")
    with pytest.raises(openai.BadRequestError, match="unsupported image") as refusal:
        client.responses.create(model="openai", input=[{"role": "user", "content": [{"type": "input_image", "file_id": id}]}])
    assert refusal.value.param == "input[0].content[0].file_id"


def test_the_output_of_a_tool_may_name_files(client, upstream):
    id = uploaded(client, OWLS.encode(), "owls.md")
    call = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": [file(id)]}
    client.responses.create(model="vllm", input=[{"role": "user", "content": "Read."}, call, output])
    assert upstream[1][-1]["messages"][-1]["content"] == text_of("owls.md")


def test_stored_items_name_the_file_and_later_turns_read_it_again(client, upstream):
    id = uploaded(client, OWLS.encode(), "owls.md")
    first = client.responses.create(model="vllm", input=[{"role": "user", "content": [file(id)]}])
    (item,) = client.responses.input_items.list(first.id).data
    assert item.content[0].model_dump(exclude_none=True) == file(id)
    client.responses.create(model="vllm", input="And?", previous_response_id=first.id)
    assert upstream[1][-1]["messages"][0]["content"] == text_of("owls.md")
    client.files.delete(id)
    client.responses.create(model="vllm", input="And now?", previous_response_id=first.id)
    assert upstream[1][-1]["messages"][0]["content"] == "(A file that was here has been deleted.)"


def test_a_conversation_names_files_that_exist(client, upstream):
    id = uploaded(client, OWLS.encode(), "owls.md")
    conversation = client.conversations.create(items=[{"type": "message", "role": "user", "content": [file(id)]}])
    client.responses.create(model="vllm", input="And?", conversation=conversation.id)
    assert upstream[1][-1]["messages"][0]["content"] == text_of("owls.md")
    with pytest.raises(openai.NotFoundError) as refusal:
        client.conversations.items.create(conversation.id, items=[{"type": "message", "role": "user", "content": [file("file-0")]}])
    assert refusal.value.param == "items[0].content[0].file_id"


def test_files_count_are_compacted_and_read_in_the_background(client, served):
    id = uploaded(client, OWLS.encode() * 100, "owls.md")
    message = {"role": "user", "content": [file(id)]}
    few = client.responses.input_tokens.count(model="blind", input="Hi").input_tokens
    assert client.responses.input_tokens.count(model="blind", input=[message]).input_tokens > few + 400
    status, _, body = post(served, {"model": "blind", "input": [message]}, "/v1/responses/compact")
    assert status == 200 and json.loads(body)["output"][0]["content"][0]["file_id"] == id
    with client.responses.create(model="blind", input=[message], background=True, stream=True) as events:
        response = [event for event in events][-1].response
    assert response.status == "completed" and "They hoot" in response.output_text


def test_a_websocket_reads_files(served, client):
    id = uploaded(client, OWLS.encode(), "owls.md")

    async def turns():
        async with connected(served) as peer:
            first = await peer.ask(model="blind", input=[{"role": "user", "content": [file(id)]}])
            return said(first), (await peer.ask("And?", model="blind", previous_response_id=first["id"]))["status"]

    text, status = asyncio.run(turns())
    assert "They hoot" in text and status == "completed"


def test_another_tenants_file_can_not_be_read(tmp_path):
    server = KeyServer(tmp_path)

    async def keys():
        return await server.key(tenant="ada"), await server.key(tenant="bob")

    ada, bob = asyncio.run(keys())
    with server.serving() as url:
        id = uploaded(openai.OpenAI(base_url=f"{url}/v1", api_key=ada), OWLS.encode(), "owls.md")
        stranger = openai.OpenAI(base_url=f"{url}/v1", api_key=bob, max_retries=0)
        with pytest.raises(openai.NotFoundError):
            stranger.responses.create(model="parrot", input=[{"role": "user", "content": [file(id)]}])
        with pytest.raises(openai.NotFoundError):
            stranger.conversations.create(items=[{"type": "message", "role": "user", "content": [file(id)]}])


def test_the_memory_that_files_take_is_limited_and_given_back(client):
    big = uploaded(client, b"x" * (20 << 20), "big.txt")
    others = [uploaded(client, b"x" * (20 << 20), "big.txt") for _ in range(3)]
    with pytest.raises(openai.BadRequestError, match="64 MiB in 500 files"):
        client.responses.create(model="parrot", input=[{"role": "user", "content": [file(id) for id in (big, *others)]}])
    with pytest.raises(openai.BadRequestError, match="counted as often as it is named"):  # the model would get it as often
        client.responses.create(model="parrot", input=[{"role": "user", "content": [file(big)] * 600}])
    with pytest.raises(openai.BadRequestError, match="counted as often as it is named"):
        client.responses.create(model="parrot", input="Hi", prompt={"id": "pmpt_often", "variables": {"file": file(big)}})
    too_large = uploaded(client, b"x" * (21 << 20), "big.txt")
    with pytest.raises(openai.BadRequestError, match="The file is too large"):
        client.responses.create(model="parrot", input=[{"role": "user", "content": [file(too_large)]}])
    for _ in range(2):  # 27 MB each: more than a key may have at once
        client.responses.input_tokens.count(model="parrot", input=[{"role": "user", "content": [file(big)]}])
        client.responses.create(model="parrot", input=[{"role": "user", "content": [file(big)]}], max_output_tokens=16)
