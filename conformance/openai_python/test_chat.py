"""openai-python's Chat Completions: on the scripted model, which has every kind of answer, and on a real one."""

import json
import os

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

MODEL = os.environ["ANTIPHON_MODEL"]
LONG = pytest.mark.skipif(bool(os.environ.get("ANTIPHON_SHORT")), reason="a real model does so for the tests of responses")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
APPLY = {"type": "custom", "custom": {"name": "apply"}}


class Person(BaseModel):
    """Someone."""

    name: str
    age: int


@pytest.fixture(scope="module")
def client():
    with openai.OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0) as made:
        yield made


def ask(client, question, **more):
    return client.chat.completions.create(**{"model": "parrot", "messages": [{"role": "user", "content": question}], **more})


@pytest.mark.parametrize("question", ["Hello", "think", "weather", "two tools", "patch", "refuse"])
def test_every_kind_of_answer_is_of_the_types(client, question):
    whole = client.chat.completions.with_raw_response.create(
        model="parrot", messages=[{"role": "user", "content": question}], tools=[WEATHER, TIME, APPLY]
    )
    ChatCompletion.model_validate_json(whole.text if isinstance(whole.text, str) else whole.text(), strict=True)
    if question == "patch":  # the types of chunks have no custom tools
        return
    for chunk in ask(client, question, tools=[WEATHER, TIME], stream=True, stream_options={"include_usage": True}):
        ChatCompletionChunk.model_validate(chunk.model_dump(exclude_unset=True), strict=True)


@pytest.mark.parametrize(("question", "reason"), [("Hello", "stop"), ("weather", "tool_calls"), ("refuse", "stop"), ("think", "stop")])
def test_stream_helper(client, question, reason):
    messages = [{"role": "user", "content": question}]
    with client.chat.completions.stream(model="parrot", messages=messages, tools=[WEATHER]) as stream:
        assert [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == reason


def test_parse(client):
    messages = [{"role": "user", "content": "a person"}]
    completion = client.chat.completions.parse(model="parrot", messages=messages, response_format=Person)
    assert completion.choices[0].message.parsed == Person(name="Ada", age=36)


def test_tool_round_trip(client):
    message = ask(client, "weather", tools=[WEATHER]).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    answer = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
    second = ask(client, "", messages=[{"role": "user", "content": "weather"}, message, answer], tools=[WEATHER])
    assert second.choices[0].message.content == "The tool says sun"


def test_errors(client):
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, "Hi", model="gpt-none")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError):
        ask(client, "", messages=[])
    with pytest.raises(openai.InternalServerError):
        ask(client, "break at once", stream=True)
    with pytest.raises(openai.APIError, match="The model broke"):
        list(ask(client, "break midway", stream=True))
    with pytest.raises(openai.NotFoundError, match="/v1/responses"):
        client.chat.completions.retrieve("chatcmpl-1")


# A real model


def test_a_real_answer_whole_and_streamed(client):
    completion = ask(client, "What is the capital of France?", model=MODEL, max_completion_tokens=8)
    assert completion.choices[0].message.content.strip()
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    *chunks, last = ask(client, "Say hello.", model=MODEL, max_tokens=8, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip()
    assert last.usage.completion_tokens > 0


@LONG
def test_a_real_answer_in_a_form(client):
    messages = [{"role": "user", "content": "Ada Lovelace is 36 years old. Who is she?"}]
    completion = client.chat.completions.parse(
        model=MODEL, messages=messages, response_format=Person, max_completion_tokens=200, temperature=0, seed=1
    )
    assert completion.choices[0].message.parsed.name


@LONG
def test_a_real_call_by_name(client):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    message = (
        ask(client, "How is the weather in Paris?", model=MODEL, tools=[WEATHER], tool_choice=choice, max_tokens=200, temperature=0)
        .choices[0]
        .message
    )
    assert message.tool_calls[0].function.name == "get_weather"
    assert "city" in json.loads(message.tool_calls[0].function.arguments)


def test_two_real_choices_and_log_probabilities(client):
    completion = ask(client, "Name a colour.", model=MODEL, n=2, seed=7, logprobs=True, top_logprobs=2, max_tokens=8)
    assert [choice.index for choice in completion.choices] == [0, 1]
    for choice in completion.choices:
        assert "".join(each.token for each in choice.logprobs.content).strip()
        assert all(len(each.top_logprobs) == 2 for each in choice.logprobs.content)


def test_what_a_real_model_has_no_room_for(client):
    with pytest.raises(openai.BadRequestError) as too_long:
        ask(client, "word " * 60_000, model=MODEL)
    assert too_long.value.code == "context_length_exceeded"
    assert "This model's maximum context length is" in too_long.value.message
    assert "context_length_exceeded" in too_long.value.message
