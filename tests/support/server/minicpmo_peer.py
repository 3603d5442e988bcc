"""A MiniCPM-o client that sends only what the test says."""

import base64
from contextlib import asynccontextmanager

import aiohttp
import numpy as np

from support.server.realtime_peer import Peer, turns

RATE_HZ = 16_000


def sound(seconds=1.0, loudness=0.0):
    """A second of a buzz or of silence, as in an append."""
    samples = loudness * np.sign(np.sin(2 * np.pi * 133 * np.arange(int(seconds * RATE_HZ)) / RATE_HZ))
    return base64.b64encode(samples.astype("<f4").tobytes()).decode()


SILENCE = sound()
BUZZ = sound(loudness=0.25)


class Duplex(Peer):
    """One WebSocket, in events."""

    async def hear_sound(self, audio=SILENCE, **fields):
        await self.say("input.append", input={"audio": audio, **fields})

    async def ask(self, text, **fields):
        """Send `text` in chat; returns all events up to the end of the answer."""
        await self.say("input.append", input={"messages": [{"role": "user", "content": text}], **fields})
        return await self.until("response.done")

    async def begin(self, **payload):
        """All events up to `session.created`."""
        heard = await self.until("session.queue_done")
        await self.say("session.init", payload=payload)
        return [*heard, *await self.until("session.created")]

    async def deltas(self, kind):
        """All events up to and with the first delta of that kind."""
        heard = [await self.hear()]
        while heard[-1].get("kind") != kind:
            heard.append(await self.hear())
        return heard

    def vanish(self):
        """Break the connection without a Close."""
        self.socket._response.connection.transport.abort()


@asynccontextmanager
async def opened(url, key=None, protocols=(), headers=None, **query):
    """An open WebSocket whose first event has not been read."""
    named = {**(headers or {}), **({"authorization": f"Bearer {key}"} if key else {})}
    options = {"headers": named, "protocols": protocols, "autoclose": False, "max_msg_size": 0}
    try:
        async with aiohttp.ClientSession() as http, http.ws_connect(url + "/v1/realtime", params=query, **options) as socket:
            yield Duplex(socket)
    finally:
        await turns()
