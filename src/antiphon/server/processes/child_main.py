"""The main program of one of several server processes. `supervisor.py` starts it with a link as its standard input."""

import asyncio
import contextlib
import os
import socket
import sys

import uvloop

from antiphon.config import load as config
from antiphon.config.load import Config
from antiphon.errors import ApiError
from antiphon.link import StreamLinkTransport
from antiphon.runtime.multiprocess.link import (
    AllProcessesIdle,
    AskProcess,
    FinalConfiguration,
    GetSnapshot,
    NewConfiguration,
    OperatorNotice,
    ProcessAlive,
    ProcessAnswer,
    ProcessFailed,
    ProcessNumbers,
    ProcessReady,
    ProcessSetup,
    ProcessSnapshot,
    ReloadResult,
    SendReply,
    StopAtOnce,
    StopResponse,
    SupervisorLink,
    SupervisorMessage,
    WeightsReport,
)
from antiphon.runtime.multiprocess.peer import PeerProcesses
from antiphon.server.operate.facts import answer
from antiphon.server.processes.run import HttpServer, serve_early, tune_interpreter
from antiphon.server.transport import logs
from antiphon.subprocesses import take_parent_socket
from antiphon.weights.watch import RelayedWatch
from antiphon.wire.internal.failure import Failure

SETUP_TIMEOUT_S = 10.0
"""How long a process waits for its configuration."""


class ServerProcess:
    """The process, with its link to the supervisor."""

    def __init__(self) -> None:
        self.link = SupervisorLink(self._receive, self._on_link_lost)
        self._setup_message: asyncio.Future[ProcessSetup] = asyncio.get_running_loop().create_future()
        self._final_config: asyncio.Future[Config] = asyncio.get_running_loop().create_future()
        self._watch = RelayedWatch()
        self._peers: PeerProcesses | None = None
        self._server: HttpServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> int:
        """Serve as the supervisor configures; returns the exit code."""
        async with asyncio.timeout(SETUP_TIMEOUT_S):
            setup = await self._setup_message
        settings = config.unpack(setup.config)
        logs.configure(settings.logging)
        if logs.is_json(settings.logging):
            logs.log_libraries()
        self._peers = PeerProcesses(self.link, setup.numbers)
        with socket.socket(fileno=setup.listener) as listener:
            notice = lambda line: self.link.send(OperatorNotice(line))  # noqa: E731
            if setup.is_final:
                self._final_config.set_result(settings)
            try:
                await serve_early(listener, settings, self._on_ready, notice, None, lambda: self._final_config, self._watch, self._peers)
            except ApiError as error:
                self.link.send(ProcessFailed(error.message))
                return 1
        return 0

    def _on_ready(self, server: HttpServer) -> None:
        self._server = server
        tune_interpreter()
        self.link.send(ProcessReady(server.service.keyring.access))

    def _receive(self, message: SupervisorMessage, reply: SendReply) -> None:
        match message:
            case ProcessSetup():
                self._setup_message.set_result(message)
                # A supervisor that hangs is no reason to end what is served here, so none are expected from it.
                self.link.send(ProcessAlive())
                self.link.endpoint.start_heartbeat(expects_others=False)
            case WeightsReport(weights, failure):
                self._watch.update(weights, failure)
            case FinalConfiguration(packed_config) if not self._final_config.done():
                self._final_config.set_result(config.unpack(packed_config))
            case ProcessNumbers(numbers) if self._peers is not None:
                self._peers.numbers[:] = numbers
            case AllProcessesIdle() if self._peers is not None:
                self._peers.are_idle = True
            case _ if self._server is not None:
                self._receive_serving(self._server, message, reply)
            case _:
                pass

    def _receive_serving(self, server: HttpServer, message: SupervisorMessage, reply: SendReply) -> None:
        match message:
            case GetSnapshot():
                reply(ProcessSnapshot(server.service.metrics.snapshot()))
            case AskProcess(subject, question):
                reply(ProcessAnswer(answer(server.service, subject, question)))
            case NewConfiguration(packed_config):
                # Like the link, it belongs to the process: only its end ends it.
                task = asyncio.create_task(self._configure(server, packed_config, reply), name="reload")  # noqa: TID251
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case StopAtOnce():
                server.hurry()
            case StopResponse(response_id):
                server.service.background.stop(response_id)
            case _:
                pass

    async def _configure(self, server: HttpServer, packed_config: bytes, reply: SendReply) -> None:
        try:
            report = await server.service.configure(config.unpack(packed_config))
        except ApiError as error:
            reply(ReloadResult(None, Failure.from_error(error)))
        else:
            reply(ReloadResult(report))

    def _on_link_lost(self) -> None:
        """The supervisor is gone: stop, because its restart needs the port and the home folder."""
        # Nothing is served yet, and an ordinary exit would wait for threads that load models.
        if self._server is None:
            os._exit(1)
        self._server.stop_now()


async def _main() -> int:
    with take_parent_socket() as link:
        process = ServerProcess()
        await asyncio.get_running_loop().create_connection(lambda: StreamLinkTransport(process.link.endpoint), sock=link)
        try:
            return await process.serve()
        finally:
            process.link.close()


def main() -> None:
    """Serve until a signal, or until the supervisor is gone."""
    code = 1
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_main())
    sys.exit(code)
