"""One of several processes that serve, from its first line to its last; `supervisor.py` starts it with a link as its standard input."""

import asyncio
import contextlib
import os
import socket
import sys

import uvloop

from antiphon.config import load as config
from antiphon.errors import Fault
from antiphon.runtime.multiprocess.link import AllIdle, Answer, Count, Counted, Failed, Link, Message, Noticed, Ready, Setup
from antiphon.runtime.multiprocess.peer import Siblings
from antiphon.server.processes.run import Server, serve_on, settle_memory
from antiphon.server.transport import logs

SETUP_S = 10.0
"""How long a process waits to be told what it is to be."""


class Process:
    """The process, as its supervisor sees it."""

    def __init__(self) -> None:
        self.link = Link(self._receive, self._lost)
        self._setup: asyncio.Future[Setup] = asyncio.get_running_loop().create_future()
        self._siblings: Siblings | None = None
        self._server: Server | None = None

    async def serve(self) -> int:
        """Serve as the supervisor says; the exit code."""
        async with asyncio.timeout(SETUP_S):
            setup = await self._setup
        settings = config.unpack(setup.config)
        logs.configure(settings.logging)
        self._siblings = Siblings(self.link, setup.numbers)
        with socket.socket(fileno=setup.listener) as listener:
            try:
                await serve_on(listener, settings, self._begin, lambda line: self.link.tell(Noticed(line)), self._siblings)
            except Fault as fault:
                self.link.tell(Failed(fault.message))
                return 1
        return 0

    def _begin(self, server: Server) -> None:
        self._server = server
        settle_memory()
        self.link.tell(Ready(server.service.keyring.is_open))

    def _receive(self, message: Message, answer: Answer) -> None:
        match message:
            case Setup():
                self._setup.set_result(message)
            case Count() if self._server is not None:
                answer(Counted(self._server.service.metrics.snapshot()))
            case AllIdle() if self._siblings is not None:
                self._siblings.are_idle = True
            case _:
                pass

    def _lost(self) -> None:
        """The supervisor is gone. Whoever starts the server anew finds the port and the folder taken until this process is gone too."""
        if self._server is None:
            os._exit(1)
        self._server.stop_now()


async def _main() -> int:
    # Under another number, as whatever reads the standard input must not read this.
    with socket.socket(fileno=os.dup(0)) as link:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        link.setblocking(False)
        process = Process()
        await asyncio.get_running_loop().create_connection(lambda: process.link, sock=link)
        try:
            return await process.serve()
        finally:
            process.link.close()


def main() -> None:
    """Serve until a signal, or the supervisor's end."""
    code = 1
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_main())
    sys.exit(code)
