"""One conversation with the server: every event that it sends is held against the SDK's own types."""

import asyncio
import base64
import itertools
import math
import os
import struct

import openai
from pydantic import BaseModel

URL = os.environ["ANTIPHON_URL"]
RATE_HZ = 24_000
DEADLINE_S = 30
# The original sends these too: the SDK's types of sessions are of those that are asked for, and the beta's were never finished.
UNTYPED = {
    *(f".session.{name}" for name in ("id", "object", "expires_at", "include", "input_audio_noise_reduction")),
    *(f".session.turn_detection.{name}" for name in ("create_response", "interrupt_response")),
    *(f".response.usage.input_token_details.{name}" for name in ("image_tokens", "cached_tokens_details")),
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def client_of(key="none", **options):
    """A client of the server."""
    return openai.AsyncOpenAI(base_url=URL, api_key=key, max_retries=0, **options)


def speech(ms):
    """A tone that is loud enough to be speech."""
    return b"".join(struct.pack("<h", round(12_000 * math.sin(n * math.tau * 220 / RATE_HZ))) for n in range(RATE_HZ * ms // 1000))


def silence(ms):
    return bytes(RATE_HZ * ms // 1000 * 2)


def seconds(events):
    """How long the sound of these events is."""
    return sum(len(base64.b64decode(event.delta)) for event in events) / 2 / RATE_HZ


class Dialogue:
    """What is said on one connection; each event is read with `parse`, which is strict, and kept."""

    def __init__(self, connection, parse):
        self.connection = connection
        self.parse = parse
        self.events = []

    async def read(self):
        async with asyncio.timeout(DEADLINE_S):
            event = self.parse(await self.connection.recv_bytes())
        assert not (unknown := set(fields_beyond(event)) - UNTYPED), f"{event.type} has fields that its type has not: {unknown}"
        self.events.append(event)
        return event

    async def until(self, *kinds, where=lambda _event: True):
        """Everything up to the first event of one of these kinds, that last."""
        events = [await self.read()]
        while events[-1].type not in kinds or not where(events[-1]):
            assert events[-1].type != "error" or "error" in kinds, events[-1]
            events.append(await self.read())
        return events

    async def all_of(self, *kinds):
        """Everything until one of each of these kinds has come."""
        events = []
        while not set(kinds) <= {event.type for event in events}:
            events += await self.until(*kinds)
        return events

    async def refusal(self):
        """The error that comes next."""
        return (await self.until("error"))[-1].error

    async def say(self, pcm):
        """Send sound as a microphone would, a tenth of a second at a time."""
        size = len(silence(100))
        for start in range(0, len(pcm), size):
            await self.connection.input_audio_buffer.append(audio=base64.b64encode(pcm[start : start + size]).decode())

    async def write(self, text):
        await self.connection.conversation.item.create(item=message(text))

    async def answer(self):
        """The response to what was said last, when it is done."""
        await self.connection.response.create()
        return (await self.until("response.done"))[-1].response


def message(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def kinds(events):
    """The types of the events, those that repeat once."""
    return [kind for kind, _ in itertools.groupby(event.type for event in events)]


def only(events, kind):
    return [event for event in events if event.type == kind]


def fields_beyond(value, path=""):
    """Fields that the SDK's types know nothing of."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or {})
        for name in value.model_fields_set:
            yield from fields_beyond(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for one in value:
            yield from fields_beyond(one, f"{path}[]")
