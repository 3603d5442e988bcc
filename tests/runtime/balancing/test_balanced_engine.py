"""Requests to several upstreams that die, stall, refuse and break, over real sockets."""

import asyncio
import json

import pytest
import uvloop

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import ConversationSettings
from antiphon.runtime.balancing.affinity import affinity_key
from antiphon.runtime.balancing.limits import FREE_RETRIES, RetryBudget
from support.contracts.engines import Listener
from support.engines.upstreams import CUT, DONE, HALF, STREAM_HEAD, Server, ask, chunk, closing, event, streamed, whole
from support.runtime.upstream_pools import Observer, answer_to, before_all

HELLO = streamed("hello")
ERROR_FIRST = STREAM_HEAD + chunk(b'data: {"error": {"message": "Oh.", "code": 503}}\n\n') + b"0\r\n\r\n"
NO_WORD = STREAM_HEAD + b"0\r\n\r\n"
ROLE_ONLY = STREAM_HEAD + chunk(b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n') + b"0\r\n\r\n"


def refusing(status, **error):
    return whole(f"{status} No", {"error": {"message": "Oh.", **error}})


async def silent(writer):
    await asyncio.Event().wait()


async def silent_after_head(writer):
    writer.write(STREAM_HEAD)
    await asyncio.Event().wait()


def run(scenario):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario())


def text_of(words):
    return "".join(word.text for word in words if isinstance(word, events.TextDelta))


def outcomes(words):
    (report,) = (word for word in words if isinstance(word, events.AttemptsReported))
    return [(attempt.upstream, attempt.outcome) for attempt in report.attempts]


async def ask_first(engine, first, request=None, **settings):
    """What is heard of a request whose conversation belongs to the upstream of that name."""
    for number in range(500):
        key = f"conversation {number}"
        upstream = await engine.pool.acquire(_hash(key), ())
        name = upstream.name
        upstream.record_abandonment()
        engine.pool.release(upstream)
        if name == first:
            return await answer_to(engine, request or ask(), cache_key=key, **settings)
    raise AssertionError


def _hash(key):
    return affinity_key(ConversationSettings(model="m", cache_key=key), ask())


@pytest.mark.parametrize(
    ("play", "reason"),
    [
        (CUT, "broke_off"),
        (closing(b""), "broke_off"),
        (refusing(500), "500"),
        (refusing(502), "502"),
        (refusing(503), "503"),
        (refusing(429), "429"),
        (refusing(401), "401"),
        (refusing(404, code="model_not_found"), "404"),
        (refusing(400, code="unsupported_parameter"), "400"),
        (ERROR_FIRST, "garbled"),
        (NO_WORD, "broke_off"),
        (ROLE_ONLY, "broke_off"),
        (STREAM_HEAD + chunk(b"data: {]\n\n"), "garbled"),
        (whole("200 OK", b"<html>", content_type="text/html"), "malformed"),
        (silent, "stalled"),
        (silent_after_head, "stalled"),
    ],
)
def test_whatever_one_does_before_its_first_word_the_next_answers(play, reason):
    async def scenario():
        bad, good = Server(play), Server(HELLO)
        async with before_all(bad, good, failover_after_s=0.1 if reason == "stalled" else 60) as engine:
            words = await ask_first(engine, "upstream-1")
        assert text_of(words) == "hello"
        assert words[-1] == events.ResponseEnded("resp_1")
        assert outcomes(words) == [("upstream-1", reason), ("upstream-2", "ok")]
        assert any(isinstance(word, events.RetryScheduled) for word in words)
        assert (len(bad.asked), len(good.asked)) == (1, 1)

    run(scenario)


def test_an_upstream_that_is_gone_is_not_missed():
    async def scenario():
        gone, good = Server(CUT), Server(HELLO)
        async with before_all(gone, good) as engine:
            gone.plays = (CUT,)
            for number in range(20):
                assert text_of(await answer_to(engine, ask(text=f"Hi {number}"))) == "hello"
            assert next(engine.pool.views()).state == "open"
            assert len(gone.asked) == 5

    run(scenario)


def test_after_the_first_word_nobody_else_is_asked():
    async def scenario():
        bad, good = Server(closing(HALF)), Server(HELLO)
        async with before_all(bad, good) as engine:
            words = await ask_first(engine, "upstream-1")
        assert text_of(words) == "half"
        assert isinstance(words[-1], events.ResponseFailed)
        assert words[-1].code == "upstream_broke_off"
        assert not good.asked

    run(scenario)


def test_a_client_that_wants_the_whole_response_gets_one_though_a_stream_broke():
    async def scenario():
        bad, good = Server(closing(HALF)), Server(HELLO)
        async with before_all(bad, good) as engine:
            words = await ask_first(engine, "upstream-1", ask(whole=True))
        assert text_of(words) == "hello"
        assert outcomes(words) == [("upstream-1", "broke_off"), ("upstream-2", "ok")]

    run(scenario)


@pytest.mark.parametrize("play", [refusing(400, code="invalid_value"), refusing(422), refusing(400, code="content_policy_violation")])
def test_a_mistake_of_the_client_is_told_at_once(play):
    async def scenario():
        bad, good = Server(play), Server(HELLO)
        async with before_all(bad, good) as engine:
            words = await ask_first(engine, "upstream-1")
            assert [view.state for view in engine.pool.views()] == ["ready", "ready"]
        assert isinstance(words[-1], events.ResponseFailed)
        assert words[-1].status == 400
        assert not good.asked

    run(scenario)


def test_too_long_an_input_goes_only_to_a_larger_window():
    async def scenario():
        too_long = refusing(400, message="This model's maximum context length is 4096 tokens.")
        small, same, large = Server(too_long), Server(HELLO), Server(streamed("large"))
        windows = [{"abilities": {"context_window": size}} for size in (4096, 4096, 65536)]
        async with before_all(small, same, large, tables=windows) as engine:
            assert engine.capabilities.context_window == 4096
            assert text_of(await ask_first(engine, "upstream-1")) == "large"
        small, same = Server(too_long), Server(HELLO)
        async with before_all(small, same) as engine:
            words = await ask_first(engine, "upstream-1")
        assert words[-1].code == "context_length_exceeded"
        assert not same.asked

    run(scenario)


def test_when_all_fail_the_client_is_told_nothing_of_keys():
    async def scenario():
        async with before_all(Server(refusing(401)), Server(refusing(403))) as engine:
            words = await answer_to(engine, ask())
            failure = words[-1]
            assert (failure.status, failure.code) == (502, "server_error")
            assert "credential" not in failure.message
            assert len(outcomes(words)) == 2
            failure = (await answer_to(engine, ask()))[-1]
            assert (failure.status, failure.code) == (503, "server_is_overloaded")
            assert 45 <= failure.retry_after_s <= 90

    run(scenario)


def test_when_all_are_rate_limited_the_client_hears_of_the_first_to_come_back():
    async def scenario():
        limited = [whole("429 No", {"error": {"message": "org-123 is out"}}, retry_after=seconds) for seconds in (700, 300)]
        async with before_all(*map(Server, limited)) as engine:
            failure = (await answer_to(engine, ask()))[-1]
            again = (await answer_to(engine, ask()))[-1]
        for one in (failure, again):
            assert (one.status, one.code) == (429, "rate_limit_exceeded")
            assert "org-123" not in one.message
            assert 299 <= one.retry_after_s <= 361

    run(scenario)


def test_a_request_waits_for_an_upstream_that_said_when_to_come_again():
    async def scenario():
        one = Server(whole("429 No", {"error": {"message": "Oh."}}, retry_after_ms=50), HELLO)
        async with before_all(one) as engine:
            assert (await answer_to(engine, ask()))[-1].status == 429
            assert text_of(await answer_to(engine, ask())) == "hello"

    run(scenario)


def test_where_nobody_else_is_there_the_same_one_is_asked_again():
    async def scenario():
        one = Server(refusing(503), HELLO)
        async with before_all(one) as engine:
            words = await answer_to(engine, ask())
        assert text_of(words) == "hello"
        assert outcomes(words) == [("upstream-1", "503"), ("upstream-1", "ok")]

    run(scenario)


def test_at_most_four_are_asked():
    async def scenario():
        servers = [Server(refusing(500)) for _ in range(6)]
        async with before_all(*servers) as engine:
            words = await answer_to(engine, ask())
        assert len(outcomes(words)) == 4
        assert sum(len(server.asked) for server in servers) == 4

    run(scenario)


def test_an_outage_does_not_multiply_the_load():
    async def scenario():
        servers = [Server(refusing(500)) for _ in range(3)]
        async with before_all(*servers, failures=1000) as engine:
            for upstream in engine.pool.upstreams:
                upstream._breaker._counts_rate = False
            for number in range(100):
                await answer_to(engine, ask(text=f"Hi {number}"))
        assert sum(len(server.asked) for server in servers) <= 100 + 20 + 3

    run(scenario)


def test_who_can_t_afford_another_try_stays_with_a_slow_upstream():
    async def scenario():
        async def late(writer):
            await asyncio.sleep(0.4)
            writer.write(HELLO)

        slow, other = Server(late), Server(HELLO)
        async with before_all(slow, other, failover_after_s=0.05, retry_budget=0) as engine:
            while engine.pool.budget.take():
                pass
            words = await ask_first(engine, "upstream-1")
        assert outcomes(words) == [("upstream-1", "ok")]
        assert not other.asked

    run(scenario)


def test_everybody_leaves_a_silent_upstream_that_is_known_to_be_out():
    async def scenario():
        hung, other = Server(silent), Server(HELLO)
        async with before_all(hung, other, failures=1, rest_s=30, failover_after_s=0.05, retry_budget=0) as engine:
            engine.pool.budget = budget = RetryBudget(0, lambda: 0.0)
            for _ in range(FREE_RETRIES - 1):  # one is left, and no more will be
                budget.take()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask_first(engine, "upstream-1")) for _ in range(4)]
        answers = [task.result() for task in tasks]
        assert [text_of(words) for words in answers] == ["hello"] * 4
        assert all(outcomes(words) == [("upstream-1", "stalled"), ("upstream-2", "ok")] for words in answers)

    run(scenario)


def test_who_meets_an_upstream_that_is_known_to_be_out_is_answered_by_one_that_is_well():
    async def scenario():
        down = [Server(refusing(503)) for _ in range(2)]
        async with before_all(*down, Server(HELLO), failures=1, rest_s=30) as engine:
            engine.pool.budget = RetryBudget(0, lambda: 0.0)
            # Two of three are out, so that they get their part of the requests though they fail.
            answers = [await answer_to(engine, ask(text=f"Hi {number}")) for number in range(30)]
        assert [text_of(words) for words in answers] == ["hello"] * 30
        assert sum(len(server.asked) for server in down) > FREE_RETRIES

    run(scenario)


def test_a_client_that_leaves_counts_as_nothing_and_stops_the_upstream():
    async def scenario():
        slow, other = Server(silent), Server(silent)
        observer = Observer()
        async with before_all(slow, other, observer=observer) as engine:
            for number in range(12):
                listener = Listener()
                async with engine.open(ConversationSettings(model="m"), listener) as conversation:
                    conversation.send(ask(text=f"Hi {number}"))
                    await _requests(number + 1, slow, other)
                    if number % 2:
                        conversation.send(commands.Cancel("resp_1"))
                        await listener.end_of("resp_1")
                        assert listener.words[-1] == events.ResponseEnded("resp_1", "cancelled")
            assert {outcome for _, outcome in observer.attempts} == {"cancelled"}
            assert [view.state for view in engine.pool.views()] == ["ready", "ready"]
            assert [view.outstanding for view in engine.pool.views()] == [0, 0]

    run(scenario)


async def _requests(count, *servers):
    """Wait until the servers have got so many."""
    while sum(len(server.asked) for server in servers) < count:
        for server in servers:
            server.changed.clear()
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(server.changed.wait()) for server in servers]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


def test_a_cancel_in_the_middle_of_a_stream_ends_it_as_cancelled():
    async def scenario():
        async def endless(writer):
            writer.write(HALF)
            await asyncio.Event().wait()

        async with before_all(Server(endless), Server(endless)) as engine:
            listener = Listener()
            async with engine.open(ConversationSettings(model="m"), listener) as conversation:
                conversation.send(ask())
                await listener.until(lambda words: text_of(words) == "half")
                conversation.send(commands.Cancel("resp_1"))
                await listener.end_of("resp_1")
            assert listener.words[-1] == events.ResponseEnded("resp_1", "cancelled")

    run(scenario)


def test_a_conversation_stays_with_its_upstream():
    async def scenario():
        servers = [Server(HELLO) for _ in range(3)]
        async with before_all(*servers) as engine:
            for _ in range(4):
                for number in range(6):
                    await answer_to(engine, ask(text=f"This is conversation {number}."))
        for server in servers:
            first_messages = [body["messages"][0]["content"] for _, body in server.asked]
            assert all(first_messages.count(text) == 4 for text in first_messages)

    run(scenario)


def test_two_tenants_with_the_same_words_are_apart():
    async def scenario():
        servers = [Server(HELLO) for _ in range(3)]
        async with before_all(*servers) as engine:
            homes = set()
            for number in range(12):
                words = await answer_to(engine, ask(), tenant=f"tenant {number}")
                homes.add(outcomes(words)[0][0])
        assert len(homes) > 1

    run(scenario)


def test_an_upstream_s_own_keys_override_the_model_s():
    async def scenario():
        servers = [Server(HELLO) for _ in range(2)]
        tables = [{"model": "a", "headers": {"x-where": "here"}}, {"name": "gpu2"}]
        async with before_all(*servers, tables=tables, model="b", balance="least_outstanding") as engine:
            for number in range(2):
                upstream = engine.pool.upstreams[number]
                others = {each.name for each in engine.pool.upstreams} - {upstream.name}
                assert (await engine.pool.acquire(None, others)) is upstream
                engine.pool.release(upstream)
                words = await ask_first_of(engine, upstream.name)
                assert outcomes(words) == [(upstream.name, "ok")]
        assert [body["model"] for server in servers for _, body in server.asked] == ["a", "b"]
        assert "x-where: here" in servers[0].asked[0][0]

    run(scenario)


async def ask_first_of(engine, name):
    """An answer by the upstream of that name, while the others are busy."""
    busy = [upstream for upstream in engine.pool.upstreams if upstream.name != name]
    for upstream in busy:
        upstream.outstanding += 5
    try:
        return await answer_to(engine, ask())
    finally:
        for upstream in busy:
            upstream.outstanding -= 5


def test_a_paused_request_stays_paused_with_whoever_answers():
    async def scenario():
        async with before_all(Server(refusing(500)), Server(HELLO)) as engine:
            listener = Listener()
            async with engine.open(ConversationSettings(model="m"), listener) as conversation:
                conversation.pause()
                conversation.send(ask())
                await asyncio.sleep(0)
                conversation.resume()
                await listener.end_of("resp_1")
            assert text_of(listener.words) == "hello"

    run(scenario)


def test_tokens_are_counted_against_the_upstream_s_rate():
    async def scenario():
        used = STREAM_HEAD + chunk(event("hello", "stop", usage={"prompt_tokens": 90, "completion_tokens": 10}) + DONE) + b"0\r\n\r\n"
        one, two = Server(used), Server(HELLO)
        async with before_all(one, two, tables=[{"tokens_per_minute": 100}, {}]) as engine:
            await ask_first(engine, "upstream-1")
            assert [view.state for view in engine.pool.views()] == ["full", "ready"]

    run(scenario)


def test_models_are_those_of_all_upstreams():
    def listing(*names):
        return whole("200 OK", json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode())

    async def scenario():
        async with before_all(Server(listing("a", "b")), Server(listing("b", "c"))) as engine:
            assert list(await engine.list_models()) == ["a", "b", "c"]

    run(scenario)
