"""Draining a worker and resuming it, as either end of the link has it."""

import asyncio

from msgspec import structs

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.framing import pack_frame
from antiphon.wire.internal.worker_link import (
    VERSION,
    CloseConversation,
    ConversationClosed,
    ConversationFailed,
    ConversationOpened,
    Drain,
    Hello,
    OpenConversation,
    Undrain,
    WorkerDismissed,
)
from support.runtime.worker_links import SETTINGS, bare_server, bare_worker

HELLO = Hello(version=VERSION, abilities=Capabilities())


def play(scenario):
    asyncio.run(scenario())


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is not ours to set an event
            await asyncio.sleep(0)


def test_a_worker_that_is_drained_takes_nobody_and_hangs_up_after_the_last():
    async def scenario():
        async with bare_server(ScriptedEngine(Script())) as (serving, bare):
            bare.send(pack_frame(OpenConversation(1, SETTINGS)))
            await bare.frame(ConversationOpened)
            serving.drain()
            serving.drain()
            await bare.frame(Drain)
            bare.send(pack_frame(OpenConversation(2, SETTINGS)))
            assert (await bare.frame(ConversationFailed)).failure.code == "worker_busy"
            assert (await bare.frame(ConversationClosed)).number == 2
            bare.send(pack_frame(CloseConversation(1)))
            assert (await bare.frame(ConversationClosed)).number == 1
            await bare.end()

    play(scenario)


def test_a_worker_that_is_drained_but_does_not_hang_up_is_there_with_nobody_until_it_is_resumed():
    async def scenario():
        left = []
        async with bare_server(ScriptedEngine(Script()), on_closed=left.append) as (serving, bare):
            bare.send(pack_frame(OpenConversation(1, SETTINGS)))
            await bare.frame(ConversationOpened)
            serving.drain(hangs_up=False)
            assert serving.count == 1
            bare.send(pack_frame(CloseConversation(1)))
            await bare.frame(ConversationClosed)
            assert (serving.count, left, serving.endpoint.is_over) == (0, [0], False)
            bare.send(pack_frame(OpenConversation(2, SETTINGS)))
            assert (await bare.frame(ConversationFailed)).failure.code == "worker_busy"
            serving.resume()
            bare.send(pack_frame(OpenConversation(3, SETTINGS)))
            assert (await bare.frame(ConversationOpened)).number == 3
            assert not any(isinstance(frame, Drain) for frame in bare.came), "the operator knows already"
            serving.drain()
            serving.resume()
            await bare.frame(Drain)
            bare.send(pack_frame(OpenConversation(4, SETTINGS)) + pack_frame(CloseConversation(3)))
            assert (await bare.frame(ConversationFailed)).number == 4
            await bare.end()

    play(scenario)


def test_an_operators_drain_reaches_the_worker_once_and_not_at_all_where_it_came_from_there():
    async def scenario():
        drained = []
        async with bare_worker(on_drain=lambda: drained.append(True)) as (remote, bare):
            bare.send(pack_frame(HELLO))
            await remote.start()
            remote.drain()
            remote.drain()
            remote.dismiss()
            await bare.frame(Drain)
            await bare.frame(WorkerDismissed)
            assert not any(isinstance(frame, Drain) for frame in bare.came)
            assert 0 <= remote.silent_s < 10
        async with bare_worker(on_drain=lambda: drained.append(True)) as (remote, bare):
            bare.send(pack_frame(HELLO) + pack_frame(Drain()))
            await until(lambda: remote.is_draining)
            remote.drain()
            remote.dismiss()
            await bare.frame(WorkerDismissed)
            assert not any(isinstance(frame, Drain) for frame in bare.came)
        assert drained == [True]

    play(scenario)


def test_a_worker_that_was_drained_is_resumed_unless_it_is_ending():
    async def scenario():
        drained = []
        async with bare_worker(on_drain=lambda: drained.append(True)) as (remote, bare):
            bare.send(pack_frame(HELLO))
            await remote.start()
            remote.resume()
            remote.drain()
            remote.resume()
            remote.resume()
            await bare.frame(Drain)
            await bare.frame(Undrain)
            assert (remote.is_draining, remote.is_ending, drained) == (False, False, [])
            bare.send(pack_frame(Drain()))
            await until(lambda: remote.is_ending)
            remote.resume()
            remote.dismiss()
            await bare.frame(WorkerDismissed)
            assert not any(isinstance(frame, Undrain) for frame in bare.came)
            assert (remote.is_draining, drained) == (True, [True])

    play(scenario)


def test_a_worker_that_joined_drained_can_be_resumed_and_one_that_ends_after_a_drain_can_not():
    async def scenario():
        async with bare_worker() as (remote, bare):
            bare.send(pack_frame(structs.replace(HELLO, is_draining=True)))
            await remote.start()
            assert (remote.is_draining, remote.is_ending) == (True, False)
            remote.resume()
            await bare.frame(Undrain)
            remote.drain()
            await bare.frame(Drain)
            bare.send(pack_frame(Drain()))
            await until(lambda: remote.is_ending)
            remote.resume()
            assert remote.is_draining

    play(scenario)
