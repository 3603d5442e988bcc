"""Steering: more input for a response that is in progress."""

import pytest
from openai.types.responses.responses_server_event import ResponsesServerEvent

from antiphon.server.processes.run import background_server
from support.server.responses_peer import LAST, connected, said
from support.server.scripted_server import SCRIPT, configured
from support.wire.adapters import adapter

pytestmark = pytest.mark.anyio

MODELS = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "slow": {"engine": "scripted", "pace_ms": 20, **SCRIPT},
    "endless": {"engine": "scripted", "pace_ms": 5, "answers": [{"lines": [{"text": "la ", "repeat": 100000}]}]},
    "breaking": {"engine": "scripted", "answers": [{"lines": [{"text": "So far"}, {"wait_ms": 300}, {"failure": {"message": "No."}}]}]},
    "calling": {
        "engine": "scripted",
        "answers": [
            {"to": "result", "say": "Result and {input}"},
            {"when": "be quick", "say": "Quickly, then"},
            {"lines": [{"text": "Let me look."}, {"wait_ms": 300}, {"call": "find", "arguments": {}, "call_id": "call_1"}]},
        ],
    },
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    config = configured(tmp_path_factory.mktemp("home"), MODELS, **{"logging.level": "error"})
    with background_server(config) as address:
        yield address


async def begun(peer, text="one two three four", **fields):
    """The id of a response that has begun."""
    await peer.create(text, **fields)
    heard = await peer.until("response.output_text.delta", "response.in_progress")
    return heard[0]["response"]["id"]


async def steered(peer, response_id, input="Also this", **fields):
    """The answer to a `response.steer`."""
    await peer.say("response.steer", previous_response_id=response_id, input=input, **fields)
    event = (await peer.until("response.steer.accepted", "response.steer.failed"))[-1]
    adapter(ResponsesServerEvent).validate_python(event)
    return event


async def test_the_input_begins_a_response_of_its_own_when_the_other_has_ended(url):
    async with connected(url) as peer:
        first = await begun(peer, model="slow", stream_id="a", instructions="Be brief.")
        accepted = await steered(peer, first)
        assert accepted["type"] == "response.steer.accepted" and accepted["stream_id"] == "a"
        assert accepted["steer"]["id"].startswith("steer_") and accepted["steer"]["previous_response_id"] == first
        await peer.create("last", model="slow", stream_id="a")
        assert said((await peer.until(*LAST))[-1]["response"]) == "You said: one two three four"
        *_, end = heard = await peer.until(*LAST)
        assert heard[0]["type"] == "response.created" and all(event["stream_id"] == "a" for event in heard)
        successor = end["response"]
        assert (successor["previous_response_id"], successor["instructions"]) == (first, "Be brief.")
        assert said(successor) == "You said: Also this"
        assert said((await peer.until(*LAST))[-1]["response"]) == "You said: last"


async def test_what_the_client_owes_is_named_and_its_request_brings_the_input_along(url):
    async with connected(url) as peer:
        first = await begun(peer, model="calling")
        message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "be quick"}]}
        accepted = await steered(peer, first, [message])
        *_, completed = await peer.until(*LAST)
        pending = await peer.hear()
        adapter(ResponsesServerEvent).validate_python(pending)
        assert completed["type"] == "response.completed" and pending["type"] == "response.steer.pending"
        assert pending["reason"] == "waiting_for_required_input" and pending["steer"] == accepted["steer"]
        assert pending["required_input"] == [{"type": "function_call_output", "call_id": "call_1", "name": "find"}]
        result = {**pending["required_input"][0], "output": "found"}
        answer = await peer.ask(input=[result], previous_response_id=first, model="calling")
        assert said(answer) == "Quickly, then"  # what was steered is the last that the model reads, behind the result


@pytest.mark.parametrize(
    ("input", "code"),
    [
        ([], "invalid_input"),
        (7, "invalid_input"),
        ([{"role": "assistant", "content": "x"}], "invalid_input"),
        ([{"type": "function_call_output", "call_id": "c", "output": "x"}], "invalid_input"),
    ],
)
async def test_input_that_cannot_be_used_comes_back(url, input, code):
    async with connected(url) as peer:
        first = await begun(peer, model="endless")
        await peer.say("response.steer", previous_response_id=first, input=input)
        event = (await peer.until("response.steer.failed"))[-1]
        assert event["error"]["code"] == code and event["steer"] == {"previous_response_id": first, "input": input}


async def test_responses_that_cannot_be_steered_say_why(url):
    async with connected(url) as peer, connected(url) as other:
        ended = (await peer.ask("Hi"))["id"]
        running = await begun(other, model="endless")
        compacting = await begun(peer, model="endless", context_management=[{"type": "compaction"}], stream_id="c")
        for response_id, code in [
            (ended, "response_already_completed"),
            (running, "response_not_found"),
            ("resp_none", "response_not_found"),
            (compacting, "steering_not_supported"),
        ]:
            event = await steered(peer, response_id)
            assert event["type"] == "response.steer.failed" and event["error"]["code"] == code
            assert "id" not in event["steer"] and event["steer"]["input"] == "Also this"


async def test_one_response_takes_only_so_much(url):
    async with connected(url) as peer:
        first = await begun(peer, model="endless")
        for _ in range(16):
            assert (await steered(peer, first))["type"] == "response.steer.accepted"
        assert (await steered(peer, first))["error"]["code"] == "too_many_pending_steers"


async def test_input_for_a_response_that_fails_comes_back(url):
    async with connected(url) as peer:
        first = await begun(peer, model="breaking")
        accepted = await steered(peer, first)
        assert (await peer.until(*LAST))[-1]["type"] == "response.failed"
        failed = await peer.hear()
        assert failed["error"]["code"] == "response_not_active" and failed["sequence_number"] == 1
        assert failed["steer"] == {**accepted["steer"], "input": "Also this"}


async def test_input_comes_back_when_the_next_response_cannot_be_made(url):
    async with connected(url) as peer:
        first = await begun(peer, model="calling")
        accepted = await steered(peer, first)
        await peer.until("response.steer.pending")
        await peer.create(input="no result of the tool", previous_response_id=first, model="none")
        failed = (await peer.until("response.steer.failed"))[-1]
        assert failed["error"]["code"] == "successor_creation_failed" and failed["steer"]["id"] == accepted["steer"]["id"]
        assert (await peer.hear())["error"]["code"] == "model_not_found"
