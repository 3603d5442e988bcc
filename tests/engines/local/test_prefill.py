"""Processing prompts in advance: only while no response is generated, and for few conversations."""

import asyncio

import pytest

from antiphon.engines.local.prefill import PrefillScheduler


def run(scenario, most=2):
    async def play():
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            await scenario(PrefillScheduler(most), tasks)

    asyncio.run(play())


class Reader:
    """Reads until it is broken off."""

    def __init__(self, ahead, tasks):
        self.ahead = ahead
        self.began = 0
        self.task = tasks.create_task(self._read())

    async def _read(self):
        await self.ahead.wait_until_idle()
        self.began += 1
        with pytest.raises(TimeoutError):
            async with self.ahead.prefilling(self):
                await asyncio.Event().wait()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_answer_breaks_off_what_is_read_for_others():
    async def scenario(ahead, tasks):
        reader = Reader(ahead, tasks)
        await settle()
        assert ahead.is_prefilling(reader)
        with ahead.responding("somebody else"):
            await reader.task
        assert not ahead.is_prefilling(reader)

    run(scenario)


def test_an_answer_leaves_alone_what_it_will_need():
    async def scenario(ahead, tasks):
        reader = Reader(ahead, tasks)
        await settle()
        with ahead.responding(reader):
            await settle()
            assert ahead.is_prefilling(reader)
            with ahead.responding("somebody else"), ahead.responding(None):
                await reader.task

    run(scenario)


def test_nothing_is_begun_with_while_somebody_is_answered():
    async def scenario(ahead, tasks):
        with ahead.responding(None):
            with ahead.responding(None):
                reader = Reader(ahead, tasks)
                await settle()
            await settle()
            assert not reader.began
        await settle()
        assert reader.began
        with ahead.responding(None):
            await reader.task

    run(scenario)


def test_it_is_read_for_no_more_conversations_than_there_are_slots():
    async def scenario(ahead, _tasks):
        assert [ahead.try_claim(name) for name in "abcab"] == [True, True, False, True, True]
        ahead.release_claim("a")
        assert ahead.try_claim("c")
        assert not ahead.try_claim("a")

    run(scenario)


def test_who_had_nothing_to_read_for_long_makes_room():
    async def scenario(_ahead, _tasks):
        ahead = PrefillScheduler(1, claim_s=0)
        assert ahead.try_claim("a")
        assert ahead.try_claim("b")

    run(scenario)
