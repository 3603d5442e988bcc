"""A response whose model calls tools that the server runs: turn by turn, as the client and the model see it."""

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import events, history
from antiphon.engine_api.options import FunctionTool, ToolChoice
from antiphon.errors import ClientError, UpstreamError
from antiphon.protocols.session import Hangup, PrepareTools, ToolFailed, ToolsReady
from antiphon.protocols.tool_loop import LoopLimits
from antiphon.tool_api import ApprovalRequired, Citation, ServerFunction, ServerTools, ToolOutput, ToolsListed
from antiphon.wire.responses import hosted_calls, items, tools
from support.protocols.responses_dialogues import Dialogue, session_for
from support.protocols.words import ID

SEARCH = FunctionTool("file_search", "Searches files.", {"type": "object"})
FILES = ServerTools(frozenset({"file_search"}), (ServerFunction("file_search", SEARCH),))
SEARCH_TOOL = tools.FileSearchTool(vector_store_ids=["vs_1"])
ADD = FunctionTool("add", namespace="math")
SUBTRACT = FunctionTool("subtract", namespace="math")
MATH = ServerTools(frozenset({"mcp"}), (), must_prepare=True)
MATH_TOOL = tools.McpTool(server_label="math", server_url="https://math.example/mcp", require_approval="never")
CLIENT_TOOL = tools.FunctionTool(name="weather", parameters={"type": "object"})


def search_session(**fields):
    return Dialogue(session_for(**{"server_tools": FILES, "tools": [SEARCH_TOOL]} | fields))


def called(call_id="c1", name="file_search", arguments='{"queries":["x"]}', namespace=None):
    return (
        events.ToolCallStarted(ID, call_id, name, namespace=namespace),
        events.ToolArgumentsDelta(ID, call_id, arguments[:3]),
        events.ToolArgumentsDelta(ID, call_id, arguments[3:]),
        events.ToolCallDone(ID, call_id),
    )


def item_events(item_id="fs_1", **fields):
    item = {"id": item_id, "type": "file_search_call", "status": "in_progress", "queries": [], "results": None} | fields
    return (
        events.HostedToolStarted("", item),
        events.HostedToolProgress("", {"type": "response.file_search_call.searching", "item_id": item_id}),
        events.HostedToolDone("", item | {"status": "completed", "queries": ["x"]}),
    )


def output(text="found", **fields):
    return ToolOutput((history.TextPart(text),), **fields)


def ended(reason="stop"):
    return events.ResponseEnded(ID, reason)


def assert_is_one_lifecycle(dialogue):
    assert [event["sequence_number"] for event in dialogue.events] == list(range(len(dialogue.events)))
    assert [event["output_index"] for event in dialogue.events if event["type"] == "response.output_item.added"] == sorted(
        event["output_index"] for event in dialogue.events if event["type"] == "response.output_item.done"
    )
    assert dialogue.types.count("created") == 1
    assert sum(kind in ("completed", "incomplete", "failed") for kind in dialogue.types) == 1


def test_a_call_is_run_and_the_model_goes_on_in_the_same_response():
    dialogue = search_session().said(
        events.TextDelta(ID, "Let me look."), *called(), events.Usage(id=ID, input_tokens=5, output_tokens=3), ended()
    )
    assert not dialogue.is_closed and "output_item.done" in dialogue.types
    [call] = dialogue.tool_calls
    assert (call.name, call.arguments, call.response_id) == ("file_search", '{"queries":["x"]}', ID)
    dialogue.tool_said(call.call_id, *item_events(), output())
    second = dialogue.requests[1]
    assert second.history[1:] == (
        history.Message("assistant", (history.TextPart("Let me look."),)),
        history.ToolCall(call.call_id, "file_search", '{"queries":["x"]}'),
        history.ToolResult(call.call_id, (history.TextPart("found"),)),
    )
    dialogue.said(events.TextDelta(ID, "Here."), events.Usage(id=ID, input_tokens=9, output_tokens=1), ended())
    assert_is_one_lifecycle(dialogue)
    response = dialogue.events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["message", "file_search_call", "message"]
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (14, 4)
    assert dialogue.is_closed


def test_calls_run_side_by_side_and_their_items_are_shown_one_after_another():
    dialogue = search_session().said(*called("a"), *called("b"), ended())
    first, second = dialogue.tool_calls
    dialogue.tool_said(second.call_id, *item_events("fs_2"), output("two"))
    assert "output_item.added" not in dialogue.types  # the first comes first
    dialogue.tool_said(first.call_id, *item_events("fs_1"), output("one"))
    assert dialogue.types[2:] == ["output_item.added", "file_search_call.searching", "output_item.done"] * 2
    assert [item.parts[0].text for item in dialogue.requests[1].history if isinstance(item, history.ToolResult)] == ["one", "two"]


@pytest.mark.parametrize(("fields", "running"), [({"parallel_tool_calls": False}, 1), ({"limits": LoopLimits(parallel=2)}, 2), ({}, 3)])
def test_no_more_calls_run_at_once_than_are_allowed(fields, running):
    dialogue = search_session(**fields).said(*called("a"), *called("b"), *called("c"), ended())
    assert len(dialogue.tool_calls) == running
    dialogue.tool_said(dialogue.tool_calls[0].call_id, output())
    assert len(dialogue.tool_calls) == min(3, running + 1)


def test_a_call_of_the_clients_ends_the_response_when_the_servers_calls_are_made():
    dialogue = search_session(tools=[SEARCH_TOOL, CLIENT_TOOL]).said(*called("a", "weather", "{}"), *called("b"), ended())
    [call] = dialogue.tool_calls
    dialogue.tool_said(call.call_id, *item_events(), output())
    assert dialogue.types[-1] == "completed" and len(dialogue.requests) == 1
    assert [item["type"] for item in dialogue.events[-1]["response"]["output"]] == ["function_call", "file_search_call"]
    assert_is_one_lifecycle(dialogue)


def test_max_tool_calls_is_told_to_the_model_and_makes_no_item():
    dialogue = search_session(max_tool_calls=1).said(*called("a"), *called("b"), ended())
    [call] = dialogue.tool_calls
    dialogue.tool_said(call.call_id, *item_events(), output())
    skipped = dialogue.requests[1].history[-1]
    assert skipped.parts == (history.TextPart("The call was skipped: the limit of 1 calls (max_tool_calls) is reached."),)
    assert dialogue.requests[1].tool_choice == ToolChoice("none")  # so that it answers
    dialogue.said(events.TextDelta(ID, "So."), ended())
    assert dialogue.events[-1]["response"]["max_tool_calls"] == 1
    assert_is_one_lifecycle(dialogue)


def test_the_results_of_a_response_have_a_limit_together():
    dialogue = search_session(limits=LoopLimits(output_chars=10)).said(*called(), ended())
    dialogue.tool_said(dialogue.tool_calls[0].call_id, output("x" * 10))
    assert dialogue.requests[1].tool_choice == ToolChoice("none")
    dialogue.said(*called("b"), ended())  # which a model may still do
    assert len(dialogue.tool_calls) == 1
    [note] = dialogue.requests[2].history[-1].parts
    assert note.text == "The call was skipped: the limit of 10 characters of results (tools.response_chars) is reached."


def test_the_last_turn_has_no_tools_of_the_server():
    dialogue = search_session(limits=LoopLimits(turns=3), tools=[SEARCH_TOOL, CLIENT_TOOL])
    for turn in range(2):
        dialogue.said(*called(), ended()).tool_said(dialogue.tool_calls[turn].call_id, output())
    assert dialogue.requests[1].tool_choice == ToolChoice()
    assert dialogue.requests[2].tool_choice == ToolChoice("auto", ("weather",))
    assert [tool.name for tool in dialogue.requests[2].tools] == ["weather"]


def test_a_model_that_calls_on_after_the_last_turn_has_an_incomplete_response():
    dialogue = search_session(limits=LoopLimits(turns=3))
    for turn in range(2):
        dialogue.said(*called(), ended()).tool_said(dialogue.tool_calls[turn].call_id, *item_events(f"fs_{turn}"), output())
    dialogue.said(*called(), ended())
    assert len(dialogue.requests) == 3 and len(dialogue.tool_calls) == 2
    assert dialogue.types[-1] == "incomplete" and dialogue.is_closed
    assert_is_one_lifecycle(dialogue)


def test_calls_that_the_request_does_not_allow_are_not_run():
    dialogue = search_session(tool_choice="none").said(*called(), ended())
    assert not dialogue.tool_calls
    [note] = dialogue.requests[1].history[-1].parts
    assert note.text == "The call was skipped: the request does not allow calls (tool_choice)."
    dialogue.said(events.TextDelta(ID, "So."), ended())
    assert dialogue.types[-1] == "completed"


@pytest.mark.parametrize(
    "choice",
    [
        tools.AllowedToolsChoice(mode="auto", tools=[{"type": "function", "name": "weather"}]),
        tools.AllowedToolsChoice(mode="auto", tools=[{"type": "mcp", "server_label": "math", "name": "subtract"}]),
        tools.FunctionChoice(name="weather"),
    ],
)
def test_calls_of_tools_that_the_choice_leaves_out_are_not_run(choice):
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL, CLIENT_TOOL], tool_choice=choice))
    dialogue.tool_said("", ToolsListed((ServerFunction("mcp", ADD), ServerFunction("mcp", SUBTRACT))), ToolsReady())
    dialogue.said(*called(name="add", namespace="math", arguments="{}"), ended())
    assert not dialogue.tool_calls
    [note] = dialogue.requests[-1].history[-1].parts
    assert note.text == "The call was skipped: the request does not allow calls of this tool now (tool_choice)."


def test_calls_of_tools_that_the_choice_allows_are_run():
    choice = tools.AllowedToolsChoice(mode="auto", tools=[{"type": "mcp", "server_label": "math"}])
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL, CLIENT_TOOL], tool_choice=choice))
    dialogue.tool_said("", ToolsListed((ServerFunction("mcp", ADD),)), ToolsReady())
    dialogue.said(*called(name="add", namespace="math", arguments="{}"), ended())
    assert [call.name for call in dialogue.tool_calls] == ["add"]


@pytest.mark.parametrize(
    ("choice", "first", "later"),
    [
        ("required", ToolChoice("required"), ToolChoice()),
        (tools.FileSearchChoice(), ToolChoice("required", ("file_search",)), ToolChoice()),
        (
            tools.AllowedToolsChoice(mode="required", tools=[{"type": "file_search"}]),
            ToolChoice("required", ("file_search",)),
            ToolChoice("auto", ("file_search",)),
        ),
    ],
)
def test_a_tool_that_is_required_is_required_once(choice, first, later):
    dialogue = search_session(tool_choice=choice, tools=[SEARCH_TOOL, CLIENT_TOOL]).said(*called(), ended())
    dialogue.tool_said(dialogue.tool_calls[0].call_id, output())
    assert [request.tool_choice for request in dialogue.requests] == [first, later]


def test_a_turn_that_is_cut_off_runs_none_of_its_calls():
    dialogue = search_session().said(*called(), ended("length"))
    assert not dialogue.tool_calls and dialogue.types[-1] == "incomplete"


def test_output_tokens_are_counted_over_all_turns():
    dialogue = search_session(max_output_tokens=10).said(*called(), events.Usage(id=ID, input_tokens=1, output_tokens=4), ended())
    dialogue.tool_said(dialogue.tool_calls[0].call_id, output())
    assert dialogue.requests[1].sampling.max_tokens == 6
    dialogue.said(*called(), events.Usage(id=ID, input_tokens=1, output_tokens=6), ended())
    dialogue.tool_said(dialogue.tool_calls[1].call_id, *item_events(), output())
    assert dialogue.types[-1] == "incomplete"
    assert dialogue.events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_arguments_that_are_no_json_go_to_the_tool_and_not_back_to_the_model():
    dialogue = search_session().said(*called(arguments="{oops"), ended())
    [call] = dialogue.tool_calls
    assert call.arguments == "{oops"
    dialogue.tool_said(call.call_id, output("That is no JSON."))
    assert dialogue.requests[1].history[-2].arguments == "{}"


def test_citations_are_annotations_of_the_text_that_follows():
    dialogue = search_session().said(*called(), ended())
    citation = Citation(marker="【1】", annotation={"type": "file_citation", "file_id": "f", "filename": "a.md"})
    dialogue.tool_said(dialogue.tool_calls[0].call_id, output(citations=(citation,)))
    dialogue.said(events.TextDelta(ID, "It is so "), events.TextDelta(ID, "【1"), events.TextDelta(ID, "】."), ended())
    [part] = dialogue.events[-1]["response"]["output"][-1]["content"]
    assert part["text"] == "It is so ."
    assert part["annotations"] == [{"type": "file_citation", "file_id": "f", "filename": "a.md", "index": 9}]
    assert dialogue.types[-7:-3] == ["output_text.delta", "output_text.annotation.added", "output_text.delta", "output_text.done"]


OWLS = Citation(
    marker="【1】",
    annotation={"type": "file_citation", "file_id": "f", "filename": "a.md"},
    evidence="Owls hunt at night. They are silent.",
)
BARN = Citation(
    marker="[web:2]",
    annotation={"type": "url_citation", "url": "https://a.example/", "title": "Barns"},
    replacement="(a)",
    kind="range",
    evidence="The barn owl hears a mouse under the snow.",
)


def answered(*texts, **fields):
    """The parts of the text that a model says after it has read both."""
    dialogue = search_session(**fields).said(*called(), ended())
    dialogue.tool_said(dialogue.tool_calls[0].call_id, output(citations=(OWLS, BARN)))
    dialogue.said(*(text if not isinstance(text, str) else events.TextDelta(ID, text) for text in texts), ended())
    return dialogue, dialogue.events[-1]["response"]["output"][-1]["content"][-1]


def test_an_answer_without_marks_is_cited_by_its_words_after_its_text():
    dialogue, part = answered("Well. Owls hunt", " at night. A barn owl hears mice under the snow.")
    text, annotations = part["text"], part["annotations"]
    assert text == "Well. Owls hunt at night. A barn owl hears mice under the snow."
    assert annotations == [
        OWLS.annotation | {"index": text.index(". A barn")},
        BARN.annotation | {"start_index": text.index("A barn"), "end_index": len(text) - 1},
    ]
    kinds = ["output_text.delta"] * 2 + ["output_text.annotation.added"] * 2 + ["output_text.done"]
    assert dialogue.types[-8:-3] == [*kinds[:2], *kinds[2:]], "no text was held back"
    assert_is_one_lifecycle(dialogue)


def test_one_mark_shows_that_the_model_cites_by_itself():
    _, part = answered("Owls hunt at night. A barn owl hears a mouse under the snow [web:2].")
    assert [each["type"] for each in part["annotations"]] == ["url_citation"]
    assert part["annotations"][0]["end_index"] == len(part["text"]) - 1


def test_citing_by_words_can_be_switched_off():
    _, part = answered("Owls hunt at night.", limits=LoopLimits(infers_citations=False))
    assert part["annotations"] == []


def test_a_text_that_is_rewritten_is_cited_as_it_is_then():
    _, part = answered("Owls hunt", events.RewriteEnded(id=ID, status="completed", text="At night, they say, owls hunt."))
    assert part["annotations"] == [OWLS.annotation | {"index": len(part["text"]) - 1}]


def test_an_mcp_server_is_listed_before_the_model_is_asked():
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL]))
    assert dialogue.session.ask() is None and isinstance(dialogue.effects[-1], PrepareTools) and not dialogue.requests
    listing = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "math", "tools": []}
    dialogue.tool_said(
        "",
        events.HostedToolStarted("", listing),
        events.HostedToolProgress("", {"type": "response.mcp_list_tools.in_progress", "item_id": "mcpl_1"}),
        events.HostedToolDone("", listing | {"tools": [{"name": "add", "input_schema": {}}]}),
        ToolsListed((ServerFunction("mcp", ADD),)),
        ToolsReady(),
    )
    assert dialogue.requests[0].tools == (ADD,)
    dialogue.said(*called("a", "add", "{}", "math"), ended())
    assert dialogue.tool_calls[0].namespace == "math"


def test_a_choice_of_an_mcp_server_is_of_all_its_functions():
    choice = tools.McpChoice(server_label="math")
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL, CLIENT_TOOL], tool_choice=choice))
    dialogue.tool_said("", ToolsListed((ServerFunction("mcp", ADD),)), ToolsReady())
    assert dialogue.requests[0].tool_choice == ToolChoice("required", ("math.add",))


def test_a_server_that_cannot_be_listed_may_fail_the_response():
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL]))
    error = UpstreamError("Error retrieving tool list.", status=424, code="http_error", type="external_connector_error", param="tools")
    dialogue.tool_said("", ToolFailed(error))
    assert dialogue.types[-2:] == ["error", "failed"] or dialogue.types[-2:] == ["failed"]
    assert dialogue.is_closed and not dialogue.requests


def test_a_function_named_as_one_of_the_servers_is_refused():
    own = tools.FunctionTool(name="file_search", parameters={"type": "object"})
    with pytest.raises(ClientError, match="two tools named 'file_search'; one of them is of type 'file_search'"):
        search_session(tools=[SEARCH_TOOL, own])


# Approvals

REQUEST = hosted_calls.McpApprovalRequest(id="mcpr_1", arguments='{"a":1}', name="add", server_label="math")


def approve(approve=True, id="mcpr_1", **fields):
    return hosted_calls.McpApprovalResponse(approval_request_id=id, approve=approve, **fields)


USER = items.Message(role="user", content="Add.")


def test_a_call_that_needs_approval_ends_the_response():
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL]))
    dialogue.tool_said("", ToolsListed((ServerFunction("mcp", ADD),)), ToolsReady()).said(*called("a", "add", "{}", "math"), ended())
    item = {"id": "mcpr_x", "type": "mcp_approval_request", "arguments": "{}", "name": "add", "server_label": "math"}
    dialogue.tool_said(
        dialogue.tool_calls[0].call_id, events.HostedToolStarted("", item), events.HostedToolDone("", item), ApprovalRequired()
    )
    assert dialogue.types[-1] == "completed"
    assert dialogue.events[-1]["response"]["output"][-1]["type"] == "mcp_approval_request"


def test_an_approved_call_runs_with_its_own_arguments_before_the_model_is_asked():
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL], past=(USER, REQUEST), given=(approve(),)))
    dialogue.tool_said("", ToolsListed((ServerFunction("mcp", ADD),)), ToolsReady())
    [call] = dialogue.tool_calls
    assert (call.arguments, call.namespace, call.approval_request_id) == ('{"a":1}', "math", "mcpr_1") and not dialogue.requests
    dialogue.tool_said(call.call_id, output("3"))
    assert dialogue.requests[0].history[1:] == (
        history.ToolCall("mcpr_1", "add", '{"a":1}', namespace="math"),
        history.ToolResult("mcpr_1", (history.TextPart("3"),)),
    )


def test_the_model_is_told_that_a_call_was_not_approved():
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL], past=(USER, REQUEST), given=(approve(False, reason="No."),)))
    dialogue.tool_said("", ToolsReady())
    assert not dialogue.tool_calls
    assert dialogue.requests[0].history[-1].parts == (history.TextPart("The user did not approve this call. The reason: No."),)


def test_a_call_that_was_approved_and_made_is_not_made_again():
    made = hosted_calls.McpCall(
        id="mcp_1", arguments='{"a":1}', name="add", server_label="math", approval_request_id="mcpr_1", output="3", error=None
    )
    past = (USER, REQUEST, approve(), made, items.Message(role="assistant", content="3"))
    dialogue = Dialogue(session_for(server_tools=MATH, tools=[MATH_TOOL], past=past))
    dialogue.tool_said("", ToolsReady())
    assert not dialogue.tool_calls
    assert [type(item) for item in dialogue.requests[0].history[1:3]] == [history.ToolCall, history.ToolResult]


@pytest.mark.parametrize(
    ("given_items", "past", "message"),
    [
        ((approve(id="mcpr_9"),), (USER, REQUEST), "No approval request found with id 'mcpr_9'."),
        ((approve(), approve(False)), (USER, REQUEST), "Approval request 'mcpr_1' has been answered already."),
    ],
)
def test_an_answer_to_no_request_is_refused(given_items, past, message):
    with pytest.raises(ClientError, match=message.replace(".", r"\.")):
        session_for(server_tools=MATH, tools=[MATH_TOOL], past=past, given=given_items)


@pytest.mark.parametrize("offered", [[], [CLIENT_TOOL]])
def test_an_answer_without_any_mcp_server_is_refused(offered):
    with pytest.raises(ClientError, match="The MCP server 'math' of the approved call is not in 'tools'"):
        session_for(tools=offered, past=(USER, REQUEST), given=(approve(),))
    with pytest.raises(ClientError, match="No approval request found"):
        session_for(tools=offered, past=(USER, REQUEST), given=(approve(id="mcpr_9"),))
    assert session_for(tools=offered, past=(USER, REQUEST), given=(approve(False),))
    assert session_for(tools=offered, past=(USER, REQUEST, approve()), given=(USER,))


def test_an_answer_without_any_mcp_server_may_be_compacted():
    assert session_for(past=(USER, REQUEST), given=(approve(), items.CompactionTrigger()))


def test_an_approved_call_needs_its_server():
    other = tools.McpTool(server_label="other", server_url="https://other.example/mcp")
    with pytest.raises(ClientError, match="The MCP server 'math' of the approved call is not in 'tools'"):
        session_for(server_tools=MATH, tools=[other], past=(USER, REQUEST), given=(approve(),))


# Ends


def test_a_client_that_leaves_while_a_tool_runs_ends_the_response():
    dialogue = search_session().said(*called(), ended())
    dialogue.tool_said(dialogue.tool_calls[0].call_id, item_events()[0])
    dialogue.effects += dialogue.session.handle(Hangup(1002.0))
    assert dialogue.is_closed and dialogue.kept[-1].status == "cancelled"
    assert not dialogue.session.handle(Hangup(1003.0))


TURNS = {
    "text": (events.TextDelta(ID, "a"), ended()),
    "reasoning": (events.ReasoningDelta(ID, "hm"), *called(), ended()),
    "search": (*called(), ended()),
    "two": (*called("a"), events.TextDelta(ID, "b"), *called("b"), ended()),
    "weather": (*called("a", "weather", "{}"), *called("b"), ended()),
    "length": (*called("a"), ended("length")),
    "fail": (events.ResponseFailed(id=ID, message="no"),),
}


@given(st.lists(st.sampled_from(sorted(TURNS)), min_size=1, max_size=8), st.booleans())
def test_whatever_the_model_does_it_is_one_response(turns, is_parallel):
    dialogue = search_session(tools=[SEARCH_TOOL, CLIENT_TOOL], parallel_tool_calls=is_parallel, limits=LoopLimits(calls=5))
    told = 0
    for turn in turns:
        if dialogue.is_closed:
            break
        dialogue.said(*TURNS[turn])
        while told < len(dialogue.tool_calls):
            dialogue.tool_said(dialogue.tool_calls[told].call_id, *item_events(f"fs_{told}"), output())
            told += 1
    if not dialogue.is_closed:
        dialogue.said(events.TextDelta(ID, "end"), ended())
    assert dialogue.is_closed
    assert_is_one_lifecycle(dialogue)
    for request in dialogue.requests:  # each call has its result: upstream servers refuse one without
        calls = [item.call_id for item in request.history if isinstance(item, history.ToolCall)]
        results = [item.call_id for item in request.history if isinstance(item, history.ToolResult)]
        assert calls == results and len(set(calls)) == len(calls)
