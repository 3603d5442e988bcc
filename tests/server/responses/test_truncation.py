"""Inputs that are longer than a model's context window, and the counting of their tokens, for every kind of model server."""

import contextlib

import openai
import pytest

from antiphon.server.processes.run import background_server
from support.server.scripted_server import configured
from support.server.tokenizing_server import WINDOW, tokenizing, words

FIND = {"type": "function", "name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.fixture(scope="module", params=["vllm", "llamacpp", "estimated"])
def counted(request, tmp_path_factory):
    """A client, the name of a model behind a server of that kind, and what that server was asked."""
    kind = request.param
    with contextlib.ExitStack() as stack:
        upstream, asked = stack.enter_context(tokenizing(kind))
        model = {"engine": "chat", "base_url": upstream, "quirks": "generic" if kind == "estimated" else kind, "retries": 0}
        if kind == "estimated":
            model["abilities"] = {"context_window": WINDOW}
        url = stack.enter_context(background_server(configured(tmp_path_factory.mktemp("home"), {"model": model})))
        client = stack.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
        yield client, kind, asked


def turn(role, count, word="word"):
    return {"role": role, "content": " ".join([word] * count)}


def sent(asked):
    """The messages of the last answered question."""
    return [body for path, body in asked if path == "/v1/chat/completions"][-1]["messages"]


def test_the_oldest_turns_are_dropped_and_the_instructions_and_the_newest_stay(counted):
    client, _, asked = counted
    history = [turn("user", 300, f"word{number}") for number in range(6)]
    developer = {"role": "developer", "content": "Rhyme."}
    response = client.responses.create(
        model="model", instructions="Be brief.", input=[history[0], developer, *history[1:]], truncation="auto", max_output_tokens=100
    )
    messages = sent(asked)
    assert response.status == "completed" and response.truncation == "auto"
    assert messages[0]["content"] == "Be brief.\n\nRhyme." and messages[-1]["content"] == history[-1]["content"]
    assert [message["content"] for message in messages[1:]] == [item["content"] for item in history[-len(messages) + 1 :]]
    assert len(messages) < 1 + len(history) and words(messages) <= WINDOW - 100


def test_no_more_is_dropped_than_must_be_where_the_server_counts(counted):
    client, kind, asked = counted
    history = [turn("user", 95) for _ in range(20)]  # 100 tokens each
    client.responses.create(model="model", input=history, truncation="auto", max_output_tokens=100)
    assert len(sent(asked)) == 11 if kind != "estimated" else 8 <= len(sent(asked)) <= 11  # an estimate may be too high


def test_a_call_goes_with_its_output(counted):
    client, _, asked = counted
    call = {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": '{"query": "x"}'}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "word " * 1500}
    client.responses.create(model="model", input=[turn("user", 5), call, result, turn("user", 5)], tools=[FIND], truncation="auto")
    assert {message["role"] for message in sent(asked)} == {"user"}


def test_what_is_stored_is_whole_whatever_the_model_got(counted):
    client, _, _ = counted
    history = [turn("user", 300) for _ in range(6)]
    response = client.responses.create(model="model", input=history, truncation="auto")
    assert len(list(client.responses.input_items.list(response.id, limit=100))) == 6


@pytest.mark.parametrize("fields", [{"truncation": "auto"}, {"truncation": "disabled"}, {}])
def test_a_newest_turn_that_is_too_long_alone_is_refused(counted, fields):
    client, _, _ = counted
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="model", input=[turn("user", 20_000)], **fields)
    assert refusal.value.code == "context_length_exceeded"


def test_without_truncation_nothing_is_dropped(counted):
    client, _, asked = counted
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="model", input=[turn("user", 300) for _ in range(6)])
    assert refusal.value.code == "context_length_exceeded" and len(sent(asked)) == 6


def test_a_short_input_is_not_counted_to_be_truncated(counted):
    client, _, asked = counted
    client.responses.create(model="model", input="Hi", truncation="auto")
    del asked[:]
    client.responses.create(model="model", input="Hi", truncation="auto")
    assert [path for path, _ in asked] == ["/v1/chat/completions"]


def test_the_tokens_of_an_input_are_those_that_the_server_counts(counted):
    client, kind, asked = counted
    fields = {"model": "model", "instructions": "Be brief.", "input": [turn("user", 93)], "tools": [FIND]}
    tokens = client.responses.input_tokens.count(**fields).input_tokens
    if kind == "estimated":
        assert 93 <= tokens <= 200
    else:
        assert tokens == 93 + 2 + 3 * 5
        assert asked[-1][0] == "/tokenize"


def test_a_picture_is_estimated_and_its_address_never_sent_to_be_counted(counted):
    client, _, asked = counted
    picture = {"type": "input_image", "image_url": "http://169.254.169.254/secret.png", "detail": "auto"}
    content = [{"type": "input_text", "text": "What is this?"}, picture]
    del asked[:]
    alone = client.responses.input_tokens.count(model="model", input=[{"role": "user", "content": content[:1]}]).input_tokens
    tokens = client.responses.input_tokens.count(model="model", input=[{"role": "user", "content": content}]).input_tokens
    assert tokens == alone + 256 and "169.254" not in str(asked)


def test_a_server_that_counts_nothing_is_asked_once(tmp_path):
    with tokenizing("none") as (upstream, asked):
        model = {"engine": "chat", "base_url": upstream, "quirks": "vllm"}
        with background_server(configured(tmp_path, {"model": model})) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            counts = [client.responses.input_tokens.count(model="model", input="word " * 80).input_tokens for _ in range(3)]
            client.responses.create(model="model", input="Hi", truncation="auto")
    assert counts == [100, 100, 100]
    assert [path for path, _ in asked] == ["/tokenize", "/v1/chat/completions"]


@pytest.mark.parametrize(("kind", "tokens"), [("responses", 4321), ("none", 100)])
def test_an_upstream_with_the_responses_api_counts_if_it_can(tmp_path, kind, tokens):
    with tokenizing(kind) as (upstream, asked):
        model = {"engine": "responses", "base_url": upstream, "model": "theirs"}
        with background_server(configured(tmp_path, {"model": model})) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            assert client.responses.input_tokens.count(model="model", input="word " * 80).input_tokens == tokens
    path, body = asked[0]
    assert path == "/v1/responses/input_tokens" and body["model"] == "theirs" and not body.keys() & {"stream", "store", "include"}
