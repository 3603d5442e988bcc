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

from antiphon.engine_api.engine import Engine, Place
from antiphon.engines.remote.link import StreamPipe
from antiphon.errors import Fault
from antiphon.runtime.workers.server import Of, Serving
from antiphon.wire.internal.worker_link import VERSION, Begin, Failed, Failure, Hello, Noticed

_PR_SET_PDEATHSIG = 1


async def _serve(link: socket.socket) -> int:
    begun: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
    failed = asyncio.Event()

    def told(frame: Of) -> None:
        if isinstance(frame, Begin) and not begun.done():
            begun.set_result(frame)

    def lost(_reason: str) -> None:
        if not failed.is_set():
            os._exit(0)  # the server is gone, however it went, and nobody is left to answer

    async with Serving(told=told, lost=lost) as serving:
        link.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: StreamPipe(serving.end), sock=link)
        begin = await begun
        try:
            engine = _build(begin, serving)
            await engine.start()
        except Exception as error:
            failed.set()
            if not isinstance(error, Fault):
                raise
            serving.end.send(Failed(Failure.of(error)))
            return 1
        serving.serve(engine)
        serving.end.send(Hello(version=VERSION, abilities=engine.abilities, model=begin.model))
        await asyncio.get_running_loop().create_future()  # until the server is gone
    return 0


def _build(begin: Begin, serving: Serving) -> Engine:
    place = Place(
        weights=Path(begin.weights),
        base=Path(begin.base),
        notice=lambda line: serving.end.send(Noticed(line)),
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
