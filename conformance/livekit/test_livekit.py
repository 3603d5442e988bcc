"""The realtime model of LiveKit's OpenAI plugin, driven as an agent's session drives it, converses with antiphon."""

import asyncio
import contextlib
import math
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from livekit import rtc
from livekit.agents import function_tool, llm
from livekit.plugins import openai
from openai.types.realtime.realtime_audio_input_turn_detection import ServerVad

URL = os.environ["ANTIPHON_URL"]
QUESTION = Path(os.environ["ANTIPHON_QUESTION"]).read_bytes() if "ANTIPHON_QUESTION" in os.environ else b""
RATE_HZ = 24_000
DEADLINE_S = 30
SERVER_VAD = ServerVad(type="server_vad", silence_duration_ms=500)


@function_tool
async def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def speech(ms):
    """A tone that is loud enough to be speech."""
    count = RATE_HZ * ms // 1000
    tone = b"".join(struct.pack("<h", round(12_000 * math.sin(n * math.tau * 220 / RATE_HZ))) for n in range(count))
    return rtc.AudioFrame(tone, RATE_HZ, 1, count)


def silence(ms):
    return rtc.AudioFrame.create(RATE_HZ, 1, RATE_HZ * ms // 1000)


@dataclass
class Said:
    """One answer, as an agent would forward it."""

    id: str = ""
    text: str = ""
    sound_s: float = 0
    calls: list = field(default_factory=list)


class Talk:
    """A session of the plugin, and what it told."""

    def __init__(self, session):
        self.session = session
        self.errors = []
        self.told = asyncio.Queue()
        self.heard = asyncio.Queue()
        self.generations = asyncio.Queue()
        session.on("error", self.errors.append)
        session.on("openai_server_event_received", self.told.put_nowait)
        session.on("input_audio_transcription_completed", self.heard.put_nowait)
        session.on("generation_created", self.generations.put_nowait)

    async def until(self, kind):
        while (event := await self.told.get())["type"] != kind:
            pass
        return event

    async def add(self, **message):
        """Say something in writing, as the user."""
        context = self.session.chat_ctx.copy()
        context.add_message(role="user", **message)
        await self.session.update_chat_ctx(context)

    async def answer(self, content):
        await self.add(content=content)
        return await said(await self.session.generate_reply())

    def hear(self, *frames):
        for frame in frames:
            self.session.push_audio(frame)


@contextlib.asynccontextmanager
async def connected(make=openai.realtime.RealtimeModel, **options):
    options = {"model": "parrot", "base_url": URL, "turn_detection": SERVER_VAD} | options
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as http:
        model = make(api_key="none", http_session=http, **options)
        talk = Talk(model.session())
        await talk.until("session.updated")
        try:
            yield talk
        finally:
            await talk.session.aclose()


async def said(generation):
    """All of an answer that says one thing, or calls tools."""
    answer = Said()
    async for message in generation.message_stream:
        answer.id = message.message_id
        answer.text = "".join([str(piece) async for piece in message.text_stream])
        answer.sound_s = sum([frame.duration async for frame in message.audio_stream])
    answer.calls = [call async for call in generation.function_stream]
    return answer


def test_text_turn():
    async def scenario():
        async with connected(modalities=["text"]) as talk:
            return await talk.answer("Hello"), talk.errors

    answer, errors = asyncio.run(scenario())
    assert (answer.text, answer.sound_s, errors) == ("You said: Hello", 0, [])


def test_tool_round_trip():
    async def scenario():
        async with connected(modalities=["text"]) as talk:
            await talk.session.update_tools([get_weather])
            [call] = (await talk.answer("How is the weather?")).calls
            context = talk.session.chat_ctx.copy()
            context.items.append(llm.FunctionCallOutput(call_id=call.call_id, name=call.name, output="sunny in Paris", is_error=False))
            await talk.session.update_chat_ctx(context)
            answer = await said(await talk.session.generate_reply())
            return call, answer, [item.type for item in talk.session.chat_ctx.items], talk.errors

    call, answer, items, errors = asyncio.run(scenario())
    assert (call.name, call.call_id, call.arguments) == ("get_weather", "call_w", '{"city":"Paris"}')
    assert answer.text == "The tool says sunny in Paris"
    assert items == ["message", "function_call", "function_call_output", "message"]
    assert errors == []


@pytest.mark.skipif(not QUESTION, reason="the server can't listen and speak")
def test_question_of_a_person_is_answered_aloud_by_a_real_model():
    async def scenario():
        async with connected(model=os.environ["ANTIPHON_MODEL"]) as talk:
            talk.hear(rtc.AudioFrame(QUESTION, RATE_HZ, 1, len(QUESTION) // 2), silence(1000))
            message = await anext(aiter((await talk.generations.get()).message_stream))
            words, frame = await anext(aiter(message.text_stream)), await anext(aiter(message.audio_stream))
            talk.session.interrupt()  # a small model may go on and on, and the plugin can't limit it
            while not (heard := await talk.heard.get()).is_final:
                pass
            return words, frame.duration, heard.transcript, talk.errors

    words, sound_s, heard, errors = asyncio.run(scenario())
    assert "clubs" in heard.lower()
    assert str(words) != ""
    assert sound_s > 0
    assert errors == []


def test_spoken_turn():
    async def scenario():
        async with connected() as talk:
            talk.hear(speech(1000), silence(1000))
            answer = await said(await talk.generations.get())
            while not (heard := await talk.heard.get()).is_final:
                pass
            return answer, heard, talk.errors

    answer, heard, errors = asyncio.run(scenario())
    assert heard.transcript == "Good morning."
    assert answer.text == "You said: Good morning."
    assert answer.sound_s > 1
    assert errors == []


def test_speech_cuts_off_the_answer_that_is_playing():
    async def scenario():
        async with connected() as talk:
            await talk.add(content="Tell me a story.")
            generation = await talk.session.generate_reply()
            message = await anext(aiter(generation.message_stream))
            await anext(aiter(message.audio_stream))
            talk.hear(speech(500))
            done = (await talk.until("response.done"))["response"]
            async for _frame in message.audio_stream:  # ends with the answer
                pass
            talk.session.truncate(message_id=message.message_id, modalities=["audio", "text"], audio_end_ms=50)
            truncated = await talk.until("conversation.item.truncated")
            talk.hear(silence(1000))
            await talk.generations.get()
            return message, done, truncated, await said(await talk.generations.get()), talk.errors

    message, done, truncated, answer, errors = asyncio.run(scenario())
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
    assert (truncated["item_id"], truncated["audio_end_ms"]) == (message.message_id, 50)
    assert answer.text == "You said: Good morning."
    assert errors == []


def test_turn_committed_by_hand():
    async def scenario():
        async with connected(turn_detection=None) as talk:
            talk.hear(speech(300))
            talk.session.clear_audio()
            talk.hear(speech(300))
            talk.session.commit_audio()
            await talk.until("input_audio_buffer.committed")
            return await said(await talk.session.generate_reply()), talk.errors

    answer, errors = asyncio.run(scenario())
    assert (answer.text, errors) == ("You said: Good morning.", [])


def test_second_reply_while_one_is_under_way():
    async def scenario():
        async with connected() as talk:
            await talk.add(content="Tell me a story.")
            generation = await talk.session.generate_reply()
            message = await anext(aiter(generation.message_stream))
            await anext(aiter(message.audio_stream))
            with pytest.raises(llm.RealtimeError) as refused:
                await talk.session.generate_reply()
            talk.session.interrupt()
            done = (await talk.until("response.done"))["response"]
            return refused.value, done, await talk.answer("Hello"), talk.errors

    refused, done, answer, errors = asyncio.run(scenario())
    assert refused.code == "conversation_already_has_active_response"
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert answer.text == "You said: Hello"
    assert [error.recoverable for error in errors] == [True]


def test_reply_that_fails_is_an_error_one_can_go_on_from():
    async def scenario():
        async with connected(modalities=["text"]) as talk:
            return await talk.answer("Please break midway."), await talk.answer("Hello"), talk.errors

    failed, answer, errors = asyncio.run(scenario())
    assert (failed.text, answer.text) == ("So far so good", "You said: Hello")
    assert [(error.recoverable, error.error.body.code) for error in errors] == [(True, "server_error")]


def test_context_is_rewritten():
    async def scenario():
        async with connected(modalities=["text"]) as talk:
            await talk.add(content="One")
            await talk.add(content="Two")
            context = talk.session.chat_ctx.copy()
            context.items.pop(0)
            context.items.insert(0, llm.ChatMessage(role="system", content=["Be brief."]))
            context.items.insert(1, llm.ChatMessage(role="assistant", content=["Zero"]))
            await talk.session.update_chat_ctx(context)
            return [(item.role, item.text_content) for item in talk.session.chat_ctx.items], await talk.answer("Three"), talk.errors

    items, answer, errors = asyncio.run(scenario())
    assert items == [("system", "Be brief."), ("assistant", "Zero"), ("user", "Two")]
    assert (answer.text, errors) == ("You said: Three", [])


def test_options_change_while_the_session_lasts():
    async def scenario():
        async with connected() as talk:
            talk.session.update_options(voice="sage", speed=1.2, turn_detection=None, tool_choice="none", tracing="auto")
            first = (await talk.until("session.updated"))["session"]
            await talk.session.update_instructions("Be brief.")
            return first, (await talk.until("session.updated"))["session"], talk.errors

    first, second, errors = asyncio.run(scenario())
    assert (first["audio"]["output"]["voice"], first["audio"]["output"]["speed"]) == ("sage", 1.2)
    assert (first["audio"]["input"]["turn_detection"], first["tool_choice"], first["tracing"]) == (None, "none", "auto")
    assert second == first | {"instructions": "Be brief."}
    assert errors == []


def test_context_is_replayed_on_another_connection():
    async def scenario():
        async with connected(max_session_duration=0.5, modalities=["text"]) as talk:
            reconnected = asyncio.Event()
            talk.session.on("session_reconnected", lambda _event: reconnected.set())
            await talk.add(content="Hello")
            await reconnected.wait()
            while not talk.session.chat_ctx.items:
                await talk.told.get()
            return [item.text_content for item in talk.session.chat_ctx.items], talk.errors

    assert asyncio.run(scenario()) == (["Hello"], [])


def test_preview_of_azure():
    async def scenario():
        azure = {
            "azure_deployment": "parrot",
            "api_version": "2024-10-01-preview",
            "base_url": URL.replace("/v1", "/openai"),
            "model": None,
        }
        make = openai.realtime.RealtimeModel.with_azure
        async with connected(lambda **options: make(**{name: value for name, value in options.items() if value}), **azure) as talk:
            written = await talk.answer("Hello")
            talk.hear(speech(1000), silence(1000))
            await talk.generations.get()
            return written, await said(await talk.generations.get()), talk.errors

    written, spoken, errors = asyncio.run(scenario())
    assert (written.text, spoken.text, errors) == ("You said: Hello", "You said: Good morning.", [])
    assert min(written.sound_s, spoken.sound_s) > 0.5
