"""A server of ours before another of ours: whatever the first session does, the second hears and answers."""

import base64

import pytest

from antiphon.server.processes.run import background_server
from support.server.realtime_peer import connected, kinds, talked
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

RATE_HZ = 24_000
BUZZ = (b"\0\x20" * 60 + b"\0\xe0" * 60) * 120
SILENCE = bytes(2 * RATE_HZ)
UPSTREAM = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "talker": {"engine": "scripted", "pace_ms": 20, "answers": [{"say": "one two three four five six seven eight nine ten"}]},
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The server in front; in the back it speaks GA for the first two models, beta for the others."""
    with background_server(configured(tmp_path_factory.mktemp("back"), UPSTREAM)) as back:
        models = {
            f"{dialect}-{model}": {"engine": "realtime", "base_url": f"{back}/v1", "dialect": dialect, "model": model}
            for dialect in ("ga", "beta")
            for model in UPSTREAM
        }
        with background_server(configured(tmp_path_factory.mktemp("front"), models)) as front:
            yield front


@pytest.mark.parametrize("upstream", ["ga", "beta"])
@pytest.mark.parametrize("dialect", ["ga", "beta"])
async def test_a_question_in_writing_is_answered_through_both(url, dialect, upstream):
    headers = {"OpenAI-Beta": "realtime=v1"} if dialect == "beta" else {}
    events = await talked(url, "Hi", dialect, headers=headers, model=f"{upstream}-parrot")
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert "".join(deltas) == "You said: Hi"
    assert events[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("upstream", ["ga", "beta"])
async def test_a_call_goes_there_and_its_result_comes_back(url, upstream):
    async with connected(url, model=f"{upstream}-parrot") as peer:
        await peer.hear()
        tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}]
        await peer.say("session.update", session={"type": "realtime", "output_modalities": ["text"], "tools": tools})
        events = await peer.ask("The weather?")
        (call,) = events[-1]["response"]["output"]
        assert (call["name"], call["call_id"], call["arguments"]) == ("get_weather", "call_w1", '{"city":"Paris"}')
        await peer.say("conversation.item.create", item={"type": "function_call_output", "call_id": "call_w1", "output": "rain"})
        await peer.say("response.create")
        done = (await peer.until("response.done"))[-1]
        assert done["response"]["output"][0]["content"][0]["text"] == "The tool says rain"


async def say(peer, pcm):
    await peer.say("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())


@pytest.mark.parametrize("upstream", ["ga", "beta"])
async def test_somebody_who_speaks_is_heard_written_down_and_answered_aloud(url, upstream):
    async with connected(url, model=f"{upstream}-parrot") as peer:
        await peer.hear()
        await peer.say("session.update", session={"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}})
        await say(peer, SILENCE + BUZZ + SILENCE)
        events = await peer.until("response.done")
        told = kinds(events)
        order = ["speech_started", "speech_stopped", "committed"]
        assert [kind.rpartition(".")[2] for kind in told if kind.startswith("input_audio_buffer.")] == order
        assert told.index("response.output_audio_transcript.delta") < told.index("response.output_audio.delta")
        (started,) = (event for event in events if event["type"] == "input_audio_buffer.speech_started")
        assert 500 <= started["audio_start_ms"] <= 1000
        (heard,) = (event for event in events if event["type"].endswith("transcription.completed"))
        assert events[-1]["response"]["output"][0]["content"][0]["transcript"] == f"You said: {heard['transcript']}"


@pytest.mark.parametrize("upstream", ["ga", "beta"])
async def test_a_barge_in_cuts_off_the_answer_and_the_next_turn_is_answered(url, upstream):
    async with connected(url, model=f"{upstream}-talker") as peer:
        await peer.hear()
        await say(peer, BUZZ + SILENCE)
        first = await peer.until("response.output_audio.delta")
        await say(peer, BUZZ)
        cut = (await peer.until("response.done"))[-1]["response"]
        assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "turn_detected")
        item_id = first[-1]["item_id"]
        await peer.say("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=50)
        await peer.until("conversation.item.truncated")
        await say(peer, SILENCE)
        done = (await peer.until("response.done"))[-1]["response"]
        assert done["status"] == "completed"
