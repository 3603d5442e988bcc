"""anthropic for Python talks to antiphon as to the original."""

import asyncio
import base64
import os

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

URL = os.environ["ANTIPHON_URL"].removesuffix("/v1")
MODEL = os.environ["ANTIPHON_MODEL"]
ASKED = {"model": "parrot", "max_tokens": 1024}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096}
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
EVENT: TypeAdapter = TypeAdapter(RawMessageStreamEvent)
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(32)).decode()


@pytest.fixture(scope="module")
def client():
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0) as made:
        yield made


def user(text):
    return {"role": "user", "content": text}


def strictly(message):
    """The message, held against the SDK's types."""
    return Message.model_validate(message.model_dump(), strict=True)


def test_a_question(client):
    message = client.messages.create(messages=[user("Hello")], **ASKED)
    strictly(message)
    assert message.content[0].text == "You said: Hello"
    assert (message.stop_reason, message.role, message.type) == ("end_turn", "assistant", "message")
    assert message.usage.input_tokens == 1 and message._request_id.startswith("req_")


def test_a_real_model_answers(client):
    counted = client.messages.count_tokens(model=MODEL, messages=[user("Say hello.")])
    message = strictly(client.messages.create(model=MODEL, max_tokens=8, messages=[user("Say hello.")], extra_body={"temperature": 0}))
    assert message.content[0].text and message.stop_reason in ("max_tokens", "end_turn")
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == counted.input_tokens
    assert 0 < usage.output_tokens <= 8


@pytest.mark.parametrize("question", ["Hello", "think", "weather", "two tools", "refuse"])
def test_every_event_of_a_stream_is_of_its_type(client, question):
    fields = ASKED | THINKING | {"tools": [WEATHER]}
    kinds = []
    for event in client.messages.create(messages=[user(question)], stream=True, **fields):
        EVENT.validate_python(event.model_dump())
        kinds.append(event.type)
    assert (kinds[0], kinds[-2], kinds[-1]) == ("message_start", "message_delta", "message_stop")


def test_the_stream_helper_makes_the_same_message(client):
    with client.messages.stream(messages=[user("think")], **ASKED | THINKING) as stream:
        text = "".join(stream.text_stream)
        made = stream.get_final_message()
    assert text == "Done." and [block.type for block in made.content] == ["thinking", "text"]
    assert made.content[0].thinking and made.content[0].signature and made.stop_reason == "end_turn"


def test_a_tool_round_trip_with_its_reasoning(client):
    messages = [user("weather")]
    first = client.messages.create(messages=messages, tools=[WEATHER], tool_choice={"type": "any"}, **ASKED)
    call = first.content[0]
    assert (call.type, call.name, call.input, first.stop_reason) == ("tool_use", "get_weather", {"city": "Paris"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=messages, tools=[WEATHER], **ASKED).content[0].text == "The tool says sunny"


def test_two_calls_at_once(client):
    with client.messages.stream(messages=[user("two tools")], tools=[WEATHER], **ASKED) as stream:
        calls = stream.get_final_message().content
    assert [(call.id, call.input) for call in calls] == [("call_a", {"city": "Paris"}), ("call_b", {"zone": "CET"})]


def test_thinking_comes_back_as_it_went(client):
    first = client.messages.create(messages=[user("think")], **ASKED | THINKING)
    messages = [user("think"), {"role": "assistant", "content": first.content}, user("Hello")]
    assert client.messages.create(messages=messages, **ASKED | THINKING).content[-1].text == "You said: Hello"


def test_images_documents_and_a_system_prompt(client):
    content = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "document", "title": "Note", "source": {"type": "text", "media_type": "text/plain", "data": "milk"}},
        {"type": "text", "text": "What is this?", "cache_control": {"type": "ephemeral"}},
    ]
    message = client.messages.create(messages=[user(content)], system=[{"type": "text", "text": "Be brief."}], **ASKED)
    assert message.content[0].text.endswith("What is this?") and "milk" in message.content[0].text


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(client):
    parsed = client.messages.parse(messages=[user("person")], output_format=Person, **ASKED)
    assert parsed.parsed_output == Person(name="Ada", age=36)


def test_errors_are_of_the_sdks_classes(client):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="none", max_tokens=1, messages=[user("Hi")])
    assert missing.value.body["error"]["type"] == "not_found_error" and missing.value.request_id.startswith("req_")
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(messages=[user("")], model="parrot", max_tokens=0)
    with pytest.raises(anthropic.APIStatusError) as overloaded:
        client.messages.create(messages=[user("break at once")], **ASKED)
    assert (overloaded.value.status_code, overloaded.value.body["error"]["type"]) == (529, "overloaded_error")
    with pytest.raises(anthropic.APIStatusError) as broken, client.messages.stream(messages=[user("break midway")], **ASKED) as stream:
        stream.get_final_message()
    assert broken.value.body["error"] == {"type": "api_error", "message": "The model broke."}
    with pytest.raises(anthropic.NotFoundError, match="Batches are not offered"):
        client.messages.batches.list()


def test_a_bearer_token_does_as_well():
    with anthropic.Anthropic(base_url=URL, auth_token="none", max_retries=0) as made:
        assert made.messages.create(messages=[user("Hello")], **ASKED).content[0].text == "You said: Hello"


def test_the_models(client):
    models = list(client.models.list(limit=2))
    assert {"parrot", MODEL} <= {model.id for model in models}
    model = client.models.retrieve(MODEL)
    assert (model.type, model.lifecycle) == ("model", "active") and model.max_input_tokens > 0


async def _ask_async():
    async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0) as made:
        async with made.messages.stream(messages=[user("Hello")], **ASKED) as stream:
            return await stream.get_final_text()


def test_the_async_client():

    assert asyncio.run(_ask_async()) == "You said: Hello"


def test_a_stop_sequence_of_a_real_model(client):
    asked = {
        "model": MODEL,
        "max_tokens": 64,
        "messages": [user("Say hello.")],
        "extra_body": {"temperature": 0, "stop_sequences": ["e", "o"]},
    }
    message = client.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence) in (("stop_sequence", "e"), ("stop_sequence", "o"))
    assert message.stop_sequence not in message.content[0].text
