"""A server that starts under a test's control."""

import asyncio
import contextlib
import functools
import threading

import uvloop

from antiphon.server.processes.run import serve_early
from antiphon.server.processes.weights import fetch_weights
from antiphon.server.transport import logs
from antiphon.server.transport.listener import base_url, open_listener
from antiphon.weights.watch import FetchWatch


class EarlyServer:
    """
    A server whose `prepare` does what a test says.

    Attributes:
        watch: of its weights.
        outcome: the error that ended it; None for none.
        notices: lines for the operator.
    """

    retry_s = 1.0

    def __init__(self, config, prepare):
        self.config, self.prepare = config, prepare
        self.is_ready = threading.Event()
        self.watch = FetchWatch()
        self.outcome, self.notices, self.server = None, [], None

    def run(self, listener):
        def on_ready(server):
            self.server = server
            self.is_ready.set()

        async def serve():
            self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
            fetch = functools.partial(
                fetch_weights, self.config, self.prepare, self.watch, self.notices.append, retry_delays_s=(self.retry_s,)
            )
            await serve_early(listener, self.config, on_ready, self.notices.append, None, fetch, self.watch)

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            self.outcome = error
        self.is_ready.set()

    def stop(self):
        if self.server is not None:
            self.server.should_exit = True
        else:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.task.cancel)


@contextlib.contextmanager
def starting(config, prepare):
    """Yields the address of a server that calls `prepare(watch)` in a thread before it is ready, and the server."""
    logs.configure(config.logging)
    early = EarlyServer(config, prepare)
    with open_listener("127.0.0.1", 0) as listener:
        listener.listen(64)  # who connects before it accepts waits
        thread = threading.Thread(target=early.run, args=(listener,), daemon=True)
        thread.start()
        try:
            yield base_url(listener), early
        finally:
            early.stop()
            thread.join()
