"""Pipecat's OpenAI Realtime service, in a pipeline as an agent has it, converses with antiphon."""

import asyncio
import contextlib
import math
import os
import struct
from pathlib import Path

import pytest
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMRunFrame,
    LLMTextFrame,
    LLMUpdateSettingsFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

URL = os.environ["ANTIPHON_URL"].replace("http", "ws") + "/realtime"
QUESTION = Path(os.environ["ANTIPHON_QUESTION"]).read_bytes() if "ANTIPHON_QUESTION" in os.environ else b""
RATE_HZ = 24_000
DEADLINE_S = 30
HEARD = events.InputAudioTranscription(model="whisper-1")
SERVER_VAD = events.AudioInput(transcription=HEARD, turn_detection=events.TurnDetection())


def speech(ms):
    """A tone that is loud enough to be speech."""
    return b"".join(struct.pack("<h", round(12_000 * math.sin(n * math.tau * 220 / RATE_HZ))) for n in range(RATE_HZ * ms // 1000))


def silence(ms):
    return bytes(RATE_HZ * ms // 1000 * 2)


async def get_weather(params: FunctionCallParams, city: str):
    """The weather in a city.

    Args:
        city: Its name.
    """
    await params.result_callback(f"sunny in {city}")


class Speaker(FrameProcessor):
    """Where the sound would go: keeps what comes by, both ways."""

    def __init__(self):
        super().__init__()
        self.frames = asyncio.Queue()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if direction is FrameDirection.DOWNSTREAM:
            self.frames.put_nowait(frame)
        await self.push_frame(frame, direction)


class Agent:
    """A pipeline with the service in it."""

    def __init__(self, *said, tools=(), model="parrot", **properties):
        properties = events.SessionProperties(**properties)
        self.llm = OpenAIRealtimeLLMService(
            api_key="none", base_url=URL, settings=OpenAIRealtimeLLMService.Settings(model=model, session_properties=properties)
        )
        self.context = LLMContext([{"role": "user", "content": text} for text in said], list(tools))
        self.speaker = Speaker()
        self.items = asyncio.Queue()
        self.errors = []
        aggregators = LLMContextAggregatorPair(self.context)
        self.worker = PipelineWorker(
            Pipeline([aggregators.user(), self.llm, self.speaker, aggregators.assistant()]),
            params=PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ, enable_usage_metrics=True),
        )
        self.worker.add_event_handler("on_pipeline_error", self._failed)
        self.llm.add_event_handler("on_conversation_item_updated", self._updated)

    async def _failed(self, _worker, frame):
        self.errors.append(frame.error)
        self.speaker.frames.put_nowait(frame)

    async def _updated(self, _service, _id, item):
        if item is not None:
            self.items.put_nowait(item)

    @contextlib.asynccontextmanager
    async def running(self):
        """Started, and ended as an agent ends."""
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(runner.run())
            try:
                yield self
            finally:
                await self.worker.queue_frame(EndFrame())

    async def until(self, kind):
        """Everything downstream up to the first frame of a kind, that last."""
        frames = [await self.speaker.frames.get()]
        while not isinstance(frames[-1], kind):
            assert not isinstance(frames[-1], ErrorFrame), frames[-1].error
            frames.append(await self.speaker.frames.get())
        return frames

    async def run(self):
        """Answer what the context says."""
        await self.worker.queue_frame(LLMRunFrame())
        return await self.answer()

    async def answer(self):
        """All of the next answer that says something."""
        frames = []
        while not only(frames, LLMTextFrame):
            frames += await self.until(LLMFullResponseEndFrame)
        return frames

    async def hear(self, pcm):
        """Sound, as a transport brings it: twenty milliseconds a frame."""
        size = len(silence(20))
        for start in range(0, len(pcm), size):
            await self.worker.queue_frame(InputAudioRawFrame(pcm[start : start + size], RATE_HZ, 1))


def only(frames, kind):
    return [frame for frame in frames if isinstance(frame, kind)]


def text(frames):
    return "".join(frame.text for frame in only(frames, LLMTextFrame) if not isinstance(frame, TTSTextFrame))


def test_text_turn():
    async def scenario():
        async with Agent("Hello", output_modalities=["text"]).running() as agent:
            return await agent.run(), agent.errors

    frames, errors = asyncio.run(scenario())
    assert (text(frames), only(frames, TTSAudioRawFrame), errors) == ("You said: Hello", [], [])
    [usage] = [metric.value for frame in only(frames, MetricsFrame) for metric in frame.data if hasattr(metric.value, "total_tokens")]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


def test_tool_round_trip():
    async def scenario():
        async with Agent("How is the weather?", tools=[get_weather], output_modalities=["text"]).running() as agent:
            return await agent.run(), agent.context.get_messages(), agent.errors

    frames, messages, errors = asyncio.run(scenario())
    assert text(frames) == 'The tool says "sunny in Paris"'
    assert [message.get("tool_call_id") for message in messages if message["role"] == "tool"] == ["call_w"]
    assert errors == []


def test_spoken_turn():
    async def scenario():
        async with Agent("Hello", audio=events.AudioConfiguration(input=SERVER_VAD)).running() as agent:
            await agent.run()
            await agent.hear(speech(1000))
            await agent.until(InterruptionFrame)  # which would cut off the answer, were it there already
            await agent.hear(silence(1000))
            return await agent.answer(), agent.errors, agent.context

    frames, errors, context = asyncio.run(scenario())
    assert text(frames) == "You said: Good morning."
    assert sum(len(frame.audio) for frame in only(frames, TTSAudioRawFrame)) > len(silence(1000))
    assert errors == []
    assert [(message["role"], message["content"]) for message in context.get_messages()] == [
        ("user", "Hello"),
        ("assistant", "You said: Hello"),
        ("user", "Good morning."),
        ("assistant", "You said: Good morning."),
    ]


@pytest.mark.skipif(not QUESTION, reason="the server can't listen and speak")
def test_question_of_a_person_is_answered_aloud_by_a_real_model():
    async def scenario():
        audio = events.AudioConfiguration(input=SERVER_VAD)
        async with Agent("Hello", model=os.environ["ANTIPHON_MODEL"], audio=audio, max_output_tokens=40).running() as agent:
            await agent.run()
            await agent.hear(QUESTION)
            await agent.until(InterruptionFrame)
            await agent.hear(silence(1000))
            return await agent.answer(), agent.errors, agent.context

    frames, errors, context = asyncio.run(scenario())
    assert sum(len(frame.audio) for frame in only(frames, TTSAudioRawFrame)) > len(silence(500))
    assert errors == []
    assert "clubs" in context.get_messages()[2]["content"].lower()


def test_speech_cuts_off_the_answer_that_is_playing():
    async def scenario():
        async with Agent("Tell me a story.", audio=events.AudioConfiguration(input=SERVER_VAD)).running() as agent:
            await agent.worker.queue_frame(LLMRunFrame())
            await agent.until(TTSAudioRawFrame)
            await agent.hear(speech(500))
            await agent.until(InterruptionFrame)
            while (cut := await agent.items.get()).role != "assistant":
                pass
            item = await agent.llm.retrieve_conversation_item(cut.id)
            await agent.hear(silence(1000))
            return cut, item, await agent.answer(), agent.errors

    cut, item, frames, errors = asyncio.run(scenario())
    assert (cut.status, item.status, item.content[0].transcript) == ("incomplete", "incomplete", None)
    assert text(frames) == "You said: Good morning."
    assert errors == []


def test_turns_that_the_pipeline_detects():
    async def scenario():
        manual = events.AudioInput(transcription=HEARD, turn_detection=False)
        async with Agent("Hello", audio=events.AudioConfiguration(input=manual)).running() as agent:
            await agent.run()
            await agent.hear(speech(300))
            await agent.worker.queue_frame(InterruptionFrame())
            await agent.hear(speech(300))
            await agent.worker.queue_frame(UserStoppedSpeakingFrame())
            return await agent.answer(), agent.errors

    frames, errors = asyncio.run(scenario())
    assert text(frames) == "You said: Good morning."
    assert errors == []


def test_item_that_is_not_there():
    async def scenario():
        async with Agent("Hello", output_modalities=["text"]).running() as agent:
            await agent.run()
            with pytest.raises(Exception, match="nothing"):
                await agent.llm.retrieve_conversation_item("nothing")
            item = await agent.items.get()
            return item, await agent.llm.retrieve_conversation_item(item.id), agent.errors

    item, retrieved, errors = asyncio.run(scenario())
    assert (retrieved.id, retrieved.content, errors) == (item.id, item.content, [])


def test_update_that_is_refused_is_an_error():
    async def scenario():
        async with Agent("Hello", output_modalities=["text"]).running() as agent:
            await agent.run()
            too_fast = events.SessionProperties(audio=events.AudioConfiguration(output=events.AudioOutput(speed=9)))
            settings = OpenAIRealtimeLLMService.Settings(session_properties=too_fast)
            await agent.worker.queue_frame(LLMUpdateSettingsFrame(delta=settings))
            while not agent.errors:
                await agent.speaker.frames.get()
            return agent.errors

    [error] = asyncio.run(scenario())
    assert "speed" in error


def test_answer_that_fails():
    async def scenario():
        async with Agent("Please break midway.", output_modalities=["text"]).running() as agent:
            await agent.worker.queue_frame(LLMRunFrame())
            frames = await agent.until(LLMFullResponseEndFrame)
            while not agent.errors:
                await agent.speaker.frames.get()
            return frames, agent.errors

    frames, errors = asyncio.run(scenario())
    assert (text(frames), errors) == ("So far so good", ["The model broke."])
