"""LiteLLM's SDK as a client: Chat Completions by `openai/...`, Messages by `anthropic/...`, the Responses API."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks a web site as it is imported

import litellm
import pytest

URL = os.environ["ANTIPHON_URL"]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]


@pytest.fixture(params=["openai", "anthropic"])
def complete(request):
    base = URL if request.param == "openai" else URL.removesuffix("/v1")

    def ask(messages, **options):
        return litellm.completion(f"{request.param}/parrot", messages, api_base=base, api_key="none", max_retries=0, **options)

    return ask


def said(text):
    return [{"role": "user", "content": text}]


def test_text(complete):
    answer = complete(said("Hello"))
    assert answer.choices[0].message.content == "You said: Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


def test_stream(complete):
    chunks = list(complete(said("Hello there"), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: Hello there"
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_tool_round_trip(complete, stream):
    question = said("weather?")
    called = complete(question, tools=TOOLS, stream=stream)
    if stream:
        called = litellm.stream_chunk_builder(list(called), messages=question)
    message = called.choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "fog"}
    answer = complete([*question, message.model_dump(exclude_none=True), result], tools=TOOLS)
    assert answer.choices[0].message.content == "The tool says fog"


def test_reasoning(complete, request):
    # Messages tells reasoning only to those who ask for it.
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048, "allowed_openai_params": ["thinking"]}
    options = thinking if "anthropic" in request.node.name else {}
    message = complete(said("think"), **options).choices[0].message
    assert (message.content, "Let me see." in message.reasoning_content) == ("Done.", True)


def test_an_error_midway_is_told(complete):
    with pytest.raises(Exception, match="The model broke"):
        list(complete(said("break midway"), stream=True))


def test_an_error_at_once_has_its_class(complete):
    with pytest.raises((litellm.ServiceUnavailableError, litellm.InternalServerError), match="The model is loading"):
        complete(said("break at once"))


def test_an_unknown_model_is_not_found(complete):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion("openai/nobody", said("Hello"), api_base=URL, api_key="none", max_retries=0)


def test_responses():
    answer = litellm.responses("Hello", "openai/parrot", api_base=URL, api_key="none")
    assert answer.output_text == "You said: Hello"
