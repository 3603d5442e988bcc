"""Which ticket gets which slot: the rules of the pool over any history, and a day of it in virtual time."""

import itertools
from collections import Counter

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.engine_api.options import ConversationKind
from antiphon.errors import ApiError
from antiphon.runtime.scheduling.pool import MAX_ENDED_TICKETS, TRANSITIONS, PoolRules, WorkerPool
from antiphon.runtime.scheduling.queue import PRIORITY_STEP_S
from support.runtime.pools import ALL, Day, wants, worker


def served(tickets):
    return [ticket.id for ticket in tickets]


def test_who_came_first_is_served_first():
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0)
    tickets = [pool.request_lease(f"q{number}", wants(), number) for number in range(4)]
    assert [ticket.state for ticket in tickets] == ["serving", "queued", "queued", "queued"]
    assert [pool.queue.position(ticket) for ticket in tickets[1:]] == [1, 2, 3]
    for ticket, after in itertools.pairwise(tickets):
        assert pool.end_ticket(ticket, 10) == [after]


def test_whoever_no_worker_is_free_for_does_not_keep_those_behind_from_one_that_is():
    pool = WorkerPool()
    pool.add_worker(worker("video", kinds=("video",)), 0)
    pool.add_worker(worker("chat", kinds=("chat",)), 0)
    pool.request_lease("q1", wants("video"), 0)
    assert pool.request_lease("q2", wants("video"), 1).state == "queued"
    assert pool.request_lease("q3", wants("chat"), 2).state == "serving"


def test_a_higher_priority_goes_first_and_nobody_is_overtaken_by_those_who_come_much_later():
    pool = WorkerPool(PoolRules(priorities={"chat": 1, "vip": 1}))
    pool.add_worker(worker("w"), 0)
    first = pool.request_lease("q0", wants(), 0)
    for id, kind, key, at in (
        ("low", "audio", "", 1.0),
        ("chat", "chat", "", 2.0),
        ("vip chat", "chat", "vip", 3.0),
        ("late", "chat", "", PRIORITY_STEP_S + 2),
    ):
        pool.request_lease(id, wants(kind, key), at)
    order = []
    ticket = first
    while got := pool.end_ticket(ticket, 2000):
        (ticket,) = got
        order.append(ticket.id)
    assert order == ["vip chat", "chat", "low", "late"]


def test_a_key_has_no_more_places_than_it_may_and_holds_up_nobody_else():
    pool = WorkerPool(PoolRules(max_serving_per_key=1))
    pool.add_worker(worker("w", slots=3), 0)
    mine = [pool.request_lease(f"mine{number}", wants(key="me"), number) for number in range(3)]
    assert [ticket.state for ticket in mine] == ["serving", "queued", "queued"]
    assert pool.request_lease("yours", wants(key="you"), 5).state == "serving"
    assert served(pool.end_ticket(mine[0], 6)) == ["mine1"]
    assert served(pool.end_ticket(mine[1], 7)) == ["mine2"]


def test_whoever_their_key_held_back_goes_before_those_who_came_later():
    pool = WorkerPool(PoolRules(max_serving_per_key=1))
    pool.add_worker(worker("w"), 0)
    mine = pool.request_lease("mine", wants(key="me"), 0)
    pool.request_lease("mine too", wants(key="me"), 1)
    pool.request_lease("yours", wants(key="you"), 2)
    assert served(pool.end_ticket(mine, 3)) == ["mine too"]


def test_when_the_one_that_a_keys_next_place_was_for_leaves_the_queue_the_one_after_it_has_it():
    pool = WorkerPool(PoolRules(max_serving_per_key=1))
    pool.add_worker(worker("w"), 0)
    mine = pool.request_lease("mine", wants(key="me"), 0)
    later = [pool.request_lease(f"mine{number}", wants(key="me"), number) for number in (1, 2)]
    yours = pool.request_lease("yours", wants(key="you"), 3)
    pool.add_worker(worker("v"), 4)  # the head is held by its key, and is parked; you are served
    assert yours.state == "serving"
    pool.drain("w")
    assert pool.end_ticket(mine, 5) == []
    pool.end_ticket(later[0], 6)
    assert served(pool.end_ticket(yours, 7)) == ["mine2"]


def test_the_queue_has_its_size_and_a_key_its_part_of_it():
    pool = WorkerPool(PoolRules(max_waiting=2, max_waiting_per_key=1))
    pool.add_worker(worker("w"), 0)
    pool.request_lease("q0", wants(), 0)
    pool.request_lease("q1", wants(key="me"), 1)
    with pytest.raises(ApiError) as mine:
        pool.request_lease("q2", wants(key="me"), 2)
    pool.request_lease("q3", wants(), 3)
    with pytest.raises(ApiError) as anybodys:
        pool.request_lease("q4", wants(), 4)
    with pytest.raises(ApiError) as both:
        pool.request_lease("q5", wants(key="me"), 5)
    faults = [mine.value, anybodys.value, both.value]
    assert [(fault.code, fault.status, "your key" in fault.message) for fault in faults] == [
        ("queue_full", 429, True),
        ("queue_full", 503, False),
        ("queue_full", 429, True),  # what the key itself can mend comes first
    ]


def test_where_no_worker_could_ever_do_it_nobody_waits():
    pool = WorkerPool()
    pool.add_worker(worker("w", kinds=("chat",)), 0)
    pool.add_worker(worker("v"), 0)
    pool.drain("v")
    for asked in (wants("audio"), wants("chat", model="other")):
        with pytest.raises(ApiError) as refused:
            pool.request_lease("q", asked, 0)
        assert refused.value.code == "worker_busy"


def test_a_worker_that_fails_again_and_again_gets_nobody_for_a_while_and_then_one():
    pool = WorkerPool(PoolRules(max_failures=2, quarantine_s=60))
    pool.add_worker(worker("w", slots=2), 0)
    for number in range(2):
        pool.end_ticket(pool.request_lease(f"bad{number}", wants(), number), number, outcome="failed")
    assert pool.next_quarantine_end_s() == 61
    waiting = [pool.request_lease(f"q{number}", wants(), 10 + number) for number in range(3)]
    assert pool.end_quarantines(60.9) == []
    assert served(pool.end_quarantines(61)) == ["q0"]  # one of its two places, to show that it is well
    assert served(pool.end_ticket(waiting[0], 70)) == ["q1", "q2"]


def test_a_worker_that_fails_its_trial_is_put_aside_again_at_once():
    pool = WorkerPool(PoolRules(max_failures=2, quarantine_s=60))
    pool.add_worker(worker("w"), 0)
    for number in range(2):
        pool.end_ticket(pool.request_lease(f"bad{number}", wants(), 0), 0, outcome="failed")
    waiting = pool.request_lease("q", wants(), 1)
    pool.end_quarantines(60)
    pool.end_ticket(waiting, 61, outcome="failed")
    assert [(each.state, each.quarantined_until) for each in pool.workers()] == [("quarantined", 121)]


def test_whoever_left_before_the_worker_could_show_anything_neither_blames_nor_clears_it():
    pool = WorkerPool(PoolRules(max_failures=2))
    pool.add_worker(worker("w"), 0)
    for number, outcome in enumerate(("failed", "gave_up", "failed")):
        pool.end_ticket(pool.request_lease(f"q{number}", wants(), 0), 0, outcome=outcome)
    assert [each.state for each in pool.workers()] == ["quarantined"]


def test_whoever_comes_again_stands_where_they_stood_and_needs_no_room_in_the_queue():
    pool = WorkerPool(PoolRules(max_waiting=1))
    pool.add_worker(worker("w"), 0)
    first = pool.request_lease("q0", wants(), 0)
    second = pool.request_lease("q1", wants(), 1)
    assert pool.end_ticket(first, 2, outcome="failed") == [second]
    third = pool.request_lease("q2", wants(), 3)
    back = pool.request_lease("q9", wants(), 4, retry_of="q0")
    assert (back.id, back.state, back.assigned_at, back.assigned_s) == ("q0", "queued", None, None)
    assert [pool.queue.position(ticket) for ticket in (back, third)] == [1, 2]


def test_what_a_worker_was_before_it_came_back_does_not_count():
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0)
    old = pool.request_lease("q0", wants(), 0)
    waiting = pool.request_lease("q1", wants(), 1)
    assert served(pool.add_worker(worker("w"), 2)) == ["q1"]
    assert pool.end_ticket(old, 3) == []
    assert [(each.state, each.lease_count) for each in pool.workers()] == [("busy", 1)]
    pool.end_ticket(waiting, 4)
    assert pool.worker_counts == Counter({("m", "idle"): 1, ("m", "busy"): 0})


def test_nothing_comes_of_what_cant_happen_to_a_worker():
    assert {event for table in TRANSITIONS.values() for event in table} == {
        "drain",
        "resume",
        "quarantine",
        "go_offline",
        "release",
        "go_online",
    }
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0)
    pool.drain("w")
    pool.mark_offline("w")
    assert pool.mark_online("w", 0) == []
    assert [each.state for each in pool.workers()] == ["draining"]


def test_whoever_comes_again_waits_also_where_the_last_worker_has_gone():
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0)
    ticket = pool.request_lease("q0", wants(), 0)
    pool.remove_worker("w")
    pool.end_ticket(ticket, 1, outcome="failed")
    assert pool.request_lease("q9", wants(), 2, retry_of="q0") is ticket
    assert pool.unservable_tickets("m") == [ticket]
    assert served(pool.add_worker(worker("v"), 3)) == ["q0"]
    with pytest.raises(ApiError):
        WorkerPool().request_lease("q1", wants(), 0)


def test_whom_its_key_held_back_is_served_when_a_place_of_the_key_comes_back_from_another_model():
    pool = WorkerPool(PoolRules(max_serving_per_key=1))
    pool.add_worker(worker("w"), 0)
    pool.add_worker(worker("v", model="n"), 0)
    first = pool.request_lease("q0", wants(key="a", model="n"), 0)
    gone, held = (pool.request_lease(id, wants(key="a"), 1) for id in ("q1", "q2"))
    assert (gone.state, held.state) == ("queued", "queued")
    assert pool.end_ticket(gone, 2, outcome="gave_up") == []
    assert pool.end_ticket(first, 3) == [held]


def test_whoever_had_nobody_for_longest_is_next():
    pool = WorkerPool()
    for id in ("w", "v"):
        pool.add_worker(worker(id), 0)
    had = []
    for number in range(4):
        ticket = pool.request_lease(f"q{number}", wants(), number)
        had.append(pool.assigned_worker(ticket).worker.id)
        pool.end_ticket(ticket, number)
    assert had == ["w", "v", "w", "v"]


def test_those_who_come_are_spread_over_all_that_have_room():
    pool = WorkerPool()
    for id in ("w", "v"):
        pool.add_worker(worker(id, slots=2), 0)
    had = [pool.assigned_worker(pool.request_lease(f"q{number}", wants(), number)).worker.id for number in range(4)]
    assert had == ["w", "v", "w", "v"]


def test_what_a_worker_has_had_is_counted_from_when_it_came():
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0, wall=1000)
    for number in range(2):
        pool.end_ticket(pool.request_lease(f"q{number}", wants(), 0), 0)
    assert [(each.served_count, each.joined_at) for each in pool.workers()] == [(2, 1000)]


def test_a_key_whose_tickets_wait_no_longer_may_have_others():
    pool = WorkerPool(PoolRules(max_waiting_per_key=1))
    pool.add_worker(worker("w"), 0)
    first = pool.request_lease("q0", wants(), 0)
    for number in range(3):
        pool.end_ticket(pool.request_lease(f"mine{number}", wants(key="me"), number), number, outcome="gave_up")
    pool.request_lease("mine", wants(key="me"), 3)
    assert served(pool.end_ticket(first, 4)) == ["mine"]
    assert pool.request_lease("mine too", wants(key="me"), 5).state == "queued"


@pytest.mark.parametrize(("what", "state"), [("drain", "draining"), ("mark_offline", "offline")])
def test_a_worker_that_gets_nobody_anyway_is_not_put_aside_and_then_back(what, state):
    pool = WorkerPool(PoolRules(max_failures=1, quarantine_s=60))
    pool.add_worker(worker("w"), 0)
    ticket = pool.request_lease("q0", wants(), 0)
    getattr(pool, what)("w")
    pool.end_ticket(ticket, 1, outcome="failed")
    assert [each.state for each in pool.workers()] == [state]
    assert (pool.next_quarantine_end_s(), pool.end_quarantines(100)) == (None, [])
    assert [each.state for each in pool.workers()] == [state]


def test_a_worker_that_is_put_aside_and_then_does_not_answer_is_back_when_it_does():
    pool = WorkerPool(PoolRules(max_failures=1, quarantine_s=60))
    pool.add_worker(worker("w"), 0)
    pool.end_ticket(pool.request_lease("q0", wants(), 0), 0, outcome="failed")
    pool.request_lease("q1", wants(), 1)
    pool.mark_offline("w")
    assert pool.end_quarantines(100) == []
    assert served(pool.mark_online("w", 101)) == ["q1"]


def test_a_worker_that_was_drained_while_it_did_not_answer_stays_so():
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0)
    pool.mark_offline("w")
    pool.drain("w")
    assert pool.mark_online("w", 1) == []
    assert [each.state for each in pool.workers()] == ["draining"]


def test_a_worker_that_is_resumed_has_those_who_waited_for_it_and_whoever_comes():
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0)
    first, _ = pool.request_lease("q0", wants(), 0), pool.request_lease("q1", wants(), 1)
    pool.drain("w")
    assert pool.end_ticket(first, 2) == []
    assert served(pool.resume("w", 3)) == ["q1"]
    assert pool.request_lease("q2", wants(), 4).state == "queued"
    assert [each.state for each in pool.workers()] == ["busy"]


def test_only_a_worker_that_was_drained_can_be_resumed():
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0)
    pool.mark_offline("w")
    assert (pool.resume("w", 1), pool.resume("nobody", 1)) == ([], [])
    assert [each.state for each in pool.workers()] == ["offline"]


def test_the_next_to_be_released_is_the_one_that_was_put_aside_first():
    pool = WorkerPool(PoolRules(max_failures=1, quarantine_s=60))
    for number, id in enumerate(("w", "v")):
        pool.add_worker(worker(id, kinds=("audio",) if id == "w" else ("chat",)), 0)
        pool.end_ticket(pool.request_lease(f"q{number}", wants("audio" if id == "w" else "chat"), 0), 10 * number, outcome="failed")
    assert pool.next_quarantine_end_s() == 60


def test_only_those_are_stranded_whom_no_worker_is_left_for():
    pool = WorkerPool()
    pool.add_worker(worker("w", kinds=("audio",)), 0)
    pool.add_worker(worker("v", kinds=("chat",)), 0)
    for number, kind in enumerate(("audio", "chat", "audio", "chat")):
        pool.request_lease(f"q{number}", wants(kind), number)
    pool.drain("v")
    assert served(pool.unservable_tickets("m")) == ["q3"]


def test_whoever_left_long_ago_comes_as_anybody():
    pool = WorkerPool()
    pool.add_worker(worker("w"), 0)
    for number in range(MAX_ENDED_TICKETS + 1):
        pool.end_ticket(pool.request_lease(f"q{number}", wants(), number), number, outcome="failed" if number == 0 else "served")
    assert pool.request_lease("new", wants(), 9999, retry_of="q0").id == "new"
    assert pool.request_lease("unused", wants(), 9999, retry_of="q1").id == "q1"


def test_a_key_whose_first_no_worker_is_free_for_has_its_place_for_the_one_after():
    pool = WorkerPool(PoolRules(max_serving_per_key=1))
    pool.add_worker(worker("chat", kinds=("chat",)), 0)
    pool.add_worker(worker("audio", kinds=("audio",)), 0)
    mine = pool.request_lease("q0", wants("chat", "me"), 0)
    pool.request_lease("q1", wants("audio"), 1)
    pool.request_lease("q2", wants("audio", "me"), 2)
    pool.request_lease("q3", wants("chat", "me"), 3)
    pool.request_lease("q4", wants("chat", "you"), 4)
    assert served(pool.end_ticket(mine, 5)) == ["q3"]


def test_a_place_of_a_key_goes_to_the_first_of_those_that_it_held_back():
    pool = WorkerPool(PoolRules(max_serving_per_key=1))
    for id, kind in (("w", "chat"), ("v", "audio"), ("u", "video")):
        pool.add_worker(worker(id, kinds=(kind,)), 0)
    mine = pool.request_lease("q0", wants("video", "me"), 0)
    for number, kind in ((1, "audio"), (2, "chat")):
        pool.request_lease(f"q{number}", wants(kind, "me"), 3 - number)
    assert served(pool.end_ticket(mine, 4)) == ["q2"]


def test_those_whom_their_key_came_to_hold_while_they_waited_are_served_when_it_lets_them():
    pool = WorkerPool(PoolRules(max_serving_per_key=1))
    pool.add_worker(worker("w"), 0)
    first = pool.request_lease("q0", wants(), 0)
    mine = [pool.request_lease(f"mine{number}", wants(key="me"), number) for number in (1, 2)]
    pool.add_worker(worker("v", slots=2), 3)  # with the first of them the key has as many as it may
    assert [ticket.state for ticket in mine] == ["serving", "queued"]
    assert pool.end_ticket(first, 4) == []
    assert pool.end_ticket(mine[0], 5) == [mine[1]]


class History(RuleBasedStateMachine):
    """Any history of a pool, with a plain account of what it should be beside it."""

    KEYS = ("", "a", "b")
    KINDS = (("chat",), ("audio", "video"), ALL)

    def __init__(self):
        super().__init__()
        self.rules = PoolRules(
            max_waiting=6, max_waiting_per_key=4, max_serving_per_key=2, max_failures=2, quarantine_s=5, priorities={"chat": 1}
        )
        self.pool = WorkerPool(self.rules)
        self.now = 0.0
        self.count = 0
        self.waiting = []
        self.serving = []
        self.ended = []

    def given(self, tickets):
        for ticket in tickets:
            self.waiting.remove(ticket)
            self.serving.append(ticket)

    @rule(kind=st.sampled_from(["chat", "audio", "video"]), key=st.sampled_from(KEYS), model=st.sampled_from("mn"))
    def ask(self, kind, key, model):
        self.count += 1
        try:
            ticket = self.pool.request_lease(f"q{self.count}", wants(kind, key, model), self.now)
        except ApiError:
            return
        (self.serving if ticket.state == "serving" else self.waiting).append(ticket)
        if ticket.state == "serving":  # it has overtaken nobody who waited for the same, and could have been served
            same = [other for other in self.waiting if (other.requirements.model, other.requirements.kind) == (model, kind)]
            assert all(self.is_held(other) for other in same)

    def is_held(self, ticket):
        key = ticket.requirements.key_id
        return bool(key) and sum(other.requirements.key_id == key for other in self.serving) >= self.rules.max_serving_per_key

    @precondition(lambda self: self.waiting)
    @rule(choice=st.randoms())
    def give_up(self, choice):
        ticket = choice.choice(self.waiting)
        self.waiting.remove(ticket)
        self.ended.append(ticket)
        self.given(self.pool.end_ticket(ticket, self.now, outcome="gave_up"))

    @precondition(lambda self: self.serving)
    @rule(choice=st.randoms(), outcome=st.sampled_from(["served", "failed", "gave_up"]), comes_again=st.booleans())
    def leave(self, choice, outcome, comes_again):
        ticket = choice.choice(self.serving)
        self.serving.remove(ticket)
        self.given(self.pool.end_ticket(ticket, self.now, outcome=outcome))
        if not comes_again:
            self.ended.append(ticket)
            return
        try:
            again = self.pool.request_lease("unused", ticket.requirements, self.now, retry_of=ticket.id)
        except ApiError:
            self.ended.append(ticket)
            return
        assert again is ticket
        (self.serving if ticket.state == "serving" else self.waiting).append(ticket)

    @rule(id=st.sampled_from("uvw"), model=st.sampled_from("mn"), kinds=st.sampled_from(KINDS), slots=st.sampled_from([1, 2, None]))
    def offer(self, id, model, kinds, slots):
        self.given(self.pool.add_worker(worker(id, model, kinds, slots), self.now))

    @rule(id=st.sampled_from("uvw"), what=st.sampled_from(["remove_worker", "drain", "mark_offline"]))
    def goes(self, id, what):
        getattr(self.pool, what)(id)

    @rule(id=st.sampled_from("uvw"), what=st.sampled_from(["mark_online", "resume"]))
    def is_back(self, id, what):
        self.given(getattr(self.pool, what)(id, self.now))

    @rule(seconds=st.sampled_from([0.5, 5.0, 700.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.given(self.pool.end_quarantines(self.now))

    @invariant()
    def every_ticket_is_where_it_should_be(self):
        assert [ticket.state for ticket in self.waiting] == ["queued"] * len(self.waiting)
        assert [ticket.state for ticket in self.serving] == ["serving"] * len(self.serving)
        assert [ticket.state for ticket in self.ended] == ["ended"] * len(self.ended)
        assert sorted(ticket.id for ticket in self.pool.serving_tickets()) == sorted(ticket.id for ticket in self.serving)
        assert len(self.pool.queue) == len(self.waiting)

    @invariant()
    def the_order_is_that_of_rank_and_within_a_class_that_of_coming(self):
        for model in "mn":
            line = list(self.pool.queue.tickets(model))
            assert set(line) == {ticket for ticket in self.waiting if ticket.requirements.model == model}
            assert line == sorted(line, key=lambda ticket: ticket.rank[:2])
            assert [self.pool.queue.position(ticket) for ticket in line] == list(range(1, len(line) + 1))
            for kind in ("chat", "audio", "video"):
                numbers = [ticket.number for ticket in line if ticket.requirements.kind == kind]
                assert numbers == sorted(numbers)

    @invariant()
    def no_worker_has_more_than_it_can_and_every_place_is_accounted_for(self):
        taken = Counter(id(self.pool.assigned_worker(ticket)) for ticket in self.serving)
        for each in self.pool.workers():
            assert each.lease_count == taken[id(each)]
            assert each.worker.slots is None or each.lease_count <= each.worker.slots

    @invariant()
    def limits_hold(self):
        for key in self.KEYS[1:]:
            assert sum(ticket.requirements.key_id == key for ticket in self.serving) <= self.rules.max_serving_per_key

    @invariant()
    def nobody_waits_whom_a_worker_with_room_could_serve(self):
        for each in self.pool.workers():
            room = each.worker.slots is None or each.lease_count < (
                1 if each.failure_count >= self.rules.max_failures else each.worker.slots
            )
            if each.condition != "well" or not room or (each.failure_count >= self.rules.max_failures and each.lease_count):
                continue
            for ticket in self.waiting:
                fits = ticket.requirements.model == each.worker.model and ticket.requirements.kind in each.worker.kinds
                assert not fits or self.is_held(ticket)

    @invariant()
    def only_those_are_stranded_whom_no_worker_could_ever_serve(self):
        able = {(each.worker.model, kind) for each in self.pool.workers() if each.condition != "draining" for kind in each.worker.kinds}
        for model in "mn":
            lost = {
                ticket for ticket in self.waiting if ticket.requirements.model == model and (model, ticket.requirements.kind) not in able
            }
            assert set(self.pool.unservable_tickets(model)) == lost

    @invariant()
    def the_numbers_are_true(self):
        for model in "mn":
            assert self.pool.waiting_counts[model] == sum(ticket.requirements.model == model for ticket in self.waiting)
            assert self.pool.serving_counts[model] == sum(ticket.requirements.model == model for ticket in self.serving)
        states = Counter((each.worker.model, each.state) for each in self.pool.workers())
        assert +self.pool.worker_counts == states


History.TestCase.settings = settings(stateful_step_count=60)
TestHistory = History.TestCase


def test_a_day_with_ten_thousand_people_and_two_hundred_workers_that_die():
    day = Day(seed=7, tickets=10_000, workers=200)
    day.run()
    assert sum(day.outcomes.values()) == 10_000  # nobody is lost
    assert len({ticket.id for ticket in day.assigned}) == len(day.assigned)  # nobody is served twice
    assert day.outcomes["served"] > 8_000
    assert (len(day.pool.queue), list(day.pool.serving_tickets())) == (0, [])
    assert {(each.state, each.lease_count) for each in day.pool.workers()} <= {("idle", 0), ("quarantined", 0)}
    for kind in ("chat", "audio", "video"):  # each gets a place in the order of coming
        numbers = [ticket.number for ticket in day.assigned if ticket.requirements.kind == kind]
        assert numbers == sorted(numbers)


def test_the_kinds_that_are_waited_for_are_those_of_the_vocabulary():
    assert set(ALL) == set(ConversationKind.__args__)
