"""Queue and workers over HTTP: who may see them, what operators can do, and three clients for one slot."""

import asyncio
import contextlib
import json

import aiohttp
import pytest

from antiphon.errors import ServerError
from antiphon.runtime.access.keys import make_key
from antiphon.server.processes.run import background_server
from antiphon.server.processes.supervisor import serve
from antiphon.stores.sql.store import SqlStore
from support.server.key_server import counted, numbers
from support.server.scripted_server import configured

pytestmark = pytest.mark.anyio

MODELS = {"m": {"engine": "scripted", "sessions": 1, "answers": [{"say": "You said: {input}"}]}}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@contextlib.contextmanager
def served(tmp_path, models=MODELS, **settings):
    config = configured(tmp_path, models, **{"logging.level": "error", **settings})
    with background_server(config, is_persistent=True) as base_url:
        yield base_url, str(config.database_url)


@pytest.fixture
def server(tmp_path):
    with served(tmp_path) as (base_url, _):
        yield base_url


@contextlib.asynccontextmanager
async def asking(base_url, key=None):
    async with aiohttp.ClientSession(base_url, headers={"authorization": f"Bearer {key}"} if key else {}) as session:
        yield session


async def told(session, method, path):
    async with session.request(method, path) as reply:
        return reply.status, await reply.json()


async def until(socket, type):
    """The next event of that type."""
    async with asyncio.timeout(10):
        while (event := json.loads(await socket.receive_str()))["type"] != type:
            pass
    return event


@contextlib.asynccontextmanager
async def session_of(http):
    async with http.ws_connect("/v1/realtime?mode=chat") as socket:
        yield socket


async def test_three_who_want_one_place_have_it_one_after_another(server):
    async with asking(server) as http, contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(session_of(http))
        await until(first, "session.queue_done")
        second = await stack.enter_async_context(session_of(http))
        assert (await until(second, "session.queued"))["position"] == 1
        third = await stack.enter_async_context(session_of(http))
        queued = await until(third, "session.queued")
        assert (queued["position"], queued["queue_length"]) == (2, 2)
        status, queue = await told(http, "GET", "/api/queue")
        assert (status, queue["queue_length"], [item["position"] for item in queue["items"]]) == (200, 2, [1, 2])
        assert [task["worker_id"] for task in queue["running_tasks"]] == ["m-1"]
        assert queue["items"][1]["ticket_id"] == queued["ticket_id"]
        await first.close()
        await until(second, "session.queue_done")
        assert (await until(third, "session.queue_update"))["position"] == 1
        await second.close()
        await until(third, "session.queue_done")


@pytest.mark.parametrize("mode", ["chat", "audio", "video"])
async def test_who_waits_is_given_an_estimate_before_any_session_has_ended(tmp_path, mode):
    settings = {"minicpmo.chat_s": 40, "minicpmo.audio_s": 40, "minicpmo.video_s": 40, "queue.update_s": 0.01}
    with served(tmp_path, **settings) as (base_url, _):
        async with asking(base_url) as http, http.ws_connect(f"/v1/realtime?mode={mode}") as first:
            await until(first, "session.queue_done")
            async with http.ws_connect(f"/v1/realtime?mode={mode}") as second, http.ws_connect(f"/v1/realtime?mode={mode}") as third:
                for socket, limit_s in ((second, 40), (third, 80)):
                    for type in ("session.queued", "session.queue_update"):
                        assert limit_s - 30 < (await until(socket, type))["estimated_wait_s"] <= limit_s


async def test_a_ticket_that_is_cancelled_is_told_and_one_that_is_served_is_not(server):
    async with asking(server) as http, session_of(http) as first, contextlib.AsyncExitStack() as stack:
        await until(first, "session.queue_done")
        second = await stack.enter_async_context(session_of(http))
        ticket = (await until(second, "session.queued"))["ticket_id"]
        assert (await told(http, "GET", f"/api/queue/{ticket}"))[1]["status"] == "queued"
        assert await told(http, "DELETE", f"/api/queue/{ticket}") == (200, {"ticket_id": ticket, "cancelled": True})
        assert (await until(second, "error"))["error"]["code"] == "worker_busy"
        assert (await second.receive()).type is aiohttp.WSMsgType.CLOSE
        assert numbers(server)["antiphon_queue_tickets_total", "m", "chat", "cancelled"] == 1
        counted(server, ("antiphon_minicpmo_sessions_ended_total", "m", "chat", "no_worker"), 1)
        (serving,) = (await told(http, "GET", "/queue"))[1]["running_tasks"]
        status, body = await told(http, "DELETE", f"/api/queue/{serving['ticket_id']}")
        assert (status, body["error"]["code"]) == (409, "ticket_served")


async def test_workers_are_seen_drained_resumed_and_removed(server):
    async with asking(server) as http:
        (worker,) = (await told(http, "GET", "/workers"))[1]["workers"]
        assert (worker["worker_id"], worker["status"], worker["slots"], worker["kinds"]) == ("m-1", "idle", 1, ["chat", "audio", "video"])
        assert (await told(http, "POST", "/workers/m-1/drain"))[1]["status"] == "draining"
        status = (await told(http, "GET", "/status"))[1]
        assert (status["total_workers"], status["draining_workers"], status["idle_workers"]) == (1, 1, 0)
        async with session_of(http) as socket:
            assert (await until(socket, "error"))["error"]["code"] == "worker_busy"
        for _ in range(2):
            assert (await told(http, "POST", "/workers/m-1/resume"))[1]["status"] == "idle"
        async with session_of(http) as socket:
            await until(socket, "session.queue_done")
        assert await told(http, "DELETE", "/workers/m-1") == (200, {"worker_id": "m-1", "removed": True})
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/drain"), ("POST", "/resume")):
            assert (await told(http, method, f"/workers/m-1{path}"))[0] == 404


async def test_the_averages_that_estimates_are_made_from_can_be_read(server):
    async with asking(server) as http:
        assert await told(http, "GET", "/api/config/eta") == (200, {"ema_alpha": 0.2, "means": []})


async def made_keys(store_url, **scopes):
    """Keys by their tenant, each with one scope."""
    keys = {}
    store = SqlStore(store_url)
    await store.open()
    for tenant, scope in scopes.items():
        record, keys[tenant] = make_key(tenant, now=0, tenant=tenant, scopes=[scope])
        await store.keys.add(record)
    await store.close()
    return keys


@pytest.mark.parametrize("who", ["ada", "op"])
async def test_who_waits_is_told_that_the_ticket_was_cancelled_whoever_did_it(tmp_path, who):
    with served(tmp_path) as (base_url, url):
        keys = await made_keys(url, ada="realtime", op="admin")
        async with asking(base_url, keys["ada"]) as ada, asking(base_url, keys[who]) as canceller, session_of(ada) as first:
            await until(first, "session.queue_done")
            async with session_of(ada) as second:
                ticket = (await until(second, "session.queued"))["ticket_id"]
                assert (await told(canceller, "DELETE", f"/api/queue/{ticket}"))[0] == 200
                assert (await until(second, "error"))["error"]["message"] == "The ticket was cancelled."


async def test_anothers_ticket_is_not_there_and_the_lists_are_the_operators(tmp_path):
    with served(tmp_path) as (base_url, url):
        keys = await made_keys(url, ada="realtime", bob="realtime", op="admin")
        async with asking(base_url, keys["ada"]) as ada, asking(base_url, keys["bob"]) as bob, asking(base_url, keys["op"]) as op:
            async with session_of(ada) as socket:
                await until(socket, "session.queue_done")
                (serving,) = (await told(op, "GET", "/queue"))[1]["running_tasks"]
                assert (serving["tenant"], serving["key_id"] is not None) == ("ada", True)
                path = f"/api/queue/{serving['ticket_id']}"
                assert [(await told(who, "GET", path))[0] for who in (ada, bob, op)] == [200, 404, 200]
                assert (await told(bob, "DELETE", path))[0] == 404
                assert [(await told(ada, "GET", path))[0] for path in ("/queue", "/workers", "/status", "/api/queue")] == [403] * 4
                assert (await told(ada, "POST", "/workers/m-1/drain"))[0] == 403


async def test_the_numbers_of_the_queue_are_among_the_metrics(server):
    async with asking(server) as http, session_of(http) as first, contextlib.AsyncExitStack() as stack:
        await until(first, "session.queue_done")
        second = await stack.enter_async_context(session_of(http))
        await until(second, "session.queued")
        async with http.get("/metrics") as reply:
            text = await reply.text()
        for line in (
            'antiphon_queue_waiting{gen_ai_request_model="m"} 1.0',
            'antiphon_queue_serving{gen_ai_request_model="m"} 1.0',
            'antiphon_workers{gen_ai_request_model="m",state="busy"} 1.0',
            'antiphon_queue_wait_seconds_count{gen_ai_request_model="m"} 1.0',
        ):
            assert line in text


def test_several_processes_refuse_workers_that_they_could_not_share(tmp_path):
    config = configured(tmp_path, {"m": {"engine": "worker"}}, **{"server.processes": 2})
    with pytest.raises(ServerError, match="2 processes can't share the workers of 'm'"):
        serve(config, on_ready=lambda _url, _is_open: None)
