"""
The process of an embedded engine: it is told what to be, loads it, and answers until the server is gone.

Standard input is the link; standard output leads nowhere, as native libraries print what they like.
"""

import asyncio
import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
from pathlib import Path

import uvloop

from antiphon.engine_api.engine import BuildContext, Engine
from antiphon.engines.remote.link import StreamLinkTransport
from antiphon.errors import ApiError
from antiphon.runtime.workers.server import ConversationServer, LinkFrame
from antiphon.wire.internal.worker_link import VERSION, BuildEngine, ChildNotice, EngineBuildFailed, Failure, Hello

_PR_SET_PDEATHSIG = 1


async def _serve(link: socket.socket) -> int:
    begun: asyncio.Future[BuildEngine] = asyncio.get_running_loop().create_future()
    failed = asyncio.Event()

    def told(frame: LinkFrame) -> None:
        if isinstance(frame, BuildEngine) and not begun.done():
            begun.set_result(frame)

    def lost(_reason: str) -> None:
        if not failed.is_set():
            os._exit(0)  # the server is gone, however it went, and nobody is left to answer

    async with ConversationServer(on_link_frame=told, on_lost=lost) as serving:
        link.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: StreamLinkTransport(serving.endpoint), sock=link)
        begin = await begun
        try:
            engine = _build(begin, serving)
            await engine.start()
        except Exception as error:
            failed.set()
            if not isinstance(error, ApiError):
                raise
            serving.endpoint.send(EngineBuildFailed(Failure.from_error(error)))
            return 1
        serving.serve(engine)
        serving.endpoint.send(Hello(version=VERSION, abilities=engine.capabilities, model=begin.model))
        await asyncio.get_running_loop().create_future()  # until the server is gone
    return 0


def _build(begin: BuildEngine, serving: ConversationServer) -> Engine:
    place = BuildContext(
        weights_folder=Path(begin.weights),
        base_folder=Path(begin.base),
        notice=lambda line: serving.endpoint.send(ChildNotice(line)),
        secrets=begin.secrets,
    )
    engine: Engine = importlib.import_module(begin.module).build(begin.model, begin.options, place)
    return engine


def _die_with_parent() -> None:
    """
    End when the server's thread that started this does, also in the middle of native code, which notices no link.

    Source: prctl(2).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Be the process of an embedded engine."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's to take: it may have answers to finish
    # Under another number, as whatever reads the standard input must not read this.
    with socket.socket(fileno=os.dup(0)) as link:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = 1
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_serve(link))
    sys.exit(code)


if __name__ == "__main__":
    main()
