"""The tool: its options, its item and events, what the model reads, and what it may cite."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api.events import HostedToolDone, HostedToolProgress, HostedToolStarted
from antiphon.errors import ClientError, overloaded_error
from antiphon.tool_api import ServerToolCall
from antiphon.tools.base import ToolContext
from antiphon.tools.file_search.base import SearchResult
from antiphon.tools.file_search.tool import FileSearch, read_queries
from antiphon.tools.toolbox import Toolbox, ToolLimits
from antiphon.wire.responses.events import FileSearchCallCompleted, FileSearchCallInProgress, FileSearchCallSearching
from antiphon.wire.responses.items import FileSearchCall, decode_item
from antiphon.wire.responses.tools import decode_tool

PROGRESS = FileSearchCallInProgress | FileSearchCallSearching | FileSearchCallCompleted
STAGES = ("in_progress", "searching", "completed")
CONTEXT = ToolContext(response_id="resp_1", tenant="tenant_1", model="small")
FOUND = [
    SearchResult(file_id="file-a", filename="tides.pdf", score=0.91234, text="High water is at 06:12.", attributes={"year": 2024}),
    SearchResult(file_id="file-b", filename="moon.md", score=0.5, text="The moon pulls 【3】 the sea."),
]


class Stores:
    """Finds the same for everyone, and keeps what it was asked."""

    def __init__(self, found=(), error=None):
        self.found, self.error, self.searches = found, error, []

    async def check(self, tenant, store_ids):
        if unknown := [id for id in store_ids if not id.startswith("vs_")]:
            raise ClientError(f"Vector store with id '{unknown[0]}' not found.", status=404)

    async def search(self, tenant, store_ids, queries, *, filters, max_results, ranking):
        self.searches.append((tenant, list(store_ids), list(queries), filters, max_results, ranking))
        if self.error is not None:
            raise self.error
        return self.found[:max_results]


def open_tool(stores, *tools, **options):
    decoded = [
        (f"tools[{place}]", decode_tool(json.dumps({"type": "file_search", "vector_store_ids": ["vs_1"], **fields}).encode()))
        for place, fields in enumerate(tools or ({},))
    ]
    return FileSearch(stores, **options).open(decoded, CONTEXT)


def run(tool, arguments='{"queries": ["high water"]}'):
    events = []
    call = ServerToolCall(response_id="resp_1", call_id="call_1", name="file_search", arguments=arguments)
    output = asyncio.run(tool.run(call, events.append))
    return events, output


def test_a_call_tells_its_item_and_events_as_the_original():
    events, _ = run(open_tool(Stores(FOUND)))
    started, *progress, done = events
    assert isinstance(started, HostedToolStarted)
    assert started.item == {"id": started.id, "type": "file_search_call", "status": "in_progress", "queries": [], "results": None}
    assert started.id.startswith("fs_")
    assert [type(event) for event in progress] == [HostedToolProgress] * 3
    assert [event.event["type"] for event in progress] == [
        f"response.file_search_call.{stage}" for stage in ("in_progress", "searching", "completed")
    ]
    assert isinstance(done, HostedToolDone)
    first = {"attributes": {"year": 2024}, "file_id": "file-a", "filename": "tides.pdf", "score": 0.9123, "text": FOUND[0].text}
    second = {"attributes": {}, "file_id": "file-b", "filename": "moon.md", "score": 0.5, "text": FOUND[1].text}
    assert done.item == {**started.item, "status": "completed", "queries": ["high water"], "results": [first, second]}


def test_its_item_and_events_are_of_the_protocol():
    events, _ = run(open_tool(Stores(FOUND)))
    assert isinstance(decode_item(json.dumps(events[-1].item).encode()), FileSearchCall)
    for event in events[1:-1]:
        decoded = msgspec.json.decode(json.dumps({**event.event, "sequence_number": 0}), type=PROGRESS)
        assert decoded.type == event.event["type"]


def test_the_model_reads_numbered_excerpts_and_may_cite_them():
    _, output = run(open_tool(Stores(FOUND)))
    (part,) = output.parts
    assert part.text.startswith("【1】 tides.pdf\nHigh water is at 06:12.\n\n【2】 moon.md\nThe moon pulls [3] the sea.\n\nCite")
    assert [citation.marker for citation in output.citations] == ["【1】", "【2】"]
    assert output.citations[0].annotation == {"type": "file_citation", "file_id": "file-a", "filename": "tides.pdf"}
    assert {(citation.kind, citation.replacement) for citation in output.citations} == {("point", "")}


def test_an_excerpt_keeps_its_number_in_later_calls():
    stores = Stores(FOUND)
    tool = open_tool(stores)
    run(tool)
    stores.found = [FOUND[1], SearchResult(file_id="file-c", filename="c.txt", score=0.3, text="New.")]
    _, output = run(tool)
    assert [(citation.marker, citation.annotation["file_id"]) for citation in output.citations] == [
        ("【2】", "file-b"),
        ("【3】", "file-c"),
    ]


def test_the_excerpts_stay_within_the_limit():
    stores = Stores([SearchResult(file_id=f"file-{n}", filename="a.txt", score=1 - n / 10, text=str(n) * 400) for n in range(5)])
    events, output = run(open_tool(stores, result_chars=1000))
    assert len(output.citations) == 2
    assert len(events[-1].item["results"]) == 5
    _, output = run(open_tool(stores, result_chars=100))
    assert "0" * 100 in output.parts[0].text
    assert "0" * 101 not in output.parts[0].text


def test_nothing_found_is_said():
    events, output = run(open_tool(Stores()))
    assert events[-1].item["results"] == []
    assert "Nothing in the files fits" in output.parts[0].text
    assert output.citations == ()


@pytest.mark.parametrize("arguments", ["", "{", "{}", "null", '{"queries": []}', '{"queries": [3, " "]}', '"', "[" * 5000, "\ud800"])
def test_a_call_without_queries_fails_and_the_model_is_told_how_to_do_better(arguments):
    stores = Stores(FOUND)
    events, output = run(open_tool(stores), arguments)
    assert events[-1].item["status"] == "failed"
    assert '{"queries": ["what to look for"]}' in output.parts[0].text
    assert stores.searches == []


def test_a_search_that_fails_is_the_calls_failure_alone():
    events, output = run(open_tool(Stores(error=overloaded_error("Too many searches."))))
    assert [type(event) for event in events] == [HostedToolStarted, HostedToolProgress, HostedToolProgress, HostedToolDone]
    assert (events[-1].item["status"], events[-1].item["queries"], events[-1].item["results"]) == ("failed", ["high water"], None)
    assert output.parts[0].text == "The search failed: Too many searches."


@pytest.mark.parametrize(
    ("arguments", "queries"),
    [
        ({"queries": ["a", " b  c ", "a"]}, ["a", "b c"]),
        ({"queries": "a"}, ["a"]),
        ({"query": "a"}, ["a"]),
        (["a", "b"], ["a", "b"]),
        ({"queries": [str(number) for number in range(20)]}, [str(number) for number in range(8)]),
        ({"queries": ["x" * 5000]}, ["x" * 4096]),
    ],
)
def test_queries_are_read_as_models_write_them(arguments, queries):
    assert read_queries(json.dumps(arguments)) == queries


@given(st.text(max_size=50) | st.recursive(st.none() | st.booleans() | st.text(max_size=5), st.lists).map(json.dumps))
def test_any_arguments_are_read(arguments):
    assert isinstance(read_queries(arguments), list)


def test_the_options_reach_the_stores():
    stores = Stores(FOUND)
    ranking = {"score_threshold": 0.3, "hybrid_search": {"embedding_weight": 2, "text_weight": 1}}
    filters = {"type": "eq", "property": "year", "value": 2024}
    run(
        open_tool(
            stores, {"vector_store_ids": ["vs_1", "vs_2", "vs_1"], "max_num_results": 1, "filters": filters, "ranking_options": ranking}
        )
    )
    tenant, ids, queries, filter, max_results, ranked = stores.searches[0]
    assert (tenant, ids, queries, max_results, filter.value) == ("tenant_1", ["vs_1", "vs_2"], ["high water"], 1, 2024)
    assert (ranked.embedding_weight, ranked.text_weight, ranked.score_threshold) == (2, 1, 0.3)


def test_the_guides_names_of_the_weights_are_read_too():
    stores = Stores(FOUND)
    run(open_tool(stores, {"ranking_options": {"hybrid_search": {"rrf_embedding_weight": 0.7, "rrf_text_weight": 0.3}}}))
    assert (stores.searches[0][5].embedding_weight, stores.searches[0][5].text_weight) == (0.7, 0.3)


def weights(embedding, text):
    return {"ranking_options": {"hybrid_search": {"embedding_weight": embedding, "text_weight": text}}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"vector_store_ids": []}, "empty_array", "tools[0].vector_store_ids"),
        ({"vector_store_ids": [f"vs_{n}" for n in range(21)]}, "array_above_max_length", "tools[0].vector_store_ids"),
        ({"ranking_options": {"score_threshold": 1.1}}, "decimal_above_max_value", "tools[0].ranking_options.score_threshold"),
        (weights(-1, 1), "decimal_below_min_value", "tools[0].ranking_options.hybrid_search.embedding_weight"),
        (weights(0, 0), "invalid_value", "tools[0].ranking_options.hybrid_search"),
        ({"filters": {"type": "in", "key": "a", "value": 1}}, "invalid_value", "tools[0].filters.value"),
    ],
)
def test_wrong_options_are_refused(fields, code, param):
    with pytest.raises(ClientError) as caught:
        open_tool(Stores(), fields)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_store_that_is_not_there_fails_the_response_before_the_model_is_asked():
    tool = open_tool(Stores(), {"vector_store_ids": ["nothing"]})
    assert tool.must_prepare
    with pytest.raises(ClientError, match="'nothing' not found"):
        asyncio.run(tool.prepare(lambda event: None))


def test_two_tools_are_one_function_that_searches_both():
    stores = Stores(FOUND)
    tool = open_tool(stores, {"max_num_results": 1}, {"vector_store_ids": ["vs_2"]})
    assert len(tool.functions) == 1
    events, _ = run(tool)
    assert [search[1] for search in stores.searches] == [["vs_1"], ["vs_2"]]
    assert [result["file_id"] for result in events[-1].item["results"]] == ["file-a", "file-b"]


def test_a_search_that_hangs_ends_with_a_failed_item():
    class Hanging(Stores):
        async def search(self, *args, **options):
            await asyncio.Event().wait()

    async def scenario():
        box = Toolbox([FileSearch(Hanging())], ToolLimits(call_s=0.05))
        tool = decode_tool(b'{"type": "file_search", "vector_store_ids": ["vs_1"]}')
        tools = box.open([("tools[0]", tool)], CONTEXT)
        events = []
        call = ServerToolCall(response_id="resp_1", call_id="call_1", name="file_search", arguments='{"queries": ["a"]}')
        output = await tools.run(call, events.append)
        return events[-1].item["status"], output.parts[0].text

    status, text = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert status == "failed"
    assert "took longer than 0.05 seconds" in text
