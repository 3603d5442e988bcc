"""Tools that antiphon runs: every body and event holds against openai-python's types, also in background and over a conversation."""

import itertools
import os

import openai
import pytest
from test_types import streamed, typed

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
INCLUDE = ["file_search_call.results", "web_search_call.action.sources", "web_search_call.results", "code_interpreter_call.outputs"]
CALLS = {
    "forecast?": ["mcp_list_tools", "mcp_call", "message"],
    "cancel the table": ["mcp_list_tools", "mcp_call", "message"],
    "search the files": ["file_search_call", "message"],
    "search the web": ["web_search_call", "message"],
    "open the page https://birds.example/owls.html": ["web_search_call", "message"],
    "find it in the page https://birds.example/owls.html": ["web_search_call", "message"],
    "make a plot": ["code_interpreter_call", "message"],
    "wrong code": ["code_interpreter_call", "message"],
    "draw a square": ["image_generation_call", "message"],
}
# The events of a call between its item's `added` and `done`, as the original's streams have them.
BETWEEN = {
    "mcp_list_tools": ["mcp_list_tools.in_progress", "mcp_list_tools.completed"],
    "mcp_call": ["mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done", "mcp_call.completed"],
    "mcp_approval_request": [],
    "file_search_call": ["file_search_call.in_progress", "file_search_call.searching", "file_search_call.completed"],
    "web_search_call": ["web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed"],
    "code_interpreter_call": [
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
    ],
    "image_generation_call": [
        "image_generation_call.in_progress",
        "image_generation_call.generating",
        "image_generation_call.partial_image",
        "image_generation_call.completed",
    ],
}


@pytest.fixture(scope="module")
def client():
    url = os.environ["ANTIPHON_URL"]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True) as made:
        yield made


@pytest.fixture(scope="module")
def lenient(client):
    """A search has no `action` before it is done, as in the original's streams, though the SDK's types require one."""
    made = client.copy()
    made._strict_response_validation = False
    return made


@pytest.fixture(scope="module")
def store(client):
    store = typed(client.vector_stores.create(name="Birds"))
    file = typed(client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("owls.md", b"Owls hunt at night.")))
    assert file.status == "completed"
    yield store.id
    assert typed(client.vector_stores.delete(store.id)).deleted


@pytest.fixture(scope="module")
def tools(store):
    made = [
        {"type": "mcp", "server_label": "almanac", "server_url": os.environ["MCP_URL"], "require_approval": "never"},
        {"type": "file_search", "vector_store_ids": [store], "filters": {"type": "ne", "key": "year", "value": 1999}},
        {"type": "web_search", "search_context_size": "low", "user_location": {"type": "approximate", "city": "Oslo"}},
        {"type": "image_generation", "partial_images": 1, "size": "auto"},
    ]
    return [*made, CODE] if os.environ["ANTIPHON_CODE"] else made


def tools_of(tools, question):
    """The tool that is called, so that only its server is asked."""
    prefix = CALLS[question][0].split("_")[0]
    offered = [tool for tool in tools if tool["type"].startswith(prefix)]
    if not offered:
        pytest.skip("the server can't run code here")
    return offered


def kinds(items):
    return [item.type for item in items]


def check_order(events, failed=()):
    """Each item is closed before the next is opened, and has the events of its kind in the original's order."""
    lifecycle = {"response.queued", "response.created", "response.in_progress", "response.completed"}
    rest = [event for event in events if event.type not in lifecycle]
    numbers = []
    while rest:
        added, *rest = rest
        assert added.type == "response.output_item.added"
        numbers.append(added.output_index)
        inside = list(itertools.takewhile(lambda event: event.type != "response.output_item.done", rest))
        done = rest[len(inside)]
        rest = rest[len(inside) + 1 :]
        assert {event.output_index for event in (added, *inside, done)} == {added.output_index}
        assert {added.item.id, done.item.id, *(event.item_id for event in inside)} == {done.item.id}
        if done.item.type in BETWEEN:
            names = [event.type.removeprefix("response.") for event in inside]
            expected = [name.replace("completed", "failed") if done.item.type in failed else name for name in BETWEEN[done.item.type]]
            if getattr(done.item, "approval_request_id", None):
                expected.insert(2, "mcp_call.in_progress")
            assert [name for name, _ in itertools.groupby(names)] == expected
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("question", CALLS)
def test_calls_and_their_events(client, lenient, tools, question):
    fields = {"model": "parrot", "input": question, "tools": tools_of(tools, question)}
    whole = typed(client.responses.create(**fields))
    events = streamed(
        (lenient if "web_search_call" in CALLS[question] else client).responses.create(**fields, stream=True, include=INCLUDE)
    )
    final = events[-1].response
    assert kinds(whole.output) == kinds(final.output) == CALLS[question]
    check_order(events, ["mcp_call"] if question == "cancel the table" else [])
    assert typed(client.responses.retrieve(final.id)) == typed(type(final).model_validate(final.to_dict(warnings=False)))
    # What the tool found is shown only if it is asked for.
    call, without = final.output[-2].to_dict(warnings=False), whole.output[-2].to_dict(warnings=False)
    for name in {"results", "outputs"} & call.keys():
        assert call[name] and without.get(name) is None


def test_a_conversation_with_all_tools(client, tools):
    conversation = client.conversations.create()
    for question, expected in CALLS.items():
        if expected[0] != "code_interpreter_call" or os.environ["ANTIPHON_CODE"]:
            response = typed(client.responses.create(model="parrot", input=question, tools=tools, conversation=conversation.id))
            assert response.output[-2].type == expected[-2]
    items = [typed(item) for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds(items).count("mcp_list_tools") == 1
    assert {kind for expected in CALLS.values() for kind in expected} - set(kinds(items)) <= {"code_interpreter_call"}


@pytest.mark.parametrize("approve", [True, False])
def test_approvals_in_background(client, tools, approve):
    asking = [{**tools[0], "require_approval": {"always": {"read_only": False}}}]
    stream = client.responses.create(model="parrot", input="book a table", tools=asking, background=True, stream=True)
    events = streamed(stream)
    check_order(events)
    first = events[-1].response
    assert kinds(first.output) == ["mcp_list_tools", "reasoning", "mcp_approval_request"]
    answer = {"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": approve}
    second = {"model": "parrot", "input": [answer], "tools": asking, "previous_response_id": first.id}
    events = streamed(client.responses.create(**second, stream=True))
    check_order(events)
    output = events[-1].response.output
    assert kinds(output) == (["mcp_call", "message"] if approve else ["message"])
    if approve:
        assert (output[0].approval_request_id, output[0].output) == (first.output[-1].id, "a table in Oslo is booked")


def test_what_is_echoed_and_counted(client, tools):
    secret = {**tools[0], "authorization": "secret", "headers": {"X-Key": "secret"}}
    response = typed(client.responses.create(model="parrot", input="search the web", tools=[secret, *tools[1:]], max_tool_calls=3))
    assert response.tool_usage.web_search.num_requests == 1
    assert (response.tools[0].headers, response.tools[0].authorization) == (None, None)
    assert "secret" not in client.responses.with_raw_response.retrieve(response.id).text


def test_calls_beyond_the_most_are_not_made(client, tools):
    response = typed(client.responses.create(model="parrot", input="both tables", tools=tools[:1], max_tool_calls=1))
    assert kinds(response.output) == ["mcp_list_tools", "mcp_call", "message"]


def test_containers_and_their_files(client):
    if not os.environ["ANTIPHON_CODE"]:
        pytest.skip("the server can't run code here")
    container = typed(client.containers.create(name="notes"))
    file = typed(client.containers.files.create(container.id, file=("a.txt", b"a note")))
    tool = {"type": "code_interpreter", "container": container.id}
    response = typed(client.responses.create(model="parrot", input="make a plot", tools=[tool]))
    assert response.output[0].container_id == container.id
    paths = [typed(each).path for each in client.containers.files.list(container.id)]
    assert sorted(paths) == ["/mnt/data/a.txt", "/mnt/data/plot.txt"]
    assert client.containers.files.content.retrieve(file.id, container_id=container.id).read() == b"a note"
    client.containers.delete(container.id)
    with pytest.raises(openai.NotFoundError):
        client.containers.retrieve(container.id)
