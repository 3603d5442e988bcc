"""A short prompt gets in between long ones."""

import asyncio

import pytest

from antiphon.engines.local import prompt_turns
from antiphon.engines.local.prompt_turns import CHUNK_S, MAX_CHUNK_TOKENS, MIN_CHUNK_TOKENS, PromptTurns, ResponseSlots, next_chunk_tokens

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Holders:
    """Responses that hold a slot until the test ends them."""

    def __init__(self, slots, tasks):
        self.slots = slots
        self.tasks = tasks
        self.holding = []
        self.ends = {}

    async def _hold(self, name, is_long):
        self.ends[name] = asyncio.Event()
        async with self.slots.slot(is_long=is_long):
            self.holding.append(name)
            await self.ends[name].wait()
            self.holding.remove(name)

    async def begin(self, name, *, is_long=False):
        task = self.tasks.create_task(self._hold(name, is_long))
        await settle()
        return task

    async def end(self, name):
        self.ends[name].set()
        await settle()


async def test_one_slot_is_kept_for_short_prompts():
    async with asyncio.TaskGroup() as tasks:
        responses = Holders(ResponseSlots(2), tasks)
        await responses.begin("long", is_long=True)
        await responses.begin("long too", is_long=True)
        await responses.begin("short")
        assert responses.holding == ["long", "short"]
        await responses.begin("short too")
        await responses.end("long")
        assert responses.holding == ["short", "long too"], "in order, once one may"
        for name in ("short", "long too", "short too"):
            await responses.end(name)


async def test_the_only_slot_serves_everybody_in_order():
    async with asyncio.TaskGroup() as tasks:
        responses = Holders(ResponseSlots(1), tasks)
        for name in ("a", "b", "c"):
            await responses.begin(name, is_long=name != "b")
        for name in ("a", "b", "c"):
            assert responses.holding == [name]
            await responses.end(name)


async def test_who_stops_waiting_and_who_is_stopped_leave_their_slot_to_others():
    async with asyncio.TaskGroup() as tasks:
        slots = ResponseSlots(2)
        responses = Holders(slots, tasks)
        first = await responses.begin("first", is_long=True)
        waiting = await responses.begin("waiting", is_long=True)
        waiting.cancel()
        await settle()
        await responses.begin("second", is_long=True)
        first.cancel()
        await settle()
        assert "second" in responses.holding
        await responses.end("second")
    assert not slots.is_full
    async with slots.slot(is_long=False), slots.slot(is_long=True):
        assert slots.is_full


async def test_a_slot_granted_to_who_is_stopped_in_the_same_moment_is_not_lost():
    async with asyncio.TaskGroup() as tasks:
        slots = ResponseSlots(1)
        responses = Holders(slots, tasks)
        await responses.begin("first")
        second = await responses.begin("second")
        responses.ends["first"].set()
        await asyncio.sleep(0)
        second.cancel()
        await settle()
        await responses.begin("third")
        assert responses.holding == ["third"]
        await responses.end("third")


async def test_prompts_take_turns_and_a_response_leaves_its_turn_to_the_next_prompt():
    turns, order = PromptTurns(), []

    async def prompt(name, chunks):
        for chunk in range(chunks):
            async with turns.turn():
                order.append(f"{name}{chunk}")
                await settle()
        async with turns.turn() as turn:
            order.append(f"{name} begins")
            turn.begin_generating()
            await settle()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(prompt("a", 4))
        tasks.create_task(prompt("b", 3))
        await asyncio.sleep(0)
        tasks.create_task(prompt("hi", 0))
    assert order.index("hi begins") == 2, order
    assert [step for step in order if step[0] == "a"] == ["a0", "a1", "a2", "a3", "a begins"]


async def test_a_turn_that_fails_is_passed_on():
    turns = PromptTurns()
    with pytest.raises(ValueError):
        async with turns.turn():
            raise ValueError
    async with asyncio.timeout(10), turns.turn():
        pass


async def test_a_long_prompt_gives_way_only_while_others_generate(monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    turns = PromptTurns()
    monkeypatch.setattr(prompt_turns.asyncio, "sleep", sleep)
    await turns.give_way(0.5)
    async with turns.turn() as turn:
        turn.begin_generating()
        await turns.give_way(0.5)
        await turns.give_way(60)
    await turns.give_way(0.5)
    assert pauses == [0.5, CHUNK_S]


def test_chunks_take_about_a_second_each():
    assert next_chunk_tokens(128, 2) == MIN_CHUNK_TOKENS
    assert next_chunk_tokens(128, 0.5) == 256
    assert next_chunk_tokens(128, 0) == 512, "one step at a time"
    assert next_chunk_tokens(8000, 0.01) == MAX_CHUNK_TOKENS
