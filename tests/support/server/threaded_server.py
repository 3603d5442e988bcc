"""A server in a thread of its own."""

import asyncio
import contextlib
import queue
import threading

import uvloop

from antiphon.runtime.service import Service
from antiphon.server.processes.run import HttpServer
from antiphon.server.transport import logs
from antiphon.server.transport.listener import base_url, open_listener


@contextlib.contextmanager
def serving(config, build_app, *, prepare=lambda service: None):
    """
    Serve `build_app(service)`.

    Args:
        prepare: gets the service before it starts.

    Yields:
        The server, and its address.
    """
    logs.configure(config.logging)
    started = queue.SimpleQueue()

    async def serve(listener):
        service = Service(config, lambda _line: None)
        prepare(service)
        await service.open()
        server = HttpServer(service, lambda: started.put(server))
        server.config.app = build_app(service)
        try:
            await server.serve(sockets=[listener])
        finally:
            await service.close()

    def work(listener):
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(listener))
        except BaseException as error:
            started.put(error)

    with open_listener("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=work, args=(listener,), daemon=True)
        thread.start()
        server = started.get()
        if isinstance(server, BaseException):
            raise server
        try:
            yield server, base_url(listener)
        finally:
            server.should_exit = True
            thread.join()
