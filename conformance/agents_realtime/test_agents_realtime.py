"""The OpenAI Agents SDK's realtime sessions converse with antiphon."""

import asyncio
import contextlib
import math
import os
import struct
from pathlib import Path

import pytest
from agents import GuardrailFunctionOutput, function_tool, output_guardrail
from agents.realtime import RealtimeAgent, RealtimeRunner
from agents.realtime.model_inputs import RealtimeModelSendRawMessage

URL = os.environ["ANTIPHON_URL"].replace("http", "ws") + "/realtime?model=parrot"
QUESTION = Path(os.environ["ANTIPHON_QUESTION"]).read_bytes() if "ANTIPHON_QUESTION" in os.environ else b""
RATE_HZ = 24_000
DEADLINE_S = 30
HEARD = {"model": "whisper-1"}
SERVER_VAD = {"type": "server_vad", "interrupt_response": True}


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@output_guardrail
async def no_parrots(_context, _agent, output):
    """Nobody is to speak of parrots."""
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="parrot" in output)


def speech(ms):
    """A tone that is loud enough to be speech."""
    return b"".join(struct.pack("<h", round(12_000 * math.sin(n * math.tau * 220 / RATE_HZ))) for n in range(RATE_HZ * ms // 1000))


def silence(ms):
    return bytes(RATE_HZ * ms // 1000 * 2)


class Talk:
    """A session, and the events that it gave."""

    def __init__(self, session):
        self.session = session
        self.events = []

    async def read(self):
        event = await anext(aiter(self.session))
        self.events.append(event)
        return event

    async def until(self, kind):
        """The next event of a kind of the SDK's."""
        while (event := await self.read()).type != kind:
            pass
        return event

    async def told(self, kind):
        """The next event of a kind of the server's."""
        while True:
            event = await self.until("raw_model_event")
            if event.data.type == "raw_server_event" and event.data.data["type"] == kind:
                return event.data.data

    async def history(self, *texts):
        """What was said by whom, once it is told to be this."""
        while (said := [said_in(item) for item in (await self.until("history_updated")).history]) != list(texts):
            pass
        return said

    async def send(self, kind, **fields):
        """An event that the SDK has no call for."""
        await self.session.model.send_event(RealtimeModelSendRawMessage(message={"type": kind, "other_data": fields}))

    @property
    def errors(self):
        return [event.error for event in self.events if event.type == "error"]


def said_in(item):
    if item.type != "message":
        return item.output
    return "".join(getattr(part, "text", None) or getattr(part, "transcript", None) or "" for part in item.content)


@contextlib.asynccontextmanager
async def connected(config=None, tools=(), model="parrot", **settings):
    agent = RealtimeAgent(name="a", instructions="Be brief.", tools=list(tools))
    settings = {"audio": {"input": {"turn_detection": SERVER_VAD, "transcription": HEARD}}} | settings
    runner = RealtimeRunner(agent, config=config)
    model_config = {"url": URL.replace("parrot", model), "api_key": "none", "initial_model_settings": settings}
    async with asyncio.timeout(DEADLINE_S), await runner.run(model_config=model_config) as session:
        talk = Talk(session)
        await talk.told("session.updated")
        yield talk


def test_session_as_the_sdk_wants_it_by_default():
    async def scenario():
        async with connected() as talk:
            return await talk.told("session.updated"), talk.errors

    updated, errors = asyncio.run(scenario())
    assert updated["session"]["instructions"] == "Be brief."
    assert updated["session"]["tracing"] == "auto"
    assert updated["session"]["audio"]["output"]["voice"] == "ash"
    assert errors == []


def test_text_turn():
    async def scenario():
        async with connected(modalities=["text"]) as talk:
            await talk.session.send_message("Hello")
            await talk.history("Hello", "You said: Hello")
            await talk.until("agent_end")
            return talk.errors

    assert asyncio.run(scenario()) == []


def test_tool_round_trip():
    async def scenario():
        async with connected(tools=[get_weather], modalities=["text"]) as talk:
            await talk.session.send_message("How is the weather?")
            output = (await talk.until("tool_end")).output
            await talk.history("How is the weather?", "sunny in Paris", "The tool says sunny in Paris")
            return output, talk.errors

    output, errors = asyncio.run(scenario())
    assert (output, errors) == ("sunny in Paris", [])


def test_spoken_turn():
    async def scenario():
        async with connected() as talk:
            await talk.session.send_audio(speech(1000) + silence(1000))
            await talk.until("audio_end")
            await talk.history("Good morning.", "You said: Good morning.")
            return [event.audio.data for event in talk.events if event.type == "audio"], talk.errors

    sound, errors = asyncio.run(scenario())
    assert sum(map(len, sound)) > len(silence(1000))
    assert errors == []


@pytest.mark.skipif(not QUESTION, reason="the server can't listen and speak")
def test_question_of_a_person_is_answered_aloud_by_a_real_model():
    async def scenario():
        async with connected(model=os.environ["ANTIPHON_MODEL"]) as talk:
            await talk.send("session.update", session={"type": "realtime", "max_output_tokens": 40})
            await talk.session.send_audio(QUESTION + silence(1000))
            heard = await talk.told("conversation.item.input_audio_transcription.completed")
            await talk.until("audio_end")
            return heard["transcript"], [event.audio.data for event in talk.events if event.type == "audio"], talk.errors

    heard, sound, errors = asyncio.run(scenario())
    assert "clubs" in heard.lower()
    assert sum(map(len, sound)) > len(silence(500))
    assert errors == []


def test_speech_cuts_off_the_answer_that_is_playing():
    async def scenario():
        async with connected() as talk:
            await talk.session.send_message("Tell me a story.")
            playing = await talk.until("audio")
            await talk.session.send_audio(speech(500))
            interrupted = await talk.until("audio_interrupted")
            done = await talk.told("response.done")
            truncated = await talk.told("conversation.item.truncated")
            await talk.session.send_audio(silence(1000))
            await talk.until("audio_end")
            return playing.item_id, interrupted.item_id, truncated["item_id"], done["response"], talk.errors

    playing, interrupted, truncated, done, errors = asyncio.run(scenario())
    assert playing == interrupted == truncated
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
    assert errors == []


def test_interruption_by_the_client():
    async def scenario():
        by_hand = {"audio": {"input": {"turn_detection": SERVER_VAD | {"interrupt_response": False}}}}
        async with connected(**by_hand) as talk:
            await talk.session.send_message("Tell me a story.")
            await talk.until("audio")
            await talk.session.interrupt()
            done = await talk.told("response.done")
            await talk.session.send_message("Hello")
            await talk.until("audio_end")
            return done["response"], talk.errors

    done, errors = asyncio.run(scenario())
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert errors == []


def test_turn_committed_by_hand():
    async def scenario():
        async with connected(audio={"input": {"turn_detection": None, "transcription": HEARD}}) as talk:
            await talk.session.send_audio(speech(300), commit=True)
            await talk.told("input_audio_buffer.committed")
            await talk.send("response.create")
            await talk.history("Good morning.", "You said: Good morning.")
            return talk.errors

    assert asyncio.run(scenario()) == []


def test_guardrail_stops_the_answer_and_has_another():
    async def scenario():
        config = {"output_guardrails": [no_parrots], "guardrails_settings": {"debounce_text_length": 30}}
        async with connected(config) as talk:
            await talk.session.send_message("Tell me a story.")
            await talk.until("guardrail_tripped")
            done = await talk.told("response.done")
            again = await talk.told("response.done")
            return done["response"], again["response"], talk.errors

    done, again, errors = asyncio.run(scenario())
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert again["output"][0]["content"][0]["transcript"] == "You said: guardrail triggered: no_parrots"
    assert errors == []


def test_agent_is_replaced():
    async def scenario():
        async with connected(modalities=["text"]) as talk:
            await talk.told("session.updated")
            await talk.session.update_agent(RealtimeAgent(name="b", instructions="Be long.", tools=[get_weather]))
            updated = await talk.told("session.updated")
            return updated["session"], talk.errors

    session, errors = asyncio.run(scenario())
    assert session["instructions"] == "Be long."
    assert [tool["name"] for tool in session["tools"]] == ["get_weather"]
    assert errors == []


def test_refusal_is_an_error_and_the_session_goes_on():
    async def scenario():
        async with connected(modalities=["text"]) as talk:
            await talk.send("conversation.item.delete", item_id="nothing", event_id="mine")
            refused = (await talk.until("error")).error
            await talk.session.send_message("Hello")
            await talk.history("Hello", "You said: Hello")
            return refused, talk.errors

    refused, errors = asyncio.run(scenario())
    assert (refused.code, refused.event_id) == ("item_delete_invalid_item_id", "mine")
    assert errors == [refused]
