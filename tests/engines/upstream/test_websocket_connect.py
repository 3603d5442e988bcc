"""Opening a WebSocket, and giving that up."""

import asyncio
import contextlib
import logging
import socket

import pytest
from picows import WSListener

from antiphon.engines.upstream.websocket import connect_websocket
from support.engines.upstreams import run

LOG = logging.getLogger("antiphon.tests.websocket")


def opening(port, patience_s=20.0, host="127.0.0.1"):
    return connect_websocket(WSListener(), f"ws://{host}:{port}/", {}, None, timeout_s=patience_s, message_limit_bytes=1 << 16, log=LOG)


@contextlib.asynccontextmanager
async def mute():
    """A server that never answers a handshake: its port, and when it was asked, and when left."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        left.set()
        writer.close()

    async with asyncio.timeout(20), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked, left


def test_a_handshake_that_is_called_off_leaves_no_connection():
    async def play():
        async with mute() as (port, asked, left):
            async with asyncio.TaskGroup() as tasks:
                opening_task = tasks.create_task(opening(port))
                await asked.wait()
                opening_task.cancel()
            await left.wait()

    run(play())


def test_a_handshake_that_takes_too_long_leaves_no_connection():
    async def play():
        async with mute() as (port, _asked, left):
            with pytest.raises(TimeoutError):
                await opening(port, patience_s=0.2)
            await left.wait()

    run(play())


def test_the_next_address_is_tried_when_the_first_refuses(monkeypatch):
    async def play():
        async with mute() as (port, asked, _left):
            with socket.create_server(("127.0.0.1", 0)) as gone:
                free = gone.getsockname()[1]

            loop = asyncio.get_running_loop()
            really = loop.getaddrinfo

            async def found(host, *args, **options):
                if host != "two.test":
                    return await really(host, *args, **options)
                return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", each)) for each in (free, port)]

            monkeypatch.setattr(loop, "getaddrinfo", found)
            async with asyncio.TaskGroup() as tasks:
                opening_task = tasks.create_task(opening(port, host="two.test"))
                await asked.wait()
                opening_task.cancel()

    run(play())


def test_where_nobody_listens_that_is_said():
    async def play():
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await opening(port)

    run(play())
