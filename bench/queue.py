"""
What a queue costs as it grows: giving a place, giving up, telling everybody where they are; and how soon the next client is told.

    python bench/queue.py

The first table is the rule alone: microseconds of CPU an operation, with so many waiting, and what that is to the same with ten. The second
is the whole way on an event loop: from a conversation being left to the next one's `Assigned` being delivered, while a thousand wait, are
told their positions, and come and go.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import asyncio
import random
import statistics
import time

import uvloop

from antiphon.config.settings import QueueSettings
from antiphon.engine_api import events
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.runtime.scheduling.base import Requirements, Worker
from antiphon.runtime.scheduling.engine import QueuedEngine
from antiphon.runtime.scheduling.local import LocalCoordinator
from antiphon.runtime.scheduling.pool import PoolRules, WorkerPool
from antiphon.server.processes.run import tune_interpreter

LENGTHS = (10, 1_000, 10_000)
KINDS = ("chat", "audio", "video")
WORKERS = 20
TURNS = 2_000
WAITING = 1_000
HANDOVERS = 400
SETTINGS = ConversationSettings(model="m", kind="audio")


def filled(length):
    """A pool with all its places taken, and so many waiting."""
    pool = WorkerPool(PoolRules(max_waiting=2 * length + WORKERS))
    for number in range(WORKERS):
        pool.add_worker(Worker(id=f"w{number}", model="m", engine=ScriptedEngine(Script())), 0)
    tickets = [
        pool.request_lease(f"q{number}", Requirements(model="m", kind=KINDS[number % 3]), number) for number in range(length + WORKERS)
    ]
    return pool, tickets[:WORKERS], tickets[WORKERS:]


def assigning_us(length):
    """A place is left, the next has it, and one more comes to wait."""
    pool, serving, _ = filled(length)
    begun = time.thread_time_ns()
    for number in range(TURNS):
        serving += pool.end_ticket(serving[number], length + number)
        pool.request_lease(f"n{number}", Requirements(model="m", kind=KINDS[number % 3]), length + WORKERS + number)
    return (time.thread_time_ns() - begun) / TURNS / 1000


def cancelling_us(length):
    """Somebody in the queue gives up, and another comes."""
    pool, _, waiting = filled(length)
    dice = random.Random(1)
    spent = 0
    for number in range(TURNS):
        place = dice.randrange(len(waiting))
        waiting[place], waiting[-1] = waiting[-1], waiting[place]
        begun = time.thread_time_ns()
        pool.end_ticket(waiting.pop(), 0, outcome="gave_up")
        waiting.append(pool.request_lease(f"n{number}", Requirements(model="m", kind=KINDS[number % 3]), length + WORKERS + number))
        spent += time.thread_time_ns() - begun
    return spent / TURNS / 1000


async def telling_us(length):
    """Everybody is told their position and how long it will take: CPU for each of them."""
    places = LocalCoordinator(QueueSettings(size=length))
    places.add_worker(Worker(id="w", model="m", engine=ScriptedEngine(Script()), slots=1))
    for kind in KINDS:
        places.lease_durations.observe("m", kind, 60)
    told = 0

    def tell(_waiting):
        nonlocal told
        told += 1

    async def wait():
        async with places.lease(Requirements(model="m", kind="audio"), tell):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(wait()) for _ in range(length + 1)]
        await until(lambda: told >= length)
        told = 0
        waiting[0].cancel()  # everybody moves up
        begun = time.thread_time_ns()
        await until(lambda: told >= length - 1, every_s=0.05)
        spent = time.thread_time_ns() - begun
        for task in waiting:
            task.cancel()
    await places.close()
    return spent / length / 1000


class House:
    """A thousand who wait for twenty places; how late each handover was, in seconds, is in `late`, on two clocks."""

    def __init__(self, tasks):
        self.places = LocalCoordinator(QueueSettings(size=2 * WAITING))
        for number in range(WORKERS):
            self.places.add_worker(Worker(id=f"w{number}", model="m", engine=ScriptedEngine(Script())))
        for kind in KINDS:
            self.places.lease_durations.observe("m", kind, 60)
        self.engine = QueuedEngine(self.places, "m")
        self.tasks = tasks
        self.serving = set()
        self.left_at = None
        self.late = []

    def come(self):
        self.tasks.create_task(self.visit())

    async def visit(self):
        assigned, over = asyncio.Event(), asyncio.Event()

        def deliver(words):
            if any(isinstance(word, events.WorkerAssigned) for word in words):
                self.note()
                assigned.set()

        async with self.engine.open(SETTINGS, deliver):
            await assigned.wait()
            self.serving.add(over)
            await over.wait()

    def note(self):
        if self.left_at is not None:
            self.late.append([now - then for now, then in zip(clocks(), self.left_at, strict=True)])
            self.left_at = None

    def end_one(self):
        self.left_at = clocks()
        self.serving.pop().set()

    async def churn(self, dice):
        """Others who come, are told where they are, and leave."""
        while True:
            async with self.engine.open(SETTINGS, lambda _words: None):
                await asyncio.sleep(dice.uniform(0, 0.01))


async def handovers_ms():
    dice = random.Random(2)
    try:
        async with asyncio.TaskGroup() as tasks:
            house = House(tasks)
            for _ in range(WAITING + WORKERS):
                house.come()
            await until(lambda: len(house.serving) == WORKERS)
            tasks.create_task(house.churn(dice))
            for _ in range(HANDOVERS):
                await asyncio.sleep(dice.uniform(0.01, 0.04))
                house.end_one()
                house.come()
                await until(lambda: house.left_at is None)
            raise Over
    except* Over:
        await house.places.close()
        await house.engine.stop()
    return [sorted(seconds * 1000 for seconds in each) for each in zip(*house.late, strict=True)]


def clocks():
    """The time, and the processor time that this thread has had, which is no later for what others do on the machine."""
    return time.perf_counter(), time.thread_time()


class Over(Exception):
    """All handovers have been measured."""


async def until(holds, every_s=0.001):
    while not holds():  # noqa: ASYNC110 - what is measured sets no event
        await asyncio.sleep(every_s)


def main():
    tune_interpreter()  # as a server does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = {"assign": assigning_us, "give up": cancelling_us, "tell each": lambda length: runner.run(telling_us(length))}
        print(f"{'us of CPU':12}" + "".join(f"{length:>10,}" for length in LENGTHS))
        for name, measure in rows.items():
            best = [min(measure(length) for _ in range(3)) for length in LENGTHS]
            print(f"{name:12}" + "".join(f"{value:10.1f}" for value in best) + f"   {best[-1] / best[0]:.2f}x from 10 to 10,000")
        print(f"a place left until the next is told, {WAITING:,} waiting, ms:")
        for name, late in zip(("of time", "of CPU"), runner.run(handovers_ms()), strict=True):
            p50, p99 = statistics.median(late), late[int(len(late) * 0.99)]
            print(f"{name:12}p50 {p50:.2f}, p99 {p99:.2f}, worst {late[-1]:.2f}")


if __name__ == "__main__":
    main()
