"""Every tool that the server runs, through the Responses API, as the official client sees it; MCP has a module of its own."""

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from antiphon.config.routing import EMBEDDING_MODEL
from antiphon.server.processes.run import background_server
from support.embeddings.tiny_model import write_tiny_model
from support.server.scripted_server import configured

THEIR_EVENT: TypeAdapter = TypeAdapter(ResponseStreamEvent)

FUNCTIONS = '''
"""Functions of the operator."""

def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number
'''

PAGE = "<title>Owls</title><h1>Owls</h1><p>The barn owl hears a mouse under the snow.</p>"

PLOT = "open('/mnt/data/plot.txt', 'w').write('a plot')\nx = 20\nx + 1"

SCRIPT = {
    "answers": [
        {"to": "result", "when": "barn owl", "say": "It hears a mouse [web:1]."},
        {"to": "result", "when": "owls hunt", "say": "Owls hunt at night 【1】, and so on."},
        {"to": "result", "when": "21", "say": "Here is [the plot](sandbox:/mnt/data/plot.txt)."},
        {"to": "result", "say": "It is {input}."},
        {"when": "files", "lines": [{"call": "file_search", "arguments": {"queries": ["when do owls hunt"]}}]},
        {
            "when": "web loudly",
            "lines": [{"text": "Let me look."}, {"call": "web_search", "arguments": {"query": "barn owl snow"}}],
        },
        {
            "when": "for weather",
            "lines": [{"call": "web_search", "arguments": {"query": "barn owl snow"}}, {"call": "get_weather", "arguments": {}}],
        },
        {"when": "web", "lines": [{"call": "web_search", "arguments": {"query": "barn owl snow"}}]},
        {"when": "plot", "lines": [{"call": "python", "arguments": {"code": PLOT}}]},
        {"when": "again", "lines": [{"call": "python", "arguments": {"code": "x * 2"}}]},
        {"when": "double", "lines": [{"call": "double", "namespace": "numbers", "arguments": {"number": 4}}]},
    ]
}

UNMARKED = {
    "answers": [
        {"to": "result", "when": "barn owl", "say": "Sure: the barn owl hears mice under the snow."},
        {"to": "result", "say": "Owls hunt at night. I hope that helps."},
        {"when": "web", "lines": [{"call": "web_search", "arguments": {"query": "barn owl snow"}}]},
        {"when": "", "lines": [{"call": "file_search", "arguments": {"queries": ["when do owls hunt"]}}]},
    ]
}
"""A small model writes no marks."""


@pytest.fixture(scope="module")
def server_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    (folder / "numbers.py").write_text(FUNCTIONS)
    (folder / "pages").mkdir()
    (folder / "pages" / "owls.html").write_text(PAGE)
    write_tiny_model(folder / "models" / EMBEDDING_MODEL)
    settings = {
        "models_dir": str(folder / "models"),
        "tools.code_interpreter.sandbox": "both",
        "tools.functions": [{"label": "numbers", "file": str(folder / "numbers.py")}],
        "tools.web_search.provider": "local",
        "tools.web_search.folders": [{"path": str(folder / "pages"), "url": "https://birds.example/"}],
    }
    models = {"parrot": {"engine": "scripted", **SCRIPT}, "unmarked": {"engine": "scripted", **UNMARKED}}
    with background_server(configured(tmp_path_factory.mktemp("home"), models, **settings)) as url:
        yield url


@pytest.fixture(scope="module")
def sdk(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def streamed(sdk, model="parrot", **fields):
    """The events of a stream, each valid as the SDK has it, and its last response."""
    events = list(sdk.responses.create(model=model, stream=True, **fields))
    for number, event in enumerate(events):
        # The original's search has no `action` before it is done, though its client's type requires one.
        if event.type != "response.output_item.added" or event.item.type != "web_search_call":
            THEIR_EVENT.validate_python(event.model_dump(warnings=False))
        assert event.sequence_number == number
    return [event.type.removeprefix("response.") for event in events], events[-1].response


def kinds(response):
    return [item.type for item in response.output]


@pytest.fixture(scope="module")
def store(sdk):
    store = sdk.vector_stores.create(name="Notes")
    for name, text in {"owls.md": "Owls hunt at night. Their feathers make no sound.", "bells.md": "Bells are cast in bronze."}.items():
        file = sdk.files.create(file=(name, text.encode()), purpose="assistants")
        assert sdk.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id).status == "completed"
    return store


@pytest.mark.parametrize("include", [None, ["file_search_call.results"]])
def test_files_are_searched_and_cited(sdk, store, include):
    tool = {"type": "file_search", "vector_store_ids": [store.id]}
    types, response = streamed(sdk, input="Search my files.", tools=[tool], include=include)
    assert kinds(response) == ["file_search_call", "message"]
    call, message = response.output
    assert call.queries == ["when do owls hunt"] and call.status == "completed"
    assert (call.results is not None) == (include is not None)
    [citation] = message.content[0].annotations
    assert (citation.type, citation.filename, message.content[0].text) == ("file_citation", "owls.md", "Owls hunt at night , and so on.")
    assert citation.index == len("Owls hunt at night ")
    assert types[2:7] == [
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
    ]
    stored = sdk.responses.retrieve(response.id)
    assert stored.output[0].results[0].filename == "owls.md"


def sent_again(sdk, *given, **fields):
    """The calls of a request's input as it was stored."""
    response = sdk.responses.create(model="parrot", input=[*given, {"role": "user", "content": "Hi"}], **fields)
    return [item for item in sdk.responses.input_items.list(response.id, order="asc") if item.type != "message"]


def test_another_call_of_the_same_id_gets_nothing(sdk, store):
    tool = {"type": "file_search", "vector_store_ids": [store.id]}
    call = sdk.responses.create(model="parrot", input="Search my files.", tools=[tool]).output[0].to_dict()
    assert sent_again(sdk, call)[0].results[0].filename == "owls.md"
    assert sent_again(sdk, {**call, "queries": ["something else"]})[0].results is None


def test_a_picture_is_named_by_the_id_of_its_call(sdk):
    picture = {"type": "image_generation_call", "id": "ig_square", "status": "completed", "result": "AAAA"}
    sent_again(sdk, picture)
    by_id = {"type": "image_generation_call", "id": "ig_square"}
    for given in (by_id, {**picture, "result": None}):
        [stored] = sent_again(sdk, given)
        assert (stored.id, stored.result, stored.status) == ("ig_square", "AAAA", "completed")
    [added] = sdk.conversations.items.create(sdk.conversations.create().id, items=[by_id]).data
    assert added.result == "AAAA"
    sent_again(sdk, {"type": "reasoning", "id": "rs_none", "summary": []})
    for id in ("ig_none", "rs_none"):
        with pytest.raises(openai.NotFoundError, match=f"Item with id '{id}' not found"):
            sent_again(sdk, {**by_id, "id": id})


def test_the_web_is_searched_and_cited(sdk):
    types, response = streamed(sdk, input="Search the web.", tools=[{"type": "web_search"}], include=["web_search_call.action.sources"])
    assert kinds(response) == ["web_search_call", "message"]
    assert response.output[0].action.sources[0].url == "https://birds.example/owls.html"
    text = response.output[1].content[0].text
    [citation] = response.output[1].content[0].annotations
    assert text[citation.start_index : citation.end_index] == "([birds.example](https://birds.example/owls.html))"
    assert citation.type == "url_citation" and "output_text.annotation.added" in types
    assert response.tool_usage.web_search.num_requests == 1
    without = sdk.responses.create(model="parrot", input="Search the web.", tools=[{"type": "web_search"}])
    assert without.output[0].action.sources is None


def test_an_answer_without_marks_is_cited_by_its_words(sdk, store):
    types, response = streamed(sdk, "unmarked", input="When?", tools=[{"type": "file_search", "vector_store_ids": [store.id]}])
    part = response.output[-1].content[0]
    [citation] = part.annotations
    assert (citation.type, citation.filename, part.text) == ("file_citation", "owls.md", "Owls hunt at night. I hope that helps.")
    assert citation.index == part.text.index(". I hope")
    assert types[-5:-3] == ["output_text.annotation.added", "output_text.done"]
    _, response = streamed(sdk, "unmarked", input="Search the web.", tools=[{"type": "web_search"}])
    part = response.output[-1].content[0]
    [citation] = part.annotations
    assert (citation.type, citation.url, citation.title) == ("url_citation", "https://birds.example/owls.html", "Owls")
    assert part.text[citation.start_index : citation.end_index] + "." == part.text
    assert sdk.responses.retrieve(response.id).output[-1].content[0].annotations == part.annotations


def asked_in_chat(sdk, text="Search the web.", **fields):
    return sdk.chat.completions.create(model="parrot", messages=[{"role": "user", "content": text}], web_search_options={}, **fields)


def test_a_chat_searches_the_web_and_cites_it(sdk):
    place = {"type": "approximate", "approximate": {"city": "Bern", "country": "CH"}}
    message = (
        asked_in_chat(sdk, extra_body={"web_search_options": {"search_context_size": "low", "user_location": place}}).choices[0].message
    )
    [annotation] = message.annotations
    citation = annotation.url_citation
    assert message.content[citation.start_index : citation.end_index] == "([birds.example](https://birds.example/owls.html))"
    assert message.tool_calls is None and citation.title == "Owls"
    chunks = list(asked_in_chat(sdk, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == message.content
    annotations = [each for chunk in chunks for each in chunk.choices[0].delta.model_dump().get("annotations") or ()]
    assert annotations == [annotation.model_dump()]


def test_the_places_of_citations_are_those_in_the_whole_content(sdk):
    message = asked_in_chat(sdk, "Search the web loudly.").choices[0].message
    citation = message.annotations[0].url_citation
    assert message.content.startswith("Let me look.")
    assert message.content[citation.start_index : citation.end_index] == "([birds.example](https://birds.example/owls.html))"


def test_a_chat_calls_its_own_functions_after_the_search(sdk):
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
    choice = asked_in_chat(sdk, "Search the web for weather.", tools=[weather]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]


def test_a_refused_request_leaves_no_container(sdk):
    before = [container.id for container in sdk.containers.list()]
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-nope"]}}
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model="parrot", input="x", tools=[tool])
    assert [container.id for container in sdk.containers.list()] == before


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "web_search"}}]}, "tools"),
        ({"extra_body": {"web_search_options": {"search_context_size": "huge"}}}, "web_search_options.search_context_size"),
        (
            {"extra_body": {"web_search_options": {"user_location": {"type": "approximate", "approximate": {"country": "CHE"}}}}},
            "web_search_options.user_location.approximate.country",
        ),
    ],
)
def test_a_search_in_a_chat_that_cannot_be_made_is_refused(sdk, fields, param):
    with pytest.raises(openai.BadRequestError) as refusal:
        asked_in_chat(sdk, **fields)
    assert refusal.value.param == param


def has_walls(sdk):
    """Whether the code interpreter is offered here: a request that comes while its walls are tried waits for that."""
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    return kinds(sdk.responses.create(model="parrot", input="Again.", tools=[tool], store=False)) != ["function_call"]


def test_code_is_run_in_a_container_that_stays(sdk):
    if not has_walls(sdk):
        pytest.skip("the walls of the code interpreter don't stand on this machine")
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    types, first = streamed(sdk, input="Make a plot.", tools=[tool], include=["code_interpreter_call.outputs"])
    call, message = first.output
    assert (call.code, call.outputs[0].logs.strip(), call.status) == (PLOT, "21", "completed")
    assert types[2:9] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    text = message.content[0].text
    [citation] = message.content[0].annotations
    assert citation.type == "container_file_citation" and citation.filename == "plot.txt"
    assert text[citation.start_index : citation.end_index] == "sandbox:/mnt/data/plot.txt"
    assert sdk.containers.files.content.retrieve(citation.file_id, container_id=call.container_id).read() == b"a plot"
    _, second = streamed(sdk, input="Again.", tools=[tool], previous_response_id=first.id, include=["code_interpreter_call.outputs"])
    assert second.output[0].container_id == call.container_id
    assert second.output[0].outputs[0].logs.strip() == "40"  # the variable is still there


def test_a_function_of_the_operators_is_called_by_its_label(sdk):
    tool = {"type": "mcp", "server_label": "numbers", "require_approval": "never"}
    _, response = streamed(sdk, input="Double it.", tools=[tool])
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert response.output_text == "It is 8."


def test_all_tools_at_once_are_echoed_as_they_came(sdk, store):
    tools = [
        {"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 3},
        {"type": "web_search", "search_context_size": "low"},
        {"type": "mcp", "server_label": "numbers", "require_approval": "never"},
    ]
    response = sdk.responses.create(model="parrot", input="Search my files.", tools=tools)
    assert [tool.type for tool in response.tools] == ["file_search", "web_search", "mcp"]
    assert Response.model_validate(response.model_dump(warnings=False)).tools[0].max_num_results == 3


def test_the_defaults_of_tools_are_shown(sdk, store):
    tools = [
        {"type": "file_search", "vector_store_ids": [store.id]},
        {"type": "web_search", "user_location": {"type": "approximate", "city": "Bern"}},
        {"type": "image_generation", "size": "1024x1024"},
        {"type": "tool_search"},
    ]
    response = sdk.responses.create(model="parrot", input="Hi", tools=tools)
    files, web, image, search = (tool.to_dict() for tool in response.tools)
    ranking = {"ranker": "auto", "score_threshold": 0}
    assert files == {**tools[0], "filters": None, "max_num_results": 20, "ranking_options": ranking}
    place = {"type": "approximate", "city": "Bern", "country": None, "region": None, "timezone": None}
    assert web == {"type": "web_search", "filters": None, "search_context_size": "medium", "user_location": place}
    assert (image["size"], image["quality"], image["output_format"]) == ("1024x1024", "auto", "png")
    assert search == {"type": "tool_search", "description": None, "parameters": None}
    plain = sdk.responses.create(model="parrot", input="Hi", tools=[{"type": "web_search_preview"}])
    assert plain.tools[0].user_location.country == "US"


@pytest.mark.parametrize("text", ["Search my files.", "Search the web."])
def test_what_was_found_comes_back_with_an_item_that_is_sent_without(sdk, server_url, store, text):
    tools = [{"type": "file_search", "vector_store_ids": [store.id]}, {"type": "web_search"}]
    first = sdk.responses.create(model="parrot", input=text, tools=tools)
    call = first.output[0].to_dict()
    assert not call.get("results")
    fields = {"model": "parrot", "tools": tools, "input": [{"role": "user", "content": text}, call, {"role": "user", "content": "So?"}]}
    again = sdk.responses.create(**fields)
    restored = sdk.responses.input_items.list(again.id, order="asc").data[1].to_dict()
    assert restored == sdk.responses.retrieve(first.id).output[0].to_dict() | {"id": restored["id"]} and restored["results"]
    unknown = sdk.responses.create(**fields | {"input": [*fields["input"][:1], call | {"id": "fs_other"}, fields["input"][2]]})
    assert not sdk.responses.input_items.list(unknown.id, order="asc").data[1].to_dict().get("results")


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "file_search", "vector_store_ids": ["vs_none"]}, "tools"),
        ({"type": "file_search", "vector_store_ids": []}, "tools"),
        ({"type": "code_interpreter", "container": "cntr_none"}, "tools"),
        ({"type": "mcp", "server_label": "nobody"}, "tools"),
    ],
)
def test_a_tool_that_names_nothing_is_refused(sdk, tool, param):
    if tool["type"] == "code_interpreter" and not has_walls(sdk):
        pytest.skip("the walls of the code interpreter don't stand on this machine")
    with pytest.raises(openai.APIStatusError) as refusal:
        sdk.responses.create(model="parrot", input="Hi", tools=[tool])
    assert refusal.value.status_code in (400, 404) and refusal.value.param
