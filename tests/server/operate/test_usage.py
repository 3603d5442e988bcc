"""`GET /usage`: what every protocol used, by key and model, also after a restart; and its pages."""

import base64
import json
import time

import aiohttp
import httpx2
import pytest
from hypothesis import given, strategies as st
from starlette.datastructures import QueryParams

from antiphon.audio import wav_file
from antiphon.errors import ClientError
from antiphon.server.operate.usage import MAX_BUCKETS, WIDTHS_S, parse_query
from support.embeddings.tiny_model import write_tiny_model
from support.server.key_server import KeyServer
from support.server.scripted_server import SCRIPT
from support.server.speech_server import WORD_MS, speaking, tone

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}, "second": {"engine": "scripted", **SCRIPT}}
ALL = ("admin", "responses:write", "responses:read", "realtime", "models:read")
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def asking(url, key):
    return httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)


def results(http, **query):
    reply = http.get("/usage", params=query)
    assert reply.status_code == 200, reply.text
    return [result for bucket in reply.json()["data"] for result in bucket["results"]]


async def talk(url, key):
    async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as http:
        async with http.ws_connect("/v1/realtime?model=parrot") as socket:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
            await socket.send_json({"type": "conversation.item.create", "item": item})
            await socket.send_json({"type": "response.create", "response": {"output_modalities": ["text"]}})
            while json.loads(await socket.receive_str())["type"] != "response.done":
                pass


async def test_every_protocol_is_counted_by_key_and_model_and_stays_after_a_restart(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    admin, _ = await server.create_key(scopes=ALL)
    user, record = await server.create_key(scopes=ALL, requests_per_minute=6)
    with server.serving() as url, asking(url, user) as http:
        asked = {"model": "parrot", "input": "hello"}
        response = http.post("/v1/responses", json=asked).json()
        http.post("/v1/responses", json={**asked, "stream": True})
        http.post("/v1/responses", json={**asked, "input": "break midway"})
        chat = http.post("/v1/chat/completions", json={"model": "second", "messages": [{"role": "user", "content": "hi"}]})
        message = {"model": "second", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
        assert (chat.status_code, http.post("/v1/messages", json=message).status_code) == (200, 200)
        await talk(url, user)
        assert http.post("/v1/responses", json=asked).status_code == 429
    with server.serving() as url, asking(url, admin) as http:
        counts = {
            (one["model"], one["protocol"]): one for one in results(http, group_by="key,model,protocol") if one["key_id"] == record.id
        }
        assert {group: (one["requests"], one["errors"], one["refused"]) for group, one in counts.items()} == {
            ("parrot", "responses"): (3, 1, 0),
            ("second", "chat"): (1, 0, 0),
            ("second", "messages"): (1, 0, 0),
            ("parrot", "realtime"): (1, 0, 0),
            (None, None): (0, 0, 1),
        }
        assert counts["parrot", "responses"]["input_tokens"] >= 2 * response["usage"]["input_tokens"] > 0
        assert counts["second", "chat"]["output_tokens"] == chat.json()["usage"]["completion_tokens"]
        assert counts["second", "messages"]["input_tokens"] > 0 and counts["parrot", "realtime"]["output_tokens"] > 0
        (whole,) = results(http, bucket="1d", limit=1)
        assert (whole["requests"], whole["key_id"], whole["model"]) == (6, None, None)


async def test_sound_and_vectors_are_counted_by_what_they_are(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    models = MODELS | {"vectors": {"engine": "embeddings", "path": str(folder)}}
    with speaking(tmp_path / "home", models=models) as served, httpx2.Client(base_url=served.url, timeout=60) as http:
        assert http.post("/v1/audio/speech", json={"model": "tts-1", "input": "one two", "voice": "alloy"}).status_code == 200
        sound = wav_file(tone(2000, 16_000), 16_000)
        assert http.post("/v1/audio/transcriptions", data={"model": "whisper-1"}, files={"file": ("x.wav", sound)}).status_code == 200
        assert http.post("/v1/embeddings", json={"model": "vectors", "input": "hello world"}).status_code == 200
        async with aiohttp.ClientSession(served.url) as session, session.ws_connect("/v1/realtime?model=parrot") as socket:
            await socket.send_json({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(48_000)).decode()})
            await socket.send_json({"type": "input_audio_buffer.commit"})
            while json.loads(await socket.receive_str())["type"] != "input_audio_buffer.committed":
                pass
            while_open = {one["protocol"]: one for one in results(http, group_by="protocol")}
        assert while_open["realtime"]["input_audio_s"] == 1
        assert while_open["speech"]["output_audio_s"] == pytest.approx(2 * WORD_MS / 1000, abs=0.02)
        assert while_open["transcriptions"]["input_audio_s"] == pytest.approx(2, abs=0.05) and while_open["transcriptions"]["requests"] == 1
        assert while_open["embeddings"]["requests"] == 1 and while_open["embeddings"]["input_tokens"] > 0


async def test_a_turn_of_minicpmo_is_a_request(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key, record = await server.create_key(scopes=ALL)
    with server.serving() as url:
        async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {key}"}) as session:
            async with session.ws_connect("/v1/realtime?mode=chat&model=parrot") as socket:
                await socket.send_json({"type": "session.init", "payload": {}})
                while json.loads(await socket.receive_str())["type"] != "session.created":
                    pass
                await socket.send_json({"type": "input.append", "input": {"messages": [{"role": "user", "content": "hello"}]}})
                while (event := json.loads(await socket.receive_str()))["type"] != "response.done":
                    assert event["type"] != "error", event
        with asking(url, key) as http:
            (one,) = [one for one in results(http, group_by="key,model,protocol") if one["protocol"] == "minicpmo"]
            assert (one["key_id"], one["model"], one["requests"]) == (record.id, "parrot", 1)


@pytest.fixture(scope="module")
def quiet(base_url):
    with httpx2.Client(base_url=base_url, timeout=60) as http:
        yield http


def test_pages_follow_one_another_and_have_the_empty_buckets_too(quiet):
    start, seen, page = 1_000_000 * 3600, [], None
    for _ in range(3):
        query = {"start": start, "end": start + 9000, "limit": 1, **({"page": page} if page else {})}
        body = quiet.get("/usage", params=query).json()
        assert body["object"] == "page" and len(body["data"]) == 1
        seen += [(bucket["start_time"], bucket["end_time"], bucket["results"]) for bucket in body["data"]]
        page = body["next_page"]
        assert body["has_more"] is (page is not None)
    assert seen == [(start + at, start + at + 3600, []) for at in (0, 3600, 7200)] and page is None


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"bucket": "1m"}, "bucket"),
        ({"start": "yesterday"}, "start"),
        ({"start": "99999999999999"}, "start"),
        ({"start": int(time.time()) + 10**6}, "start"),
        ({"end": 0}, "start"),
        ({"group_by": "key,user"}, "group_by"),
        ({"limit": 367}, "limit"),
        ({"page": "2"}, "page"),
        ({"page": "page_1"}, "page"),
    ],
)
def test_a_wrong_parameter_is_named(quiet, query, param):
    reply = quiet.get("/usage", params=query)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@given(
    st.dictionaries(
        st.sampled_from(["start", "end", "bucket", "limit", "page", "group_by"]),
        st.integers(-5, 2**45).map(str) | st.sampled_from(["1h", "1d", "key", "page_3600", "page_0"]) | st.text(max_size=5),
    ),
    st.integers(0, 2**33),
)
def test_whatever_is_asked_is_refused_or_a_page_of_whole_buckets(query, now):
    try:
        parsed = parse_query(QueryParams(query), now)
    except ClientError as error:
        assert error.status == 400 and error.param in {*query, "start"}
        return
    assert 0 <= parsed.start < parsed.end <= parsed.last_end and not (parsed.start % parsed.width_s or parsed.end % parsed.width_s)
    assert (parsed.end - parsed.start) // parsed.width_s <= MAX_BUCKETS and parsed.width_s in WIDTHS_S.values()
