"""Reading prompts before they are asked for: only while nobody is answered, and for few."""

import asyncio

import pytest

from antiphon.engines.local.prefill import Ahead


def run(scenario, most=2):
    async def play():
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            await scenario(Ahead(most), tasks)

    asyncio.run(play())


class Reader:
    """Reads until it is broken off."""

    def __init__(self, ahead, tasks):
        self.ahead = ahead
        self.began = 0
        self.task = tasks.create_task(self._read())

    async def _read(self):
        await self.ahead.quiet()
        self.began += 1
        with pytest.raises(TimeoutError):
            async with self.ahead.reading(self):
                await asyncio.Event().wait()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_answer_breaks_off_what_is_read_for_others():
    async def scenario(ahead, tasks):
        reader = Reader(ahead, tasks)
        await settle()
        assert ahead.is_reading(reader)
        with ahead.answering("somebody else"):
            await reader.task
        assert not ahead.is_reading(reader)

    run(scenario)


def test_an_answer_leaves_alone_what_it_will_need():
    async def scenario(ahead, tasks):
        reader = Reader(ahead, tasks)
        await settle()
        with ahead.answering(reader):
            await settle()
            assert ahead.is_reading(reader)
            with ahead.answering("somebody else"), ahead.answering(None):
                await reader.task

    run(scenario)


def test_nothing_is_begun_with_while_somebody_is_answered():
    async def scenario(ahead, tasks):
        with ahead.answering(None):
            with ahead.answering(None):
                reader = Reader(ahead, tasks)
                await settle()
            await settle()
            assert not reader.began
        await settle()
        assert reader.began
        with ahead.answering(None):
            await reader.task

    run(scenario)


def test_it_is_read_for_no_more_conversations_than_there_are_slots():
    async def scenario(ahead, _tasks):
        assert [ahead.claims(name) for name in "abcab"] == [True, True, False, True, True]
        ahead.gives_up("a")
        assert ahead.claims("c")
        assert not ahead.claims("a")

    run(scenario)


def test_who_had_nothing_to_read_for_long_makes_room():
    async def scenario(_ahead, _tasks):
        ahead = Ahead(1, claim_s=0)
        assert ahead.claims("a")
        assert ahead.claims("b")

    run(scenario)
