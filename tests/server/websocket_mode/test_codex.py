"""The requests of Codex with `supports_websockets = true`: a warm-up first, then only new items, never stored."""

import json

import pytest

from antiphon.server.processes.run import background_server
from support.server.codex import CODEX
from support.server.plain_http import post
from support.server.responses_peer import LAST, connected, said
from support.server.scripted_server import configured

pytestmark = pytest.mark.anyio

HEADERS = {
    "openai-beta": "responses_websockets=2026-02-06",
    "session-id": "0199-session",
    "thread-id": "0199-thread",
    "x-client-request-id": "0199-thread",
    "originator": "codex_exec",
    "user-agent": "codex_exec/0.169.0 (Linux; x86_64)",
}
EMPTY = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "name": "exec_command", "description": "Runs it.", "strict": False, "parameters": EMPTY},
    {
        "type": "namespace",
        "name": "mcp__wiki",
        "description": "The wiki.",
        "tools": [{"type": "function", "name": "find", "parameters": EMPTY}],
    },
    {"type": "web_search", "external_web_access": False},
]
ASKED = CODEX | {"model": "coder", "tools": TOOLS, "client_metadata": {"x-codex-turn-metadata": "{}"}}
SCRIPT = {
    "answers": [
        {"to": "result", "say": "The tool says {input}"},
        {
            "when": "look",
            "lines": [
                {"reasoning": "Let me see."},
                {"encrypted_content": "c2VhbA"},
                {"call": "exec_command", "arguments": {}, "call_id": "call_e"},
            ],
        },
        {"when": "", "say": "You said: {input}"},
    ]
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    config = configured(tmp_path_factory.mktemp("home"), {"coder": {"engine": "scripted", **SCRIPT}}, **{"logging.level": "error"})
    with background_server(config, is_persistent=True) as address:
        yield address


def message(role, text):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


OPENING = [message("developer", "<permissions>Read only.</permissions>"), message("user", "<environment>/src</environment>")]


async def turn(peer, new_items, previous=None):
    """One `response.create` as Codex sends it."""
    past = {} if previous is None else {"previous_response_id": previous["id"]}
    await peer.say("response.create", **ASKED, input=new_items, **past)
    heard = await peer.until(*LAST)
    # Codex reads finished items, and takes the last event for the end.
    done = [event["item"] for event in heard if event["type"] == "response.output_item.done"]
    assert heard[0]["type"] == "response.created" and heard[-1]["type"] == "response.completed"
    assert done == heard[-1]["response"]["output"] and heard[-1]["response"]["store"] is False
    return heard[-1]["response"]


async def test_a_session_of_codex_sends_each_item_once(url):
    async with connected(url, headers=HEADERS, compress=15) as peer:
        await peer.say("response.create", **ASKED, input=OPENING, generate=False)
        warm = (await peer.until(*LAST))[-1]["response"]
        assert warm["status"] == "completed" and warm["output"] == []
        call = await turn(peer, [message("user", "look")], warm)
        reasoning, function_call = call["output"]
        assert reasoning["type"] == "reasoning" and function_call["call_id"] == "call_e"
        answer = await turn(peer, [{"type": "function_call_output", "call_id": "call_e", "output": "a.py"}], call)
        assert said(answer) == "The tool says a.py"
        assert said(await turn(peer, [message("user", "Thanks")], answer)) == "You said: Thanks"


async def test_after_a_lost_connection_codex_sends_everything_once_and_goes_on(url):
    async with connected(url, headers=HEADERS) as peer:
        call = await turn(peer, [*OPENING, message("user", "look")])
    result = {"type": "function_call_output", "call_id": "call_e", "output": "a.py"}
    async with connected(url, headers=HEADERS) as peer:
        await peer.say("response.create", **ASKED, input=[result], previous_response_id=call["id"])
        event = await peer.hear()
        assert (event["type"], event["status"], event["error"]["code"]) == ("error", 400, "previous_response_not_found")
        answer = await turn(peer, [*OPENING, message("user", "look"), *call["output"], result])
        assert said(answer) == "The tool says a.py"
        assert said(await turn(peer, [message("user", "And?")], answer)) == "You said: And?"


async def test_the_model_gets_the_conversation_that_it_would_get_over_http(url):
    async with connected(url, headers=HEADERS) as peer:
        call = await turn(peer, [*OPENING, message("user", "look")])
        answer = await turn(peer, [{"type": "function_call_output", "call_id": "call_e", "output": "a.py"}], call)
    whole = [*OPENING, message("user", "look"), *call["output"], {"type": "function_call_output", "call_id": "call_e", "output": "a.py"}]
    _, _, body = post(url, {**ASKED, "stream": False, "input": whole})
    assert answer["usage"] == json.loads(body)["usage"]
