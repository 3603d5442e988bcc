"""Workers, requests for them, and a day of a pool in virtual time."""

import heapq
import random
from collections import Counter

from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.runtime.scheduling.base import Requirements, Worker
from antiphon.runtime.scheduling.pool import PoolRules, WorkerPool

ENGINE = ScriptedEngine(Script())


ALL = ("responses", "realtime", "chat", "audio", "video")


def worker(id, model="m", kinds=ALL, slots=1):
    return Worker(id=id, model=model, engine=ENGINE, kinds=kinds, slots=slots)


def wants(kind="audio", key="", model="m"):
    return Requirements(model=model, kind=kind, key_id=key)


class Day:
    """A pool in virtual time: clients arrive, wait, leave and talk; workers die and return."""

    def __init__(self, seed, tickets, workers):
        self.dice = random.Random(seed)
        self.pool = WorkerPool(PoolRules(max_waiting=tickets, max_failures=3, quarantine_s=30))
        self.agenda = []
        self.order = 0
        self.outcomes = Counter()
        self.assigned = []
        self.now = 0.0
        for number in range(workers):
            self.pool.add_worker(worker(f"w{number}", kinds=self.dice.choice([ALL, ALL, ("audio",), ("chat", "video")])), 0)
        for number in range(tickets):
            self.at(self.dice.uniform(0, 1000), self.arrive, f"q{number}")
        for _ in range(workers):
            self.at(self.dice.uniform(0, 4000), self.die, f"w{self.dice.randrange(workers)}")

    def at(self, when, what, *args):
        self.order += 1
        heapq.heappush(self.agenda, (when, self.order, what, args))

    def run(self):
        while self.agenda:
            self.now, _, what, args = heapq.heappop(self.agenda)
            what(*args)
            self.take(self.pool.end_quarantines(self.now))

    def arrive(self, id):
        ticket = self.pool.request_lease(id, wants(self.dice.choice(["chat", "audio", "video"])), self.now)
        if ticket.state == "serving":
            self.take([ticket])
        elif self.dice.random() < 0.1:
            self.at(self.now + self.dice.uniform(0, 300), self.give_up, ticket)

    def take(self, tickets):
        for ticket in tickets:
            self.assigned.append(ticket)
            outcome = "failed" if self.dice.random() < 0.03 else "served"
            self.at(self.now + self.dice.expovariate(1 / 20), self.leave, ticket, outcome, ticket.assigned_s)

    def give_up(self, ticket):
        if ticket.state == "queued":
            self.outcomes["gave_up"] += 1
            self.take(self.pool.end_ticket(ticket, self.now, outcome="gave_up"))

    def leave(self, ticket, outcome, since):
        if ticket.state == "serving" and ticket.assigned_s == since:
            self.outcomes[outcome] += 1
            self.take(self.pool.end_ticket(ticket, self.now, outcome=outcome))

    def die(self, id):
        there = [each.worker for each in self.pool.workers() if each.worker.id == id]
        had = [ticket for ticket in self.pool.serving_tickets() if self.pool.assigned_worker(ticket).worker.id == id]
        self.pool.remove_worker(id)
        for ticket in had:  # all their clients get an error from the engine, and leave
            self.outcomes["failed"] += 1
            self.take(self.pool.end_ticket(ticket, self.now, outcome="failed"))
        for dead in there:
            self.at(self.now + 10, self.come_back, dead)

    def come_back(self, dead):
        self.take(self.pool.add_worker(dead, self.now))
