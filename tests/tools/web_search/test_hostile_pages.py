"""Pages by URLs that lead inside: the user may name them, and the model may ask for them, but nobody is reached."""

import asyncio
import json
import socket
from pathlib import Path

from antiphon.config.tools.web_search import WebSearchSettings
from antiphon.runtime.core.url_fetch import page_fetcher
from antiphon.tool_api import ServerToolCall
from antiphon.tools.base import ToolContext
from antiphon.tools.web_search.kind import WebSearchKind
from antiphon.wire.codec.reading import Reader
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.tools import WebSearchTool
from support.runtime.hostile_urls import all_urls

_items: Reader[list[Item]] = Reader(list[Item])


async def libc(host):
    """What this machine's C library reads in a host; nothing leaves it."""
    if host.rstrip(".").lower() in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return ["127.0.0.1"]
    return [str(place[0]) for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)]


def test_no_page_leads_inside():
    async def run():
        heads = []

        async def answer(_reader, writer):
            heads.append(1)
            writer.close()

        kind = WebSearchKind(WebSearchSettings(provider="local"), page_fetcher((), libc), None, Path("/"))
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            urls = [url for url in all_urls(server.sockets[0].getsockname()[1]) if "\ud800" not in url]
            text = json.dumps([{"type": "message", "role": "user", "content": url} for url in urls]).encode()
            context = ToolContext(response_id="r", tenant="t", model="m", items=_items.read(text, "input"))
            tool = kind.open([("tools[0]", WebSearchTool())], context)
            for url in urls:
                events = []
                call = ServerToolCall(response_id="r", call_id="c", name="open_page", arguments=json.dumps({"url": url}))
                await tool.run(call, events.append)
                assert not events or events[-1].item["status"] == "failed", url
            assert heads == []
        await kind.close()

    asyncio.run(run())
