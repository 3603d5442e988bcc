"""A model server in a thread of its own that answers with bytes of the test's choice."""

import asyncio
import contextlib
import threading
import time

from support.engines.upstreams import Server

PATIENCE_S = 120
POLL_S = 0.01


def until_left(server):
    """Wait until somebody has hung up on a model server: its thread notices later."""
    deadline = time.monotonic() + PATIENCE_S
    while not server.left:
        assert time.monotonic() < deadline, "nobody has hung up"
        time.sleep(POLL_S)


@contextlib.contextmanager
def playing(*plays):
    """Serve the plays (see `support.engines.upstreams.Server`); yields the server's address, and the server."""
    loop, server = asyncio.new_event_loop(), Server(*plays)
    is_open, done = threading.Event(), asyncio.Event()

    async def serve():
        async with server.open():
            is_open.set()
            await done.wait()
        for _ in range(10):
            await asyncio.sleep(0)  # a transport that is closed ends in one of the next turns of the loop

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    is_open.wait()
    try:
        yield f"http://127.0.0.1:{server.port}/v1", server
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()
