"""A model server in a thread that streams a test's events as its answers."""

import asyncio
import contextlib
import json
import threading


@contextlib.contextmanager
def playing(answer):
    """
    Answer each request with the events that `answer(body)` returns.

    Yields:
        The server's address, and the bodies of its requests.
    """
    asked, loop = [], asyncio.new_event_loop()

    async def reply(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        asked.append(json.loads(await reader.readexactly(length)))
        stream = "".join(f"data: {json.dumps(event)}\n\n" for event in answer(asked[-1]))
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{stream}data: [DONE]\n\n".encode())
        await writer.drain()
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(reply, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
