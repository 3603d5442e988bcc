"""A client of WebSocket mode that does nothing by itself."""

import json
from contextlib import asynccontextmanager

import aiohttp

PATIENCE_S = 20
"""So that a server which says nothing fails a test and does not hang it."""

LAST = ("response.completed", "response.incomplete", "response.failed")


class ResponsesPeer:
    """One WebSocket, in events."""

    def __init__(self, socket):
        self.socket = socket

    async def say(self, kind="response.create", **fields):
        await self.socket.send_str(json.dumps({"type": kind, **fields}))

    async def create(self, text=None, **fields):
        """Ask for a response that is not stored."""
        await self.say(**{"model": "parrot", "store": False, **({} if text is None else {"input": text}), **fields})

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
        """The code and the reason with which the server closes, after whatever it still says."""
        while (message := await self.socket.receive(PATIENCE_S)).type is aiohttp.WSMsgType.TEXT:
            pass
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return message.data, message.extra

    async def ask(self, text=None, **fields):
        """A whole response."""
        await self.create(text, **fields)
        return (await self.until(*LAST))[-1]["response"]

    async def refused(self, text=None, **fields):
        """The error event that is the whole answer."""
        await self.create(text, **fields)
        event = await self.hear()
        assert event["type"] == "error", event
        return event


def said(response):
    """The text of a response."""
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


@asynccontextmanager
async def connected(url, key=None, headers=None, **options):
    """An open WebSocket."""
    named = {**(headers or {}), **({"authorization": f"Bearer {key}"} if key else {})}
    async with aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{url}/v1/responses", headers=named, autoclose=False, **options) as socket:
            yield ResponsesPeer(socket)
