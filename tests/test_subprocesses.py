"""Processes at the other end of a socket: started, ended and replaced."""

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from antiphon.errors import ServerError
from antiphon.subprocesses import RestartPolicy, SupervisedProcess, reap, spawn

ECHO = "import os; os.write(0, os.read(0, 99)); os.read(0, 1)"
MOVED = """
import sys
from antiphon.subprocesses import take_parent_socket
take_parent_socket().sendall(sys.stdin.read().encode() or b"nothing")
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


class Line(asyncio.Protocol):
    def __init__(self):
        self.heard = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.heard.set_result(data)


def commands():
    """The command lines of all processes, where the system tells."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield file.read_text(errors="replace")


def python(program):
    return (sys.executable, "-S", "-c", program)


def test_what_is_said_goes_both_ways_and_a_closed_socket_ends_it():
    async def scenario():
        line = Line()
        process = await spawn(python(ECHO), lambda: line)
        line.transport.write(b"hello")
        assert await line.heard == b"hello"
        line.transport.close()
        await reap(process, 30)
        return process.returncode

    assert asyncio.run(scenario()) == 0


def test_a_process_that_took_its_socket_finds_nothing_on_standard_input():
    async def scenario():
        line = Line()
        process = await spawn((sys.executable, "-c", MOVED), lambda: line)
        line.transport.write(b"hello")
        assert await line.heard == b"nothing"
        line.transport.close()
        await reap(process, 30)

    asyncio.run(scenario())


def test_one_that_does_not_end_is_killed():
    async def scenario():
        process = await spawn(python(DEAF), Line)
        await reap(process, 0)
        return process.returncode

    assert asyncio.run(scenario()) == -9


def test_where_there_is_nobody_to_talk_to_no_process_is_left():
    async def scenario():
        def nobody():
            raise RuntimeError("no line")

        with pytest.raises(RuntimeError):
            await spawn(python(DEAF), nobody)

    asyncio.run(scenario())
    assert not any(DEAF in command for command in commands())


class Mortal:
    """A process that can't be started so many times."""

    def __init__(self, lost, failures):
        self.process, self.exit_event = None, asyncio.Event()
        self._lost, self._failures = lost, failures

    async def start(self):
        if self._failures:
            raise self._failures.pop()
        self.process = await spawn(python(ECHO), Line)

    async def stop(self, grace_s):
        if self.process is not None:
            await reap(self.process, 0)

    def die(self):
        self._lost()
        self.exit_event.set()


def test_it_is_tried_until_one_can_be_started_whatever_fails():
    async def scenario():
        failures, lines = [], []
        process = SupervisedProcess("echo", lambda lost: Mortal(lost, failures), lines.append, (0,))
        await process.start()
        first = process.child
        failures += [ServerError("Not yet."), OSError(24, "Too many open files"), RuntimeError()]
        first.die()
        second = await process.wait_ready(60)
        assert second is process.child is not first
        await process.stop()
        return lines

    died, *others = asyncio.run(scenario())
    assert "was killed by SIGKILL; it is being replaced" in died
    reasons = ("RuntimeError.", "[Errno 24] Too many open files.", "Not yet.")
    assert others == [f"The echo could not be replaced: {reason}" for reason in reasons]


def test_the_pauses_grow_with_every_early_exit_in_a_row_until_there_is_no_use_in_more():
    restarts = RestartPolicy((0, 1, 2))
    assert [(restarts.delay_s(0), restarts.is_exhausted) for _ in range(3)] == [(1, False), (2, False), (2, True)]


def test_a_process_that_has_run_for_a_while_is_replaced_without_a_pause():
    restarts = RestartPolicy((0, 1, 2), min_uptime_s=5)
    for _ in range(20):
        assert restarts.delay_s(4) == 1
        assert restarts.delay_s(5) == 0
