"""A model server in a thread that streams a test's events as its answers."""

import asyncio
import contextlib
import json

from support.server import raw_upstream


@contextlib.contextmanager
def playing(answer):
    """
    Answer each request with the events that `answer(body)` returns.

    Yields:
        The server's address, and the bodies of its requests.
    """
    asked = []

    async def play(writer):
        asked.append(server.asked[-1][1])
        events = "".join(f"data: {json.dumps(event)}\n\n" for event in answer(asked[-1]))
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{events}data: [DONE]\n\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        raise asyncio.IncompleteReadError(b"", None)

    with raw_upstream.playing(play) as (url, server):
        yield url, asked
