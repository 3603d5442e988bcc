"""A client of WebSocket mode that sends only what the test says."""

from contextlib import asynccontextmanager

import aiohttp

from support.server.realtime_peer import Peer, turns

LAST = ("response.completed", "response.incomplete", "response.failed")


class ResponsesPeer(Peer):
    """One WebSocket, in events."""

    async def say(self, kind="response.create", **fields):
        await super().say(kind, **fields)

    async def create(self, text=None, **fields):
        """Request a response that is not stored."""
        await self.say(**{"model": "parrot", "store": False, **({} if text is None else {"input": text}), **fields})

    async def ask(self, text=None, **fields):
        """A whole response."""
        await self.create(text, **fields)
        return (await self.until(*LAST))[-1]["response"]

    async def refused(self, text=None, **fields):
        """The only event of the answer, which is an error."""
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
    try:
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(f"{url}/v1/responses", headers=named, autoclose=False, **options) as socket:
                yield ResponsesPeer(socket)
    finally:
        await turns()
