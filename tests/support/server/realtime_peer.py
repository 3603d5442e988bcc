"""A Realtime client that sends only what the test says."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp

PATIENCE_S = 120
"""A silent server makes a test fail, not hang."""


class Peer:
    """One WebSocket, in events."""

    def __init__(self, socket):
        self.socket = socket
        self.protocol = socket.protocol

    async def say(self, kind, **fields):
        await self.socket.send_str(json.dumps({"type": kind, **fields}))

    async def hear(self):
        """The next event."""
        message = await self.socket.receive(PATIENCE_S)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return json.loads(message.data)

    async def until(self, *kinds):
        """All events up to and with the first of these types."""
        heard = [await self.hear()]
        while heard[-1]["type"] not in kinds:
            heard.append(await self.hear())
        return heard

    async def end(self):
        """The code and reason of the server's Close, after all its other messages."""
        while (message := await self.socket.receive(PATIENCE_S)).type is aiohttp.WSMsgType.TEXT:
            pass
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return message.data, message.extra

    async def ask(self, text):
        """Send `text` and request a response; returns all events up to its end."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        await self.say("conversation.item.create", item=item)
        await self.say("response.create")
        return await self.until("response.done")


IN_WRITING = {"ga": {"type": "realtime", "output_modalities": ["text"]}, "beta": {"modalities": ["text"]}}


async def turns():
    """Let a transport that is closed come to its end, in one of the next turns of the loop."""
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def connected(url, path="/v1/realtime", key=None, protocols=(), headers=None, **query):
    """An open session whose first event has not been read; by default the query asks for the Realtime API."""
    query = query or {"intent": "conversation"}
    named = {**(headers or {}), **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(url + path, params=query, headers=named, protocols=protocols, autoclose=False) as socket:
                yield Peer(socket)
    finally:
        await turns()


async def refusal(url, **connection):
    """The HTTP status that refuses a session."""
    try:
        async with connected(url, **connection):
            raise AssertionError("it was let in")
    except aiohttp.WSServerHandshakeError as error:
        return error.status


async def talked(url, text="Hi", dialect="ga", **connection):
    """All events of a text session with one question."""
    async with connected(url, **connection) as peer:
        first = await peer.hear()
        await peer.say("session.update", session=IN_WRITING[dialect])
        return [first, *await peer.until("session.updated"), *await peer.ask(text)]


def kinds(events):
    return [event["type"] for event in events]


async def posted(url, path, body, key=None):
    """The status and the body of an answer over HTTP."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession() as http, http.post(url + path, json=body, headers=headers) as reply:
        return reply.status, await reply.json()
