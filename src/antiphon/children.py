"""Processes of our own, each at the other end of a socket that is its standard input: started, ended, and replaced when they die."""

import asyncio
import contextlib
import itertools
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from antiphon.errors import Fault

T = TypeVar("T")

PAUSES_S = (0.0, 0.25, 1.0, 5.0, 15.0)
"""How long to wait before a process is replaced, after one, two and more that died soon."""

SOON_S = 10.0
"""A process that was there for less died soon."""


async def begun(command: Sequence[str], protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.subprocess.Process:
    """A process, and `protocol` at this end of its socket."""
    ours, theirs = socket.socketpair()
    process = None
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us alone, who may have answers to finish
            )
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(protocol, sock=ours)
    except BaseException:
        ours.close()
        if process is not None:
            await asyncio.shield(ended(process, 0))
        raise
    return process


async def ended(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """See a process end: of itself, as it does when its socket is closed, or by force."""
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def replacement(
    start: Callable[[], Awaitable[T]], deaths: int, failed: Callable[[Fault], None], pauses_s: Sequence[float] = PAUSES_S
) -> T:
    """
    The next process that can be started, however long that takes.

    Args:
        deaths: how many have died soon, one after the other.
        failed: is told of each that could not be started.
    """
    for number in itertools.count(max(0, deaths - 1)):
        await asyncio.sleep(pauses_s[min(number, len(pauses_s) - 1)])
        try:
            return await start()
        except Fault as fault:
            failed(fault)
    raise AssertionError("counting has no end")
