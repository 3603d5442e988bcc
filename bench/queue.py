"""
What does a queue cost as it grows, and how soon does the next client get a free slot?

    python bench/queue.py

The first table is the queue alone: CPU microseconds per operation for each number of waiting clients, and the ratio to ten of them. The
second includes the event loop: the time from the end of a conversation to the `WorkerAssigned` of the next one, with a thousand waiting
clients that receive their positions while others arrive and leave.
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
    """A pool whose slots are all in use, with `length` tickets waiting."""
    pool = WorkerPool(PoolRules(max_waiting=2 * length + WORKERS))
    for number in range(WORKERS):
        pool.add_worker(Worker(id=f"w{number}", model="m", engine=ScriptedEngine(Script())), 0)
    tickets = [
        pool.request_lease(f"q{number}", Requirements(model="m", kind=KINDS[number % 3]), number) for number in range(length + WORKERS)
    ]
    return pool, tickets[:WORKERS], tickets[WORKERS:]


def assign_us(length):
    """A slot becomes free and is assigned to the next ticket, and another client arrives."""
    pool, serving, _ = filled(length)
    started_ns = time.thread_time_ns()
    for number in range(TURNS):
        serving += pool.end_ticket(serving[number], length + number)
        pool.request_lease(f"n{number}", Requirements(model="m", kind=KINDS[number % 3]), length + WORKERS + number)
    return (time.thread_time_ns() - started_ns) / TURNS / 1000


def leave_us(length):
    """A waiting client leaves, and another arrives."""
    pool, _, waiting = filled(length)
    dice = random.Random(1)
    spent_ns = 0
    for number in range(TURNS):
        index = dice.randrange(len(waiting))
        waiting[index], waiting[-1] = waiting[-1], waiting[index]
        started_ns = time.thread_time_ns()
        pool.end_ticket(waiting.pop(), 0, outcome="gave_up")
        waiting.append(pool.request_lease(f"n{number}", Requirements(model="m", kind=KINDS[number % 3]), length + WORKERS + number))
        spent_ns += time.thread_time_ns() - started_ns
    return spent_ns / TURNS / 1000


async def position_update_us(length):
    """Every waiting client receives its position and estimated wait: CPU for each of them."""
    coordinator = LocalCoordinator(QueueSettings(size=length))
    coordinator.add_worker(Worker(id="w", model="m", engine=ScriptedEngine(Script()), slots=1))
    for kind in KINDS:
        coordinator.lease_durations.observe("m", kind, 60)
    updates = 0

    def on_update(_waiting):
        nonlocal updates
        updates += 1

    async def wait():
        async with coordinator.lease(Requirements(model="m", kind="audio"), on_update):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(wait()) for _ in range(length + 1)]
        await until(lambda: updates >= length)
        updates = 0
        waiting[0].cancel()  # all others move up
        started_ns = time.thread_time_ns()
        await until(lambda: updates >= length - 1, every_s=0.05)
        spent_ns = time.thread_time_ns() - started_ns
        for task in waiting:
            task.cancel()
    await coordinator.close()
    return spent_ns / length / 1000


class BusyQueue:
    """
    A thousand clients that wait for twenty slots.

    Attributes:
        delays_s: of each handover, on the two clocks of `clocks`.
    """

    def __init__(self, tasks):
        self.coordinator = LocalCoordinator(QueueSettings(size=2 * WAITING))
        for number in range(WORKERS):
            self.coordinator.add_worker(Worker(id=f"w{number}", model="m", engine=ScriptedEngine(Script())))
        for kind in KINDS:
            self.coordinator.lease_durations.observe("m", kind, 60)
        self.engine = QueuedEngine(self.coordinator, "m")
        self.tasks = tasks
        self.serving = set()
        self.ended_at = None
        self.delays_s = []

    def add_client(self):
        self.tasks.create_task(self.hold_conversation())

    async def hold_conversation(self):
        assigned, over = asyncio.Event(), asyncio.Event()

        def deliver(batch):
            if any(isinstance(event, events.WorkerAssigned) for event in batch):
                self.note_handover()
                assigned.set()

        async with self.engine.open(SETTINGS, deliver):
            await assigned.wait()
            self.serving.add(over)
            await over.wait()

    def note_handover(self):
        if self.ended_at is not None:
            self.delays_s.append([now - then for now, then in zip(clocks(), self.ended_at, strict=True)])
            self.ended_at = None

    def end_one(self):
        self.ended_at = clocks()
        self.serving.pop().set()

    async def churn(self, dice):
        """Other clients that arrive, receive their position, and leave."""
        while True:
            async with self.engine.open(SETTINGS, lambda _events: None):
                await asyncio.sleep(dice.uniform(0, 0.01))


async def handovers_ms():
    dice = random.Random(2)
    try:
        async with asyncio.TaskGroup() as tasks:
            queue = BusyQueue(tasks)
            for _ in range(WAITING + WORKERS):
                queue.add_client()
            await until(lambda: len(queue.serving) == WORKERS)
            tasks.create_task(queue.churn(dice))
            for _ in range(HANDOVERS):
                await asyncio.sleep(dice.uniform(0.01, 0.04))
                queue.end_one()
                queue.add_client()
                await until(lambda: queue.ended_at is None)
            raise Over
    except* Over:
        await queue.coordinator.close()
        await queue.engine.stop()
    return [sorted(seconds * 1000 for seconds in each) for each in zip(*queue.delays_s, strict=True)]


def clocks():
    """The time, and the CPU time of this thread, which the machine's other work doesn't change."""
    return time.perf_counter(), time.thread_time()


class Over(Exception):
    """All handovers have been measured."""


async def until(condition, every_s=0.001):
    while not condition():  # noqa: ASYNC110 - what is measured sets no event
        await asyncio.sleep(every_s)


def main():
    tune_interpreter()  # as the server does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = {"assign": assign_us, "leave": leave_us, "send position": lambda length: runner.run(position_update_us(length))}
        print(f"{'us of CPU':14}" + "".join(f"{length:>10,}" for length in LENGTHS))
        for name, measure in rows.items():
            best = [min(measure(length) for _ in range(3)) for length in LENGTHS]
            print(f"{name:14}" + "".join(f"{value:10.1f}" for value in best) + f"   {best[-1] / best[0]:.2f}x from 10 to 10,000")
        print(f"from a free slot to the next client's event, {WAITING:,} waiting, ms:")
        for name, delays in zip(("wall clock", "CPU"), runner.run(handovers_ms()), strict=True):
            p50, p99 = statistics.median(delays), delays[int(len(delays) * 0.99)]
            print(f"{name:14}p50 {p50:.2f}, p99 {p99:.2f}, worst {delays[-1]:.2f}")


if __name__ == "__main__":
    main()
