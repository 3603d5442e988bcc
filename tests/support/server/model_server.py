"""A model server in a thread, which streams whatever events a test wants as the answer to a request."""

import asyncio
import contextlib
import json

from support.server import raw_upstream


@contextlib.contextmanager
def playing(answer):
    """
    Serve `answer(body)`, a list of events, to each request whose body it is given.

    Yields:
        The server's address, and the bodies that it was sent.
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
