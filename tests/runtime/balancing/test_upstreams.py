"""A model's upstreams as they fail, rest, come back and fill up, by a clock of the test's own."""

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from antiphon.engine_api.events import ResponseFailed
from antiphon.errors import ApiError, UpstreamError
from antiphon.runtime.balancing.upstreams import NoUpstream
from support.runtime.upstream_pools import Clock, Observer, pool_of, settle


def failed(cause="500", status=502, code="server_error", retry_after_s=None):
    error = (ApiError if status == 429 else UpstreamError)("Oh.", status=status, code=code, retry_after_s=retry_after_s)
    error.cause = cause
    return ResponseFailed.from_error("resp_1", error)


def fail(upstream, times=1, **failure):
    for _ in range(times):
        upstream.begin(is_affine=False)
        upstream.record_failure(failed(**failure))
        upstream.end()


def answer(upstream):
    upstream.begin(is_affine=False)
    upstream.record_output(0.1)
    upstream.end()


def states(pool):
    return [view.state for view in pool.views()]


def test_an_upstream_that_fails_in_a_row_rests_longer_each_time_and_comes_back_slowly():
    clock = Clock()
    pool = pool_of(clock, {}, {}, {}, {})
    upstream = pool.upstreams[0]
    rests = []
    fail(upstream, 5)
    for _ in range(5):
        assert states(pool)[0] == "open"
        rests.append(upstream.view().rest_s)
        clock.now += rests[-1]
        fail(upstream)  # the trial
    assert 7.5 <= rests[0] <= 12.5
    assert rests[3] > rests[1] > rests[0]
    assert max(rests) <= 75  # a minute, and a quarter of it at random
    clock.now += upstream.view().rest_s
    answer(upstream)
    assert states(pool)[0] == "ready"
    assert upstream.weight == pytest.approx(0.1)
    assert upstream.floor == 1
    clock.now += 10
    assert upstream.weight == pytest.approx(0.55)
    clock.now += 10
    assert upstream.weight == 1


def test_while_one_request_is_tried_no_other_is():
    clock = Clock()
    pool = pool_of(clock, {}, {})
    first, _ = pool.upstreams
    fail(first, 5)
    clock.now += 13
    assert not first.is_open
    first.begin(is_affine=False)
    assert first.is_open
    assert states(pool)[0] == "half_open"


def test_an_upstream_that_fails_most_of_the_time_rests_though_some_succeed():
    clock = Clock()
    pool = pool_of(clock, {}, {})
    upstream = pool.upstreams[0]
    for _ in range(4):
        fail(upstream, 2)
        answer(upstream)
        clock.now += 0.5
    fail(upstream, 1)
    assert states(pool)[0] == "open"


def test_failures_long_ago_don_t_count():
    clock = Clock()
    pool = pool_of(clock, {}, {})
    for _ in range(30):
        fail(pool.upstreams[0], 2)
        answer(pool.upstreams[0])
        clock.now += 9
    assert states(pool)[0] == "ready"


def test_a_refused_key_rests_at_once_and_for_a_minute():
    clock = Clock()
    pool = pool_of(clock, {}, {})
    fail(pool.upstreams[0], cause="401", code="upstream_credentials")
    assert states(pool) == ["open", "ready"]
    assert 45 <= pool.upstreams[0].view().rest_s <= 75


def test_a_name_that_clients_choose_puts_no_upstream_to_rest():
    pool = pool_of(Clock(), {}, {})
    for _ in range(20):
        pool.upstreams[0].begin(is_affine=False)
        pool.upstreams[0].record_failure(failed(cause="404", status=404, code="model_not_found"), is_fixed_model=False)
        pool.upstreams[0].end()
    assert states(pool) == ["ready", "ready"]


def test_a_429_rests_as_it_says_and_opens_nothing():
    clock = Clock()
    pool = pool_of(clock, {}, {})
    fail(pool.upstreams[0], 9, cause="429", status=429, code="rate_limit_exceeded", retry_after_s=7)
    assert states(pool) == ["resting", "ready"]
    assert pool.upstreams[0].view().rest_s == 7
    clock.now += 7
    assert states(pool) == ["ready", "ready"]


@pytest.fixture
def rests():
    """What the log says of upstreams that rest: why, and for how long."""
    configuration = structlog.get_config()
    structlog.reset_defaults()  # servers of other tests in this process may have left a higher level
    with capture_logs() as lines:
        yield lambda: [(line["reason"], line["seconds"]) for line in lines if line["event"] == "upstream_rests"]
    structlog.configure(**configuration)


LIMITED = {"cause": "429", "status": 429, "code": "rate_limit_exceeded", "retry_after_s": 7}


def test_a_429_is_logged_once_for_as_long_as_its_upstream_rests(rests):
    clock = Clock()
    upstream = pool_of(clock, {}, {}).upstreams[0]
    fail(upstream, 9, **LIMITED)
    assert rests() == [("429", 7.0)]
    clock.now += 7
    fail(upstream, **LIMITED)
    assert rests() == [("429", 7.0)] * 2


def test_a_429_to_a_trial_is_logged_with_the_rest_that_it_asks_for(rests):
    clock = Clock()
    upstream = pool_of(clock, {}, {}).upstreams[0]
    fail(upstream, 5)
    clock.now += upstream.view().rest_s
    fail(upstream, **LIMITED)
    assert [reason for reason, _ in rests()] == ["500", "429"]
    assert rests()[1][1] == upstream.view().rest_s == 7.0


def test_a_503_that_says_when_to_come_back_is_logged(rests):
    upstream = pool_of(Clock(), {}, {}).upstreams[0]
    fail(upstream, 2, cause="503", status=503, retry_after_s=20)
    assert rests() == [("503", 20.0)]


def test_requests_that_fail_while_their_upstream_rests_are_no_new_rests(rests):
    upstream = pool_of(Clock(), {}, {}).upstreams[0]
    fail(upstream, 9)
    assert [reason for reason, _ in rests()] == ["500"]


def test_a_trial_that_its_client_cancels_is_no_new_rest(rests):
    clock = Clock()
    upstream = pool_of(clock, {}, {}).upstreams[0]
    fail(upstream, 5)
    clock.now += upstream.view().rest_s
    upstream.begin(is_affine=False)
    upstream.record_abandonment()
    assert [reason for reason, _ in rests()] == ["500"]


def test_where_most_are_out_those_that_merely_fail_are_asked_all_the_same():
    pool = pool_of(Clock(), {}, {}, {})
    fail(pool.upstreams[0], 5, cause="500")
    assert not pool.has_room({"u2", "u3"})
    fail(pool.upstreams[1], 5, cause="timeout")
    assert pool.has_room({"u2", "u3"})
    assert pool.has_room({"u1", "u3"})


def test_one_that_can_t_be_reached_is_not_asked_even_then():
    pool = pool_of(Clock(), {}, {})
    for upstream in pool.upstreams:
        fail(upstream, 5, cause="unreachable")
    assert not pool.has_room(())
    with pytest.raises(NoUpstream) as error:
        asyncio.run(pool.acquire("key"))
    assert error.value.retry_after_s == min(view.rest_s for view in pool.views())


def test_nobody_gets_more_requests_than_it_may_have_at_once():
    async def scenario():
        clock = Clock()
        pool = pool_of(clock, {"concurrency": 2, "affinity_floor": 2}, {"concurrency": 1, "affinity_floor": 1}, max_waiting=1)
        taken = [await pool.acquire("key") for _ in range(3)]
        assert [upstream.outstanding for upstream in pool.upstreams] == [2, 1]
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(pool.acquire("key"))
            await settle()
            assert pool.waiting_count == 1
            with pytest.raises(NoUpstream, match="queue_full"):
                await pool.acquire("key")
            pool.release(taken[0])
        assert waiting.result() is taken[0]
        assert pool.waiting_count == 0

    asyncio.run(scenario())


def test_who_waits_first_is_served_first_by_whoever_is_free_first():
    async def scenario():
        pool = pool_of(Clock(), {"concurrency": 1}, {"concurrency": 1})
        first, second = await pool.acquire("key"), await pool.acquire("key")
        served = []

        async def ask(name):
            served.append((name, await pool.acquire("key")))

        async with asyncio.TaskGroup() as tasks:
            for name in ("a", "b"):
                tasks.create_task(ask(name))
            await settle()
            pool.release(second)
            await settle()
            pool.release(first)
        assert served == [("a", second), ("b", first)]

    asyncio.run(scenario())


def test_a_request_that_leaves_as_it_gets_its_turn_gives_it_back():
    async def scenario():
        pool = pool_of(Clock(), {"concurrency": 1})
        upstream = await pool.acquire("key")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(pool.acquire("key"))
            await settle()
            pool.release(upstream)  # its turn
            waiting.cancel()
        assert upstream.outstanding == 0
        assert (await pool.acquire("key")) is upstream

    asyncio.run(scenario())


def test_rates_are_kept_to_and_over_after_a_minute():
    clock = Clock()
    pool = pool_of(clock, {"requests_per_minute": 3}, {"tokens_per_minute": 100})
    first, second = pool.upstreams
    for _ in range(3):
        answer(first)
    answer(second)
    second.count_tokens(100)
    assert states(pool) == ["full", "full"]
    assert not pool.has_room(())
    clock.now += 62
    assert states(pool) == ["ready", "ready"]


def test_who_may_not_even_wait_is_told_when_the_first_upstream_has_room():
    async def scenario():
        clock = Clock()
        pool = pool_of(clock, {"requests_per_minute": 1}, {"requests_per_minute": 1}, max_waiting=0, timeout_s=60)
        for _ in range(2):
            answer(await pool.acquire("key"))
            clock.now += 10
        with pytest.raises(NoUpstream, match="queue_full") as none:
            await pool.acquire("key")
        assert 30 < none.value.retry_after_s <= 60 - 10

    asyncio.run(scenario())


def test_a_conversation_finds_its_upstream_again_and_it_is_counted():
    async def scenario():
        observer = Observer()
        pool = pool_of(Clock(), {}, {}, {}, observer=observer)
        homes = {}
        for _ in range(5):
            for key in map(str, range(20)):
                upstream = await pool.acquire(key)
                assert homes.setdefault(key, upstream) is upstream
                pool.release(upstream)
        assert {kind for _, kind in observer.choices} == {"affinity"}
        assert sum(view.affine for view in pool.views()) == 100
        home = homes["7"]
        fail(home, 5, cause="unreachable")
        other = await pool.acquire("7")
        assert other is not home
        assert observer.choices[-1] == (f"m/{other.name}", "load")

    asyncio.run(scenario())


class CountingClock(Clock):
    """A clock that counts how often it is read."""

    reads = 0

    def __call__(self):
        self.reads += 1
        return self.now


def test_where_nothing_is_free_a_long_line_is_not_looked_through():
    async def reads_for(waiting):
        clock = CountingClock()
        pool = pool_of(clock, {"concurrency": 1}, {"concurrency": 1}, max_waiting=waiting)
        busy, failing = [await pool.acquire(None) for _ in range(2)]
        async with asyncio.TaskGroup() as tasks:
            waiters = [tasks.create_task(pool.acquire(None, (failing.name,))) for _ in range(waiting)]
            await settle()
            fail(failing, cause="429", status=429, code="rate_limit_exceeded", retry_after_s=5)
            clock.reads = 0
            pool.release(failing)
            reads = clock.reads
            for waiter in waiters:
                waiter.cancel()
        pool.release(busy)
        pool.close()
        return reads

    assert asyncio.run(reads_for(2)) == asyncio.run(reads_for(20))


class RunningClock(Clock):
    """A clock that advances with every read."""

    def __call__(self):
        self.now += 0.001
        return self.now


def test_a_rest_that_ends_while_somebody_looks_for_an_upstream_is_not_missed():
    async def scenario():
        for rest_ms in range(1, 40):
            pool = pool_of(RunningClock(), {})
            fail(pool.upstreams[0], cause="429", status=429, code="rate_limit_exceeded", retry_after_s=rest_ms / 1000)
            pool.release(await pool.acquire(None))
            pool.close()

    asyncio.run(scenario())
