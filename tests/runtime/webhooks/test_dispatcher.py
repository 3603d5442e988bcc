"""What reaches a webhook endpoint, and what happens when it fails."""

import asyncio
import contextlib
import json

import openai
import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.config.webhooks import WebhookEntry
from antiphon.records import BackgroundRecord
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.webhooks.dispatcher import MAX_ATTEMPTS_AT_ONCE, WebhookDispatcher
from antiphon.runtime.webhooks.endpoint import build_endpoints
from antiphon.runtime.webhooks.signing import new_secret
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sql.store import SqlStore
from support.runtime.webhook_receiver import PATIENCE_S, receiving
from support.stores.responses import response

pytestmark = pytest.mark.anyio

SECRET = new_secret()
HERE = ("127.0.0.0/8",)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def receiver():
    with receiving() as made:
        yield made


@pytest.fixture
async def store():
    made = MemoryStore()
    await made.open()
    return made


@contextlib.contextmanager
def captured_logs():
    """All that is logged, whatever level a server in this process has set before."""
    config = structlog.get_config()
    structlog.reset_defaults()
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        structlog.configure(**config)


def entry(receiver, name="hook", **fields):
    return WebhookEntry(**{"name": name, "url": receiver.url, "secret": SECRET, "networks": HERE} | fields)


@contextlib.asynccontextmanager
async def dispatching(store, *entries, delays_s=(0.01,)):
    """A dispatcher's metrics, while it runs."""
    metrics = Metrics()
    dispatcher = WebhookDispatcher(build_endpoints(entries, {}), store, metrics, delays_s=delays_s, poll_s=0.02)
    await dispatcher.start()
    try:
        yield metrics
    finally:
        await dispatcher.close()


async def end(store, id="resp_1", status="completed", tenant="", key_id=None):
    record = replace(response(id, status="queued"), tenant=tenant)
    await store.background.add(record, BackgroundRecord(key_id=key_id, request=b"{}", is_streamed=False), None)
    assert await store.background.finish(replace(record, status=status), None)


async def settled(store, count=1):
    """The deliveries, once so many have ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            ended = [each for each in await store.webhooks.latest(None, None, 1000) if each.status != "pending"]
            if len(ended) >= count:
                return ended
            await asyncio.sleep(0.01)


async def test_the_official_client_accepts_what_is_sent(store, receiver):
    async with dispatching(store, entry(receiver)) as metrics:
        await end(store)
        [delivery] = await settled(store)
    [request] = receiver.requests
    event = openai.OpenAI(api_key="none").webhooks.unwrap(request.body, request.headers, secret=SECRET)
    assert (event.type, event.object, event.data.id) == ("response.completed", "event", "resp_1")
    assert event.id.startswith("evt_") and request.headers["webhook-id"] == delivery.id and delivery.id.startswith("wh_")
    assert json.loads(request.body).keys() == {"id", "object", "created_at", "type", "data"}
    assert request.headers["content-type"] == "application/json"
    assert (request.path, delivery.status, delivery.attempts) == ("/webhooks", "delivered", 1)
    assert metrics.webhook_attempts == {("hook", "delivered"): 1}


async def test_a_failing_endpoint_is_tried_again_with_the_same_id(store, receiver):
    receiver.answers += [500, "close", (302, {"location": "/elsewhere"}), 404, 429]
    with captured_logs() as logs:
        async with dispatching(store, entry(receiver)) as metrics:
            await end(store)
            [delivery] = await settled(store)
    assert (delivery.status, delivery.attempts, delivery.error) == ("delivered", 6, None)
    assert {request.headers["webhook-id"] for request in receiver.requests} == {delivery.id}
    assert {request.path for request in receiver.requests} == {"/webhooks"}
    assert len({request.body for request in receiver.requests}) == 1
    assert metrics.webhook_attempts == {("hook", "retried"): 5, ("hook", "delivered"): 1}
    failures = [log for log in logs if log["event"] == "webhook_failed"]
    assert [log["attempts"] for log in failures] == [1, 2, 3, 4, 5]
    assert failures[2]["error"] == "it answered with status 302"
    assert {log["endpoint"] for log in failures} == {"hook"}
    assert SECRET not in str(logs) and SECRET.removeprefix("whsec_") not in str(logs)


async def test_one_that_expires_fails_for_good(store, receiver):
    receiver.answers += [503]
    with captured_logs() as logs:
        async with dispatching(store, entry(receiver, hours=0)) as metrics:
            await end(store)
            [delivery] = await settled(store)
    assert (delivery.status, delivery.attempts, delivery.error) == ("failed", 1, "it answered with status 503")
    assert metrics.webhook_attempts == {("hook", "failed"): 1}
    assert [log["event"] for log in logs] == ["webhook_given_up"]


async def test_an_endpoint_that_hangs_holds_up_only_itself(store, receiver):
    with receiving() as slow:
        slow.answers += ["hang"] * 100
        async with dispatching(store, entry(slow, "slow"), entry(receiver, "quick")):
            for number in range(2 * MAX_ATTEMPTS_AT_ONCE):
                await end(store, f"resp_{number}")
            assert {each.endpoint for each in await settled(store, 2 * MAX_ATTEMPTS_AT_ONCE)} == {"quick"}
            await asyncio.to_thread(slow.wait_for, MAX_ATTEMPTS_AT_ONCE)
            assert len(slow.requests) == MAX_ATTEMPTS_AT_ONCE
            slow.release.set()


async def test_an_endpoint_that_does_not_answer_in_time_has_failed(store, receiver):
    receiver.answers += ["hang"]
    async with dispatching(store, entry(receiver, timeout_s=0.05, hours=0)):
        await end(store)
        [delivery] = await settled(store)
    assert delivery.error == "no answer came within 0.05 seconds"


async def test_the_body_of_an_answer_is_not_read(store, receiver):
    receiver.answers += ["flood"]
    async with dispatching(store, entry(receiver)):
        await end(store)
        [delivery] = await settled(store)
    assert delivery.status == "delivered"


async def test_an_endpoint_that_is_gone_gets_no_more_events(store, receiver):
    receiver.answers += [410]
    with captured_logs() as logs:
        async with dispatching(store, entry(receiver)):
            await end(store)
            [delivery] = await settled(store)
            await end(store, "resp_2")
        async with dispatching(store, entry(receiver)):  # after a restart
            await end(store, "resp_3")
    assert (delivery.status, delivery.error) == ("failed", "it answered with status 410")
    assert len(receiver.requests) == 1 and len(await store.webhooks.latest(None, None, 10)) == 1
    assert "webhook_disabled" in {log["event"] for log in logs}
    async with dispatching(store, entry(receiver, url=f"{receiver.url}/new")):
        await end(store, "resp_4")
        await settled(store, 2)
    assert receiver.requests[-1].path == "/webhooks/new"


async def test_a_private_address_is_not_called_unless_it_is_allowed(store, receiver):
    async with dispatching(store, entry(receiver, networks=("10.0.0.0/8",), hours=0)):
        await end(store)
        [delivery] = await settled(store)
    assert delivery.error == "its address is not public" and receiver.requests == []


async def test_an_endpoint_hears_what_it_asked_for(store, receiver):
    entries = [
        entry(receiver, "failures", events=["response.failed", "response.incomplete"]),
        entry(receiver, "ada", tenant="ada"),
        entry(receiver, "key", key="key_1"),
        entry(receiver, "all"),
    ]
    async with dispatching(store, *entries):
        await end(store, "resp_1", "completed", "ada", "key_2")
        await end(store, "resp_2", "failed", "eve", "key_1")
        await end(store, "resp_3", "incomplete")
        await end(store, "resp_4", "cancelled")
        deliveries = await settled(store, 8)
    heard = {name: sorted(each.response_id for each in deliveries if each.endpoint == name) for name in ("failures", "ada", "key", "all")}
    everything = ["resp_1", "resp_2", "resp_3", "resp_4"]
    assert heard == {"failures": ["resp_2", "resp_3"], "ada": ["resp_1"], "key": ["resp_2"], "all": everything}
    events = {(json.loads(each.body)["id"], each.response_id) for each in deliveries}
    assert len(events) == 4  # an event has one id, wherever it is sent


async def test_beyond_the_limit_an_event_is_dropped_and_the_log_names_the_limit(store, receiver):
    receiver.answers += ["hang"] * 2
    with captured_logs() as logs:
        async with dispatching(store, entry(receiver, pending=2)) as metrics:
            for number in range(3):
                await end(store, f"resp_{number}")
            receiver.release.set()
            await settled(store, 2)
    [log] = [log for log in logs if log["event"] == "webhook_dropped"]
    assert "`webhooks.pending` of 2" in log["message"] and log["response_id"] == "resp_2"
    assert metrics.webhook_attempts["hook", "dropped"] == 1


async def test_what_was_not_sent_before_a_stop_is_sent_after_it(tmp_path, receiver):
    url = f"sqlite:///{tmp_path}/store.sqlite3"
    first = SqlStore(url)
    await first.open()
    receiver.answers += [500]
    async with dispatching(first, entry(receiver), delays_s=(0.5,)):
        await end(first)
        await asyncio.to_thread(receiver.wait_for, 1)
    await first.close()
    second = SqlStore(url)
    await second.open()
    async with dispatching(second, entry(receiver)):
        [delivery] = await settled(second)
    await second.close()
    assert delivery.attempts == 2
    assert [request.headers["webhook-id"] for request in receiver.requests] == [delivery.id] * 2


async def test_several_processes_send_each_delivery_once(tmp_path, receiver):
    url, count = f"sqlite:///{tmp_path}/store.sqlite3", 60
    stores = [SqlStore(url, (1, 2)), SqlStore(url, (2, 1))]
    async with contextlib.AsyncExitStack() as stack:
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        for store in stores:
            await stack.enter_async_context(dispatching(store, entry(receiver)))
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(end(stores[number % 2], f"resp_{number}"))
        await settled(stores[0], count)
    ids = [json.loads(request.body)["data"]["id"] for request in receiver.requests]
    assert sorted(ids) == sorted(f"resp_{number}" for number in range(count))
