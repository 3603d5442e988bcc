"""
The process of an embedded engine: it builds the engine it is told to, and answers until the server is gone.

Standard input is the link.
"""

import asyncio
import contextlib
import importlib
import os
import socket
import sys
from pathlib import Path

import uvloop

from antiphon.engine_api.engine import BuildContext, Engine
from antiphon.errors import ApiError
from antiphon.link import StreamLinkTransport
from antiphon.runtime.workers.server import ConversationServer, LinkFrame
from antiphon.subprocesses import end_with_parent, take_parent_socket
from antiphon.wire.internal.worker_link import VERSION, BuildEngine, ChildNotice, EngineBuildFailed, Failure, Hello


async def _serve(link: socket.socket) -> int:
    build_frame: asyncio.Future[BuildEngine] = asyncio.get_running_loop().create_future()
    has_failed = asyncio.Event()

    def on_link_frame(frame: LinkFrame) -> None:
        if isinstance(frame, BuildEngine) and not build_frame.done():
            build_frame.set_result(frame)

    def on_lost(_reason: str) -> None:
        if not has_failed.is_set():
            os._exit(0)  # the server is gone: there is nothing to clean up for, and native code may not stop otherwise

    async with ConversationServer(on_link_frame=on_link_frame, on_lost=on_lost) as serving:
        await asyncio.get_running_loop().create_connection(lambda: StreamLinkTransport(serving.endpoint), sock=link)
        begin = await build_frame
        serving.start_heartbeat()  # the modules are loaded; the model may take long, and native code is silent meanwhile
        try:
            engine = _build(begin, serving)
            await engine.start()
        except Exception as error:
            has_failed.set()
            if not isinstance(error, ApiError):
                raise
            serving.endpoint.send(EngineBuildFailed(Failure.from_error(error)))
            return 1
        serving.serve(engine)
        serving.endpoint.send(Hello(version=VERSION, abilities=engine.capabilities, model=begin.model))
        await asyncio.get_running_loop().create_future()  # until the server is gone
    return 0


def _build(begin: BuildEngine, serving: ConversationServer) -> Engine:
    context = BuildContext(
        weights_folder=Path(begin.weights),
        base_folder=Path(begin.base),
        notice=lambda line: serving.endpoint.send(ChildNotice(line)),
        secrets=begin.secrets,
    )
    engine: Engine = importlib.import_module(begin.module).build(begin.model, begin.options, context)
    return engine


def main() -> None:
    """Run the process of an embedded engine."""
    end_with_parent()
    code = 1
    with take_parent_socket() as link:
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_serve(link))
    sys.exit(code)


if __name__ == "__main__":
    main()
