"""What Codex sends, whatever the model behind it can do: the tools it knows, its own history, and no store."""

import json

import pytest

from antiphon.server.processes.run import background_server
from support.server.codex import CODEX
from support.server.model_server import playing
from support.server.plain_http import events_in, post
from support.server.scripted_server import configured

GRAMMAR = 'start: begin_patch hunk+ end_patch\nbegin_patch: "*** Begin Patch" LF\nend_patch: "*** End Patch" LF?\n'
PATCH = "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n"


def function(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "name": name, "description": f"Runs {name}.", "strict": False, "parameters": parameters}


TEXT = {"type": "string"}
TOOLS = [
    function("exec_command", cmd=TEXT),
    function("write_stdin", session_id={"type": "number"}, chars=TEXT),
    function("update_plan", plan={"type": "array", "items": {"type": "object"}}),
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Use this tool to edit files. Don't wrap the patch in JSON.",
        "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
    },
    {"type": "namespace", "name": "mcp__issues", "description": "The issue tracker.", "tools": [function("find", query=TEXT)]},
    {"type": "namespace", "name": "mcp__wiki", "description": "The wiki.", "tools": [function("find", query=TEXT)]},
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation", "output_format": "png"},
]


def said(role, text):
    return {"type": "message", "role": role, "content": [{"type": "output_text" if role == "assistant" else "input_text", "text": text}]}


OPENING = [said("developer", "<permissions>Read only.</permissions>"), said("user", "<environment>/src</environment>")]


def request(model, *history, **more):
    mine = {"model": model, "input": [*OPENING, *history], "tools": TOOLS, "client_metadata": {"x-codex-installation-id": "1"}}
    return CODEX | mine | more


SCRIPT = {
    "answers": [
        {"to": "result", "say": "The tool says {input}"},
        {
            "when": "everywhere",
            "lines": [
                {"reasoning": "Look in both."},
                {"encrypted_content": "c2VhbA"},
                {"call": "find", "namespace": "mcp__issues", "arguments": {"query": "x"}, "call_id": "call_i"},
                {"call": "find", "namespace": "mcp__wiki", "arguments": {"query": "x"}, "call_id": "call_w"},
            ],
        },
        {"when": "write", "lines": [{"call": "apply_patch", "input": PATCH, "call_id": "call_p"}]},
    ],
    "abilities": {"grammars": False},
}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory):
    """A server with the models `parrot` (scripted) and, in front of a server that speaks chat completions, `chat`."""
    with playing(chat_answer) as (upstream, asked):
        chat = {"engine": "chat", "base_url": upstream, "quirks": "generic"}
        models = {"parrot": {"engine": "scripted", **SCRIPT}, "chat": chat}
        with background_server(configured(tmp_path_factory.mktemp("home"), models)) as url:
            ASKED[url] = asked
            yield url


ASKED: dict[str, list] = {}
"""For each server, what the chat completions server behind it was asked."""


def chunk(delta, finish=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def chat_call(index, id, name, arguments):
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


CHAT_ANSWERS = {
    "everywhere": {
        "tool_calls": [
            chat_call(0, "call_i", "mcp__issues__find", {"query": "x"}),
            chat_call(1, "call_w", "mcp__wiki__find", {"query": "x"}),
        ]
    },
    "write": {"tool_calls": [chat_call(0, "call_p", "apply_patch", {"input": PATCH})]},
}


def chat_answer(body):
    """The events with which the chat completions server answers."""
    last = body["messages"][-1]
    delta = CHAT_ANSWERS.get(last["content"]) if last["role"] == "user" else None
    return [chunk(delta or {"content": f"The tool says {last['content']}"}), chunk({}, "stop")]


def turn(base_url, model, *history, **more):
    """The output of one streamed answer, and the headers it came with."""
    status, headers, body = post(base_url, request(model, *history, **more))
    assert status == 200, body
    events = events_in(body)
    assert [event["type"] for event in events][-1] == "response.completed"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert [tool["type"] for tool in events[-1]["response"]["tools"]] == [tool["type"] for tool in TOOLS], "the response lists them all"
    return done, headers


def replayed(output):
    """An answer's items as Codex gives them back: without ids and statuses."""
    return [{key: value for key, value in item.items() if key not in ("id", "status")} for item in output]


def result(call, output):
    kind = "custom_tool_call_output" if call["type"] == "custom_tool_call" else "function_call_output"
    return {"type": kind, "call_id": call["call_id"], "output": output}


@pytest.mark.parametrize("model", ["parrot", "chat"])
def test_tools_of_one_name_in_two_namespaces_are_called_and_answered(base_url, model):
    question = said("user", "everywhere")
    output, _ = turn(base_url, model, question)
    calls = [item for item in output if item["type"] == "function_call"]
    assert [(call["namespace"], call["name"], call["call_id"]) for call in calls] == [
        ("mcp__issues", "find", "call_i"),
        ("mcp__wiki", "find", "call_w"),
    ]
    results = [result(call, "7 hits") for call in calls]
    (answer,), _ = turn(base_url, model, question, *replayed(output), *results)
    assert answer["content"][0]["text"] == "The tool says 7 hits"


@pytest.mark.parametrize("model", ["parrot", "chat"])
def test_a_patch_is_free_text_and_its_result_comes_back(base_url, model):
    question = said("user", "write")
    output, _ = turn(base_url, model, question)
    call = output[-1]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    (answer,), _ = turn(base_url, model, question, *replayed(output), result(call, "Done!"))
    assert answer["content"][0]["text"] == "The tool says Done!"


@pytest.mark.parametrize("model", ["parrot", "chat"])
@pytest.mark.parametrize("streamed", [True, False])
def test_what_the_model_is_not_given_is_said_in_the_head(base_url, model, streamed):
    searched = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"]}
    status, headers, _ = post(base_url, request(model, searched, said("user", "write"), stream=streamed))
    assert status == 200
    assert headers["antiphon-tools-not-offered"] == "web_search, image_generation"
    assert headers["antiphon-grammars-not-enforced"] == "apply_patch"
    assert headers["antiphon-items-not-told"] == "file_search_call"


def test_the_chat_server_is_asked_for_flat_functions_and_told_the_grammar(base_url):
    asked = ASKED[base_url]
    turn(base_url, "chat", said("user", "write"))
    functions = {tool["function"]["name"]: tool["function"] for tool in asked[-1]["tools"]}
    assert list(functions) == ["exec_command", "write_stdin", "update_plan", "apply_patch", "mcp__issues__find", "mcp__wiki__find"]
    assert "The issue tracker." in functions["mcp__issues__find"]["description"]
    assert GRAMMAR in functions["apply_patch"]["description"]
    assert asked[-1]["parallel_tool_calls"] is False
    assert "client_metadata" not in asked[-1]


@pytest.mark.parametrize("summary", ["auto", "concise", "detailed"])
@pytest.mark.parametrize("effort", ["low", "xhigh"])
def test_a_summary_is_a_wish_that_ends_no_session_with_a_model_without_any(base_url, summary, effort):
    wish = {"effort": effort, "summary": summary}
    status, _, body = post(base_url, request("chat", said("user", "Hi"), reasoning=wish))
    response = events_in(body)[-1]["response"]
    assert (status, response["status"], response["reasoning"]) == (200, "completed", wish)
    assert ASKED[base_url][-1]["reasoning_effort"] == effort and "summary" not in json.dumps(ASKED[base_url][-1])


def test_a_choice_of_one_namespaces_tool_leaves_the_other_of_that_name_out(base_url):
    turn(base_url, "chat", said("user", "write"), tool_choice={"type": "function", "name": "find", "namespace": "mcp__wiki"})
    assert [tool["function"]["name"] for tool in ASKED[base_url][-1]["tools"]] == ["mcp__wiki__find"]


def test_a_history_of_another_models_tools_is_told(base_url):
    action = {"type": "exec", "command": ["ls"], "env": {}}
    shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_s", "status": "completed", "action": action}
    ls = {"type": "function_call_output", "call_id": "call_s", "output": "a.txt"}
    thought = {"type": "reasoning", "summary": [], "encrypted_content": None}
    (answer,), headers = turn(base_url, "chat", said("user", "List."), thought, shell, ls)
    assert answer["content"][0]["text"] == "The tool says a.txt"
    assert "antiphon-items-not-told" not in headers


@pytest.mark.parametrize("choice", ["required", {"type": "image_generation"}])
def test_a_choice_that_leaves_nothing_to_call_is_refused(base_url, choice):
    body = request("parrot", tools=[{"type": "image_generation"}], tool_choice=choice)
    status, _, answer = post(base_url, body)
    assert (status, json.loads(answer)["error"]["param"]) == (400, "tool_choice")


def test_a_type_with_signs_that_no_header_may_have_does_no_harm(base_url):
    tools = [{"type": "x\r\nset-cookie: a=b"}, {"type": "ü" * 500}]
    status, headers, _ = post(base_url, {"model": "parrot", "input": "Hi", "tools": tools})
    assert status == 200
    assert "set-cookie" not in headers
    assert headers["antiphon-tools-not-offered"] == "x__set-cookie:_a_b, " + "_" * 64


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "from_the_future"}]}, "tools[0]"),
        ({"tools": [TOOLS[3]]}, "tools[0].format"),
        ({"input": [{"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search"}}]}, "input[0]"),
    ],
)
def test_a_server_that_is_told_to_refuse_does(tmp_path, fields, param):
    models = {"parrot": {"engine": "scripted", **SCRIPT}}
    with background_server(configured(tmp_path, models, responses={"unavailable_tools": "refuse"})) as url:
        status, headers, body = post(url, {"model": "parrot", "input": "Hi", **fields})
        assert (status, json.loads(body)["error"]["param"]) == (400, param)
        assert not [name for name in headers if name.startswith("antiphon-")]
        status, _, _ = post(url, {"model": "parrot", "input": "Hi", "tools": TOOLS[:3] + TOOLS[4:6]})
        assert status == 200, "namespaces are tools like any other"
