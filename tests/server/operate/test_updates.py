"""`GET /updates`: whole lists first, then what changes; nobody sees more than their key allows, and nobody holds others up."""

import asyncio
import contextlib
import json

import aiohttp
import pytest
import structlog
from hypothesis import given, settings, strategies as st

from antiphon.server.operate import hub as hubs
from antiphon.server.operate.facts import ProcessFacts
from antiphon.server.operate.hub import BUFFER_BYTES, MAX_LISTENERS_PER_HOLDER, RING_EVENTS, Listener, UpdateHub
from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.scripted_server import SCRIPT, configured

MODELS = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "m": {"engine": "scripted", "sessions": 1, "answers": [{"say": "You said: {input}"}]},
}
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("updates"), MODELS, **{"logging.level": "info"})) as base_url:
        yield base_url


class Stream:
    """The events of one stream."""

    def __init__(self, reply):
        self._reply = reply
        self.last_id = None

    async def next(self):
        fields = {}
        async with asyncio.timeout(20):
            while (line := (await self._reply.content.readline()).decode()) != "\n" or not fields:
                assert line, "the stream is over"
                if line[0] not in ":\n":
                    name, _, value = line.rstrip("\n").partition(": ")
                    fields[name] = value
        self.last_id = fields.get("id", self.last_id)
        return fields["event"], json.loads(fields["data"])

    async def until(self, event, wanted=lambda _row: True):
        while True:
            name, content = await self.next()
            if name == event and wanted(content):
                return content


@contextlib.asynccontextmanager
async def asking(url, key=None):
    async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"} if key else {}) as session:
        yield session


@contextlib.asynccontextmanager
async def listening(http, topics, last_id=None):
    headers = {"last-event-id": last_id} if last_id else {}
    async with http.get("/updates", params={"topics": topics}, headers=headers) as reply:
        assert (reply.status, reply.content_type) == (200, "text/event-stream"), await reply.text()
        yield Stream(reply)


async def test_each_topic_begins_with_its_whole_list(url):
    async with asking(url) as http, listening(http, "status,models,workers,queue,sessions,responses,log") as stream:
        first = dict([await stream.next() for _ in range(7)])
        assert first.keys() == {f"{topic}.all" for topic in ("status", "models", "workers", "queue", "sessions", "responses", "log")}
        (state,) = first["status.all"]["rows"]
        assert (state["id"], state["status"], state["processes"]) == ("server", "ready", 1)
        assert {model["id"]: model["state"] for model in first["models.all"]["rows"]} == {"parrot": "ready", "m": "ready"}
        assert first["queue.all"]["rows"] == [] and first["sessions.all"]["now"] > 1e9


async def test_an_answer_is_seen_as_it_begins_and_ends_and_in_the_health_of_its_model(url):
    async with asking(url) as http, listening(http, "responses,models,log") as stream:
        async with http.post("/v1/responses", json={"model": "parrot", "input": "hello", "stream": True}) as reply:
            await reply.read()
        row = await stream.until("responses.row", lambda row: row["status"] == "completed")
        assert row["model"] == "parrot" and row["ended_at"] >= row["created_at"] and row["output_tokens"] > 0 and row["first_token_s"] >= 0
        health = await stream.until("models.row", lambda row: row["id"] == "parrot")
        assert health["answers"] >= 1 and health["first_token_p50_s"] > 0


@contextlib.asynccontextmanager
async def voice(http):
    async with http.ws_connect("/v1/realtime?model=parrot") as socket:
        session = json.loads(await socket.receive_str())["session"]
        yield socket, session["id"]


async def test_a_session_is_seen_and_can_be_closed(url):
    async with asking(url) as http, listening(http, "sessions") as stream, voice(http) as (socket, session_id):
        row = await stream.until("sessions.row")
        assert (row["id"], row["protocol"], row["mode"], row["recorded"]) == (session_id, "realtime", "conversation", False)
        assert 0 < row["ends_at"] - row["started_at"] <= 3601
        async with http.get("/sessions") as reply:
            assert [each["id"] for each in (await reply.json())["sessions"]] == [session_id]
        async with http.post(f"/sessions/{session_id}/close") as reply:
            assert await reply.json() == {"id": session_id, "closed": True}
        message = await socket.receive()
        assert message.data == socket.close_code == 1008 and "operator" in message.extra
        assert await stream.until("sessions.gone") == {"id": session_id}
        async with http.post(f"/sessions/{session_id}/close") as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (404, "session_not_found")


async def test_recordings_are_counted_once_they_are_in_their_list_however_short_their_sessions(tmp_path):
    config = configured(tmp_path, MODELS, **{"logging.level": "info", "recording.when": "always"})
    with background_server(config, is_persistent=True) as url:
        async with asking(url) as http, listening(http, "status") as stream:
            ids = []
            for _ in range(5):
                async with voice(http) as (_socket, session_id):
                    ids.append(session_id)
            await stream.until("status.row", lambda row: row["recordings"] == 5)
            async with http.get("/v1/sessions") as reply:
                kept = {each["id"]: each["status"] for each in (await reply.json())["data"]}
            assert kept == dict.fromkeys(ids, "kept")


async def test_a_session_of_minicpmo_is_told_why_it_is_closed(url):
    async with asking(url) as http, http.ws_connect("/v1/realtime?mode=chat&model=m") as socket:
        await socket.send_json({"type": "session.init", "payload": {}})
        while (event := json.loads(await socket.receive_str()))["type"] != "session.created":
            pass
        async with http.get("/sessions") as reply:
            (session,) = (await reply.json())["sessions"]
        assert (session["id"], session["protocol"], session["mode"]) == (event["session_id"], "minicpmo", "chat")
        async with http.post(f"/sessions/{session['id']}/close") as reply:
            assert reply.status == 200
        while (event := json.loads(await socket.receive_str()))["type"] != "session.closed":
            pass
        assert event["reason"] == "closed"


async def test_who_waits_is_seen_until_sent_off(url):
    async with asking(url) as http, listening(http, "queue") as stream:
        async with http.ws_connect("/v1/realtime?mode=chat&model=m"):
            served = await stream.until("queue.row", lambda row: row["status"] == "serving")
            async with http.ws_connect("/v1/realtime?mode=chat&model=m"):
                waiting = await stream.until("queue.row", lambda row: row["status"] == "queued")
                assert waiting["position"] == 1
                async with http.delete(f"/api/queue/{waiting['id']}") as reply:
                    assert reply.status == 200
                assert await stream.until("queue.gone") == {"id": waiting["id"]}
        assert await stream.until("queue.gone") == {"id": served["id"]}


async def test_one_who_comes_back_gets_what_it_missed_and_no_list_again(url):
    async with asking(url) as http:
        async with listening(http, "sessions") as stream:
            assert (await stream.next())[0] == "sessions.all"
            async with voice(http) as (_, first):
                assert (await stream.until("sessions.row"))["id"] == first
                last_id = stream.last_id
        async with listening(http, "sessions", last_id) as stream:
            assert await stream.next() == ("sessions.gone", {"id": first})
        async with listening(http, "sessions", "0000-1") as stream:
            assert (await stream.next())[0] == "sessions.all"


async def test_a_key_that_is_no_operators_follows_the_state_alone(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    admin, user = await server.key(scopes=("admin",)), await server.key(scopes=("models:read",))
    with server.serving() as url:
        async with asking(url, user) as http:
            async with listening(http, "status") as stream:
                assert (await stream.next())[0] == "status.all"
            for topics, code in (("status,log", 403), ("queue", 403), ("nothing", 400)):
                async with http.get("/updates", params={"topics": topics}) as reply:
                    assert reply.status == code
            for path in ("/log", "/sessions", "/config", "/usage", "/keys"):
                async with http.get(path) as reply:
                    assert (reply.status, (await reply.json())["error"]["code"]) == (403, "insufficient_permissions")
        async with asking(url) as http, http.get("/updates") as reply:
            assert reply.status == 401
        async with asking(url, admin) as http, listening(http, "") as stream:
            assert len({(await stream.next())[0] for _ in range(7)}) == 7


async def test_a_stream_ends_with_its_key_and_with_the_server(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    admin, (user, record) = await server.key(scopes=("admin",)), await server.create_key(scopes=("admin",))
    async with contextlib.AsyncExitStack() as stack:
        with server.serving() as url:
            http = await stack.enter_async_context(asking(url, admin))
            theirs = await stack.enter_async_context(asking(url, user))
            stream = await stack.enter_async_context(listening(theirs, "status"))
            mine = await stack.enter_async_context(listening(http, "status"))
            async with http.post(f"/keys/{record.id}/revoke") as reply:
                assert reply.status == 200
            assert (await stream.until("error"))["error"]["code"] == "invalid_api_key"
        assert await mine.until("end") == {"reason": "shutdown"}


async def test_one_client_has_so_many_streams(url):
    async with asking(url) as http, contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_LISTENERS_PER_HOLDER):
            await stack.enter_async_context(listening(http, "sessions"))
        async with http.get("/updates") as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (429, "too_many_connections")


# The hub


class Server:
    """What a hub samples."""

    def __init__(self):
        self.rows = {}
        self.is_draining = False

    async def gather(self, _query):
        return [ProcessFacts(1)]

    def hub(self):
        return UpdateHub(self.gather, lambda _topic, _parts: self.rows, is_shared=False, is_draining=lambda: self.is_draining)


def listener(on_cut=lambda: None):
    return Listener(["queue"], "key_a", on_cut)


async def chunk_with(one, mark):
    while mark not in (chunk := await one.next_chunk(20)):
        pass
    return chunk


async def test_nothing_is_sampled_while_nobody_listens(url, monkeypatch):
    monkeypatch.setattr(hubs, "GRACE_S", 0)
    server = Server()
    hub = server.hub()
    assert hub.sample_count == 0 and hub._task is None
    one = listener()
    await hub.listen(one, None)
    hub.leave(one)
    await hub._task
    count = hub.sample_count
    assert hub._task is None and not hub._rows
    await hub.listen(one, None)  # and again
    assert hub.sample_count == count + 1
    server.is_draining = True
    await hub._task


async def test_what_the_hub_logs_is_not_said_of_its_first_listener(url):
    contexts = []

    class Logging(Server):
        async def gather(self, query):
            contexts.append(structlog.contextvars.get_contextvars())
            return await super().gather(query)

    server = Logging()
    hub, one = server.hub(), listener()
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        await hub.listen(one, None)
    server.rows = {"0": b"1"}
    await chunk_with(one, b"queue.row")
    assert contexts[0] == {"request_id": "req_1"} and contexts[-1] == {}
    server.is_draining = True
    await hub._task


async def test_one_who_reads_slowly_is_cut_off_and_told_and_nobody_else(url):
    server, cuts = Server(), []
    hub = server.hub()
    slow, quick = listener(lambda: cuts.append(1)), listener()
    for one in (slow, quick):
        await hub.listen(one, None)
    for round in range(3):
        server.rows = {str(number): b'"%b"' % (b"x" * (BUFFER_BYTES // 4 - 100 + round)) for number in range(2)}
        await chunk_with(quick, b"queue.row")
    chunk = await chunk_with(slow, b"event: cut")
    assert b"too_slow" in chunk and b"queue.row" not in chunk and await slow.next_chunk(20) is None and cuts == [1]
    assert not quick.is_over
    server.is_draining = True
    await hub._task


def applied(table, chunk):
    """A client's table after some events: it replaces whole lists and rows, and drops what is gone."""
    last_id = None
    for record in chunk.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in record.split("\n") if line and not line.startswith(":"))
        if not fields:
            continue
        name, content, last_id = fields["event"], json.loads(fields["data"]), fields["id"]
        if name == "queue.all":
            table.clear()
            table.update({row["id"]: row for row in content["rows"]})
        elif name == "queue.row":
            table[content["id"]] = content
        else:
            del table[content["id"]]
    return last_id


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)) | st.sampled_from(["leave", "come back", "come anew"])))
def test_whoever_comes_and_goes_has_what_the_server_has(steps):
    async def play():
        server = Server()
        hub, one, table, last_id = server.hub(), listener(), {}, None
        await hub.listen(one, None)
        for step in [*steps, "come back"]:
            if isinstance(step, dict):
                server.rows = {id: json.dumps({"id": id, "n": number}).encode() for id, number in step.items()}
                await hub.sample(["queue"])
                continue
            last_id = applied(table, await one.next_chunk(20)) or last_id if one in hub._listeners else last_id
            hub.leave(one)
            if step != "leave":
                one = listener()
                table = table if step == "come back" else {}
                await hub.listen(one, last_id if step == "come back" else None)
        applied(table, await one.next_chunk(20))
        assert table == {id: json.loads(row) for id, row in server.rows.items()}

    asyncio.run(play())


async def test_whoever_comes_back_with_more_topics_gets_their_lists_and_for_the_others_what_was_missed(url):
    async with asking(url) as http, listening(http, "queue,sessions,status"):
        async with listening(http, "queue") as stream:
            assert (await stream.next())[0] == "queue.all"
        async with listening(http, "queue,sessions", stream.last_id) as stream:
            assert (await stream.next())[0] == "sessions.all"
            async with voice(http):
                assert (await stream.next())[0] == "sessions.row"
        async with listening(http, "sessions,queue,status", stream.last_id) as stream:
            names = set()
            while not names >= {"sessions.gone", "status.all"}:
                names.add((await stream.next())[0])
            assert names <= {"sessions.gone", "status.all", "status.row"}


async def test_what_is_kept_for_those_who_come_back_is_bounded(url):
    server = Server()
    hub = server.hub()
    one = listener()
    await hub.listen(one, None)
    server.rows = {"0": b"1"}
    chunk = await chunk_with(one, b"queue.row")
    last_id = chunk.split(b"id: ")[1].split(b"\n")[0].decode()
    server.rows = {str(number): b"2" for number in range(RING_EVENTS + 5)}
    await chunk_with(one, b"queue.row")
    again = listener()
    await hub.listen(again, last_id)
    assert b"queue.all" in await again.next_chunk(20) and len(hub._ring) == RING_EVENTS
    server.is_draining = True
    await hub._task
