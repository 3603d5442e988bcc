"""Queue updates: which clients get which position, without delaying others."""

import asyncio
import time

import pytest

from antiphon.runtime.scheduling.base import Requirements
from antiphon.runtime.scheduling.eta import WaitForecast
from antiphon.runtime.scheduling.positions import MAX_EXACT_POSITION, SLICE_S, PositionNotifier
from antiphon.runtime.scheduling.queue import Ticket, TicketQueue

pytestmark = pytest.mark.anyio

UPDATE_S = 3600
"""So that nobody is told again because of the time."""


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Told:
    """A queue, the updates of its clients, and a way to wait for them."""

    def __init__(self, each_s=0.0, places=()):
        self.queue, self.heard, self.at_s, self.waits_s, self.then = TicketQueue(), [], [], {}, {}
        self.teller = PositionNotifier(self.queue, self._tell, lambda _model: WaitForecast(places, lambda _kind: 10), UPDATE_S)
        self._each_s = each_s
        self._changed = asyncio.Event()
        self._count = 0

    def _tell(self, waiting):
        time.sleep(self._each_s)
        self.heard.append((waiting.id, waiting.position))
        self.at_s.append(time.monotonic())
        self.waits_s[waiting.id] = waiting.wait_s
        if (then := self.then.pop(waiting.id, None)) is not None:
            then()
        self._changed.set()

    def add(self, *ids, model="m"):
        added = []
        for id in ids:
            self._count += 1
            wants = Requirements(model=model, kind="audio")
            ticket = Ticket(id=id, requirements=wants, number=self._count, priority=0, enqueued_s=self._count, enqueued_at=0)
            self.queue.add(ticket)
            added.append(ticket)
        return added

    def leaves(self, ticket):
        self.queue.remove(ticket)
        ticket.state = "ended"
        self.teller.mark_changed(ticket.requirements.model)

    async def until(self, *last):
        async with asyncio.timeout(10):
            while tuple(self.heard[-len(last) :]) != last:
                self._changed.clear()
                await self._changed.wait()


async def test_others_have_their_turn_while_many_are_told():
    told, order = Told(each_s=2 * SLICE_S), []
    told.add("a", "b", "c")
    told.then["a"] = lambda: asyncio.get_running_loop().call_soon(lambda: order.append(len(told.heard)))
    told.teller.mark_changed("m")
    await told.until(("a", 1), ("b", 2), ("c", 3))
    assert order == [1]


async def test_telling_rests_nine_times_as_long_as_it_took():
    told = Told(each_s=0.004)
    first, *_ = told.add("a", "b", "c", "d", "e")
    told.teller.mark_changed("m")
    await told.until(("d", 4), ("e", 5))
    told.leaves(first)
    await told.until(("d", 3), ("e", 4))
    assert told.at_s[5] - told.at_s[4] >= 9 * 5 * 0.004


async def test_a_defect_of_one_client_keeps_no_update_from_the_others():
    def fail():
        raise ZeroDivisionError

    told = Told()
    told.add("a", "b")
    told.then["a"] = fail
    told.teller.mark_changed("m")
    await told.until(("a", 1), ("b", 2))
    told.add("c")
    told.teller.mark_changed("m")
    await told.until(("c", 3))


async def test_whoever_leaves_while_others_are_told_is_not():
    told = Told(each_s=2 * SLICE_S)
    _, _, third, _ = told.add("a", "b", "c", "d")
    told.then["a"] = lambda: told.leaves(third)
    told.teller.mark_changed("m")
    await told.until(("a", 1), ("b", 2), ("d", 3))


async def test_what_changes_while_others_are_told_is_told_when_all_have_been():
    told = Told(each_s=0.003)
    first, *others = told.add(*(f"q{number}" for number in range(30)))  # telling all takes longer than changes are gathered
    told.then["q0"] = lambda: asyncio.get_running_loop().call_soon(told.leaves, first)
    told.teller.mark_changed("m")
    await told.until(("q29", 29))
    everybody = [(f"q{number}", number + 1) for number in range(30)]
    assert told.heard == everybody + [(ticket.id, number) for number, ticket in enumerate(others, start=1)]


async def test_nobody_is_told_the_same_again_because_of_others():
    told = Told()
    told.add("a")
    one, two, _ = told.add("x", "y", "z", model="n")
    told.teller.mark_changed("n")
    await told.until(("z", 3))
    told.leaves(one)
    await told.until(("z", 2))
    told.leaves(two)
    await told.until(("z", 1))
    assert told.heard.count(("a", 1)) == 1


async def test_whoever_comes_while_others_are_told_is_told_once():
    told = Told(each_s=2 * SLICE_S)
    told.add("a")
    told.add("x", model="n")

    def comes():
        (late,) = told.add("late", model="n")
        told.teller.admit(late)

    told.then["a"] = lambda: asyncio.get_running_loop().call_soon(comes)
    told.teller.mark_changed("m")
    await told.until(("a", 1), ("late", 2), ("x", 1))
    told.add("last")
    told.teller.mark_changed("m")
    await told.until(("last", 2))
    assert told.heard.count(("late", 2)) == 1


async def test_far_behind_it_takes_as_long_as_for_whoever_was_last():
    told = Told(places=[(("audio",), 5.0)])
    told.add(*(f"q{number}" for number in range(MAX_EXACT_POSITION)))
    told.add("x", model="n")
    told.teller.mark_changed("m")
    await told.until((f"q{MAX_EXACT_POSITION - 1}", MAX_EXACT_POSITION), ("x", 1))  # which comes when all of the other model were told
    (late,) = told.add("late")
    told.teller.admit(late)
    assert told.waits_s["late"] == told.waits_s[f"q{MAX_EXACT_POSITION - 1}"] == 5 + 10 * (MAX_EXACT_POSITION - 1)


async def test_when_all_is_over_nobody_is_told():
    over, cut, other = Told(), Told(each_s=2 * SLICE_S), Told()
    for told in (over, cut, other):
        told.add("a", "b")
        told.teller.mark_changed("m")
    cut.then["a"] = cut.teller.close
    over.teller.close()
    await other.until(("b", 2))
    over.teller.mark_changed("m")
    (last,) = other.add("c")
    other.teller.mark_changed("m")
    await other.until((last.id, 3))
    assert (over.heard, cut.heard) == ([], [("a", 1)])
