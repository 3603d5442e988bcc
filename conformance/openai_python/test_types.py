"""Every body and event of the Responses API holds against openai-python's types: nothing required is missing, nothing is unknown."""

import itertools
import os

import openai
import pytest
from openai.types.responses import ResponseCompactionItem
from pydantic import BaseModel

FUNCTION = {"type": "function", "strict": False, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [
    {**FUNCTION, "name": "get_weather"},
    {**FUNCTION, "name": "get_time", "description": "The time"},
    {"type": "custom", "name": "apply"},
]
QUESTIONS = ["Hello", "think", "weather", "two tools", "patch", "a person", "refuse"]
EVERYTHING = {
    "input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "input_text", "text": "think"}]}],
    "instructions": "Be kind.",
    "tools": [*TOOLS, {"type": "web_search"}, {"type": "namespace", "name": "n", "description": "Names", "tools": [TOOLS[0]]}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]},
    "parallel_tool_calls": False,
    "max_output_tokens": 500,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "service_tier": "flex",
    "truncation": "auto",
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "top_logprobs": 2,
    "temperature": 0.5,
    "top_p": 0.5,
}
ITEMS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Hi", "annotations": []}], "phase": "final_answer"},
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
    {"role": "user", "content": [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,AA=="}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "t"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]},
    {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "y"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q", "queries": ["q"]}},
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"]},
    {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "container_id": "cntr_1", "code": "1", "outputs": []},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AA=="},
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c3",
        "status": "completed",
        "action": {"type": "wait"},
        "pending_safety_checks": [],
    },
    {"type": "computer_call_output", "call_id": "c3", "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}},
    {"type": "shell_call", "call_id": "c4", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "call_id": "c4", "output": [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    {"type": "apply_patch_call", "call_id": "c5", "status": "completed", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call_output", "call_id": "c5", "status": "completed"},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "m", "tools": [{"name": "a", "input_schema": {}}]},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "m", "name": "a", "arguments": "{}"},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "m", "name": "a", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "tool_search_call", "arguments": {}},
    {"type": "tool_search_output", "tools": [TOOLS[1]]},
]
# The original sends these too, and the SDK has no types for them.
UNTYPED = {
    *("frequency_penalty", "presence_penalty", "store"),
    "obfuscation",
    "bytes",  # of log probabilities in events; in responses they have a type
    "custom_tool_call.status",
    "custom_tool_call_output.status",
    "response.function_call_arguments.done.name",
    "web_search_call.results",
}


def fields_beyond(value, path=""):
    """The paths of all fields that the type of their object does not have."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or ():
            if UNTYPED.isdisjoint((name, f"{getattr(value, 'type', '')}.{name}")):
                yield f"{path}.{name}"
        for name in type(value).model_fields:
            yield from fields_beyond(getattr(value, name, None), f"{path}.{name}")
    elif isinstance(value, list):
        for member in value:
            yield from fields_beyond(member, f"{path}[{getattr(member, 'type', '')}]")


def typed(value):
    """A body or an event, which the strict client has read, so that nothing required is missing; it has no unknown fields either."""
    assert not (beyond := sorted(set(fields_beyond(value)))), f"{type(value).__name__} has no {beyond}"
    return value


def streamed(stream):
    """All events of a stream, whose numbers follow each other."""
    events = [typed(event) for event in stream]
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(events)))
    return events


@pytest.fixture(scope="module")
def client():
    url = os.environ["ANTIPHON_URL"]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True) as made:
        yield made


@pytest.fixture
def create(client):
    return lambda input, **fields: client.responses.create(**{"model": "parrot", "input": input, "tools": TOOLS, **fields})


@pytest.mark.parametrize("question", QUESTIONS)
def test_responses_and_their_events(create, question):
    whole = typed(create(question))
    events = streamed(create(question, stream=True))
    assert [item.type for item in whole.output] == [item.type for item in events[-1].response.output] != []


@pytest.mark.parametrize("left_out", [(), ("tool_choice", "text"), ("include", "top_logprobs"), ("tools", "tool_choice", "reasoning")])
def test_a_response_with_every_field(create, left_out):
    fields = {name: value for name, value in EVERYTHING.items() if name not in left_out}
    assert typed(create(**fields)).status == "completed"
    assert streamed(create(**fields, stream=True))[-1].response.status == "completed"


def test_log_probabilities(create):
    fields = {
        "model": os.environ["ANTIPHON_MODEL"],
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "max_output_tokens": 16,
    }
    (message,) = typed(create("Hi", tools=[], **fields)).output
    assert message.content[0].logprobs[0].top_logprobs
    assert any(
        event.type == "response.output_text.delta" and event.logprobs for event in streamed(create("Hi", tools=[], **fields, stream=True))
    )


def test_failures(client, create):
    with pytest.raises(openai.APIError, match="The model broke"):
        streamed(create("break midway", stream=True))
    failed = create("break midway", background=True)
    while (failed := typed(client.responses.retrieve(failed.id))).status != "failed":
        assert failed.status in ("queued", "in_progress")
    assert failed.error.code == "server_error"


def test_what_is_stored(client, create):
    first = typed(create("weather"))
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sun"}
    second = typed(create([result], previous_response_id=first.id))
    assert typed(client.responses.retrieve(second.id)) == second
    assert [typed(item).type for item in client.responses.input_items.list(second.id)] == ["function_call_output"]
    assert typed(client.responses.input_tokens.count(model="parrot", input="Hello", tools=TOOLS)).input_tokens
    assert client.responses.delete(first.id) is None


def test_input_items_of_every_kind(client, create):
    response = typed(create([*ITEMS, {"role": "user", "content": "Hello"}], tools=[]))
    listed = list(client.responses.input_items.list(response.id, limit=7, order="asc"))
    assert [typed(item).type for item in listed] == [item.get("type", "message") for item in (*ITEMS, ITEMS[0])]


def test_background_responses_and_their_events_again(client, create):
    stream = create("story", background=True, stream=True)
    started = list(itertools.takewhile(lambda event: event.type != "response.output_text.delta", map(typed, stream)))
    stream.close()
    id = started[0].response.id
    assert typed(client.responses.retrieve(id)).status == "in_progress"
    cancelled = typed(client.responses.cancel(id))
    assert cancelled.status == "cancelled" and typed(client.responses.cancel(id)) == cancelled
    events = streamed(client.responses.retrieve(id, stream=True))
    assert events[: len(started)] == started and events[-1].response == cancelled
    assert streamed(client.responses.retrieve(id, stream=True, starting_after=3)) == events[4:]
    assert typed(create("Hello", background=True)).status == "queued"


def test_conversations_and_items_of_every_kind(client, create):
    conversation = typed(client.conversations.create(items=ITEMS[:20], metadata={"a": "b"}))
    added = typed(client.conversations.items.create(conversation.id, items=ITEMS[20:]))
    assert len(added.data) == len(ITEMS) - 20
    listed = [typed(item) for item in client.conversations.items.list(conversation.id, order="asc")]
    assert [item.type for item in listed] == [item.get("type", "message") for item in ITEMS]
    assert [client.conversations.items.retrieve(item.id, conversation_id=conversation.id) for item in listed] == listed
    assert typed(client.conversations.items.delete(listed[0].id, conversation_id=conversation.id)) == conversation
    assert typed(client.conversations.update(conversation.id, metadata={"c": "d"})).metadata == {"c": "d"}
    assert typed(client.conversations.retrieve(conversation.id)).metadata == {"c": "d"}
    assert typed(client.conversations.delete(conversation.id)).deleted


def test_responses_in_a_conversation(client, create):
    conversation = client.conversations.create()
    assert typed(create("think", conversation=conversation.id)).conversation.id == conversation.id
    streamed(create("weather", conversation=conversation.id, stream=True))
    kinds = [typed(item).type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "reasoning", "message", "message", "function_call"]


def test_a_compaction_and_what_follows_it(client, create):
    # The SDK's type has no place for messages of the user, which the API puts before the compaction.
    lenient = client.copy()
    lenient._strict_response_validation = False
    compacted = lenient.responses.compact(model="parrot", input=[ITEMS[0], ITEMS[1], ITEMS[2]])
    *messages, compaction = compacted.output
    assert [message.role for message in messages] == ["user"]
    typed(ResponseCompactionItem.model_validate(compaction.to_dict()))
    typed(type(compacted).model_validate({**compacted.to_dict(warnings=False), "output": [compaction.to_dict()]}))
    follows = typed(create([*(item.to_dict(warnings=False) for item in compacted.output), {"role": "user", "content": "Hello"}]))
    assert [typed(item).type for item in client.responses.input_items.list(follows.id, order="asc")] == ["message", "compaction", "message"]
