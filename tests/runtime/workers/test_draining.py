"""Draining a worker and resuming it, as either end of the link has it."""

import asyncio

from msgspec import structs

from antiphon.engine_api.capabilities import Abilities
from antiphon.engines.scripted.engine import Scripted
from antiphon.engines.scripted.script import Script
from antiphon.wire.internal.worker_link import VERSION, Broken, Dismissed, Drain, Hello, Leave, Left, Open, Opened, Undrain, framed
from support.runtime.worker_links import SETTINGS, bare_server, bare_worker

HELLO = Hello(version=VERSION, abilities=Abilities())


def play(scenario):
    asyncio.run(scenario())


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is not ours to set an event
            await asyncio.sleep(0)


def test_a_worker_that_is_drained_takes_nobody_and_hangs_up_after_the_last():
    async def scenario():
        async with bare_server(Scripted(Script())) as (serving, bare):
            bare.send(framed(Open(1, SETTINGS)))
            await bare.frame(Opened)
            serving.drain()
            serving.drain()
            await bare.frame(Drain)
            bare.send(framed(Open(2, SETTINGS)))
            assert (await bare.frame(Broken)).failure.code == "worker_busy"
            assert (await bare.frame(Left)).number == 2
            bare.send(framed(Leave(1)))
            assert (await bare.frame(Left)).number == 1
            await bare.end()

    play(scenario)


def test_a_worker_that_is_drained_but_does_not_hang_up_is_there_with_nobody_until_it_is_resumed():
    async def scenario():
        left = []
        async with bare_server(Scripted(Script()), freed=left.append) as (serving, bare):
            bare.send(framed(Open(1, SETTINGS)))
            await bare.frame(Opened)
            serving.drain(hangs_up=False)
            assert serving.count == 1
            bare.send(framed(Leave(1)))
            await bare.frame(Left)
            assert (serving.count, left, serving.end.is_over) == (0, [0], False)
            bare.send(framed(Open(2, SETTINGS)))
            assert (await bare.frame(Broken)).failure.code == "worker_busy"
            serving.resume()
            bare.send(framed(Open(3, SETTINGS)))
            assert (await bare.frame(Opened)).number == 3
            assert not any(isinstance(frame, Drain) for frame in bare.came), "the operator knows already"
            serving.drain()
            serving.resume()
            await bare.frame(Drain)
            bare.send(framed(Open(4, SETTINGS)) + framed(Leave(3)))
            assert (await bare.frame(Broken)).number == 4
            await bare.end()

    play(scenario)


def test_an_operators_drain_reaches_the_worker_once_and_not_at_all_where_it_came_from_there():
    async def scenario():
        drained = []
        async with bare_worker(drained=lambda: drained.append(True)) as (remote, bare):
            bare.send(framed(HELLO))
            await remote.start()
            remote.drain()
            remote.drain()
            remote.dismiss()
            await bare.frame(Drain)
            await bare.frame(Dismissed)
            assert not any(isinstance(frame, Drain) for frame in bare.came)
            assert 0 <= remote.silent_s < 10
        async with bare_worker(drained=lambda: drained.append(True)) as (remote, bare):
            bare.send(framed(HELLO) + framed(Drain()))
            await until(lambda: remote.is_draining)
            remote.drain()
            remote.dismiss()
            await bare.frame(Dismissed)
            assert not any(isinstance(frame, Drain) for frame in bare.came)
        assert drained == [True]

    play(scenario)


def test_a_worker_that_was_drained_is_resumed_unless_it_is_ending():
    async def scenario():
        drained = []
        async with bare_worker(drained=lambda: drained.append(True)) as (remote, bare):
            bare.send(framed(HELLO))
            await remote.start()
            remote.resume()
            remote.drain()
            remote.resume()
            remote.resume()
            await bare.frame(Drain)
            await bare.frame(Undrain)
            assert (remote.is_draining, remote.is_ending, drained) == (False, False, [])
            bare.send(framed(Drain()))
            await until(lambda: remote.is_ending)
            remote.resume()
            remote.dismiss()
            await bare.frame(Dismissed)
            assert not any(isinstance(frame, Undrain) for frame in bare.came)
            assert (remote.is_draining, drained) == (True, [True])

    play(scenario)


def test_a_worker_that_joined_drained_can_be_resumed_and_one_that_ends_after_a_drain_can_not():
    async def scenario():
        async with bare_worker() as (remote, bare):
            bare.send(framed(structs.replace(HELLO, is_draining=True)))
            await remote.start()
            assert (remote.is_draining, remote.is_ending) == (True, False)
            remote.resume()
            await bare.frame(Undrain)
            remote.drain()
            await bare.frame(Drain)
            bare.send(framed(Drain()))
            await until(lambda: remote.is_ending)
            remote.resume()
            assert remote.is_draining

    play(scenario)
