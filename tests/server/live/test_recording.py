"""Sessions that a server records, and who may list, play and delete them."""

import asyncio
import base64
import http.client
import io
import json
import urllib.error
import urllib.request
import zipfile

import pytest

from antiphon.runtime.recording.files import decode_lines
from antiphon.runtime.recording.transcript import read_turns
from antiphon.server.admin.recordings import parse_range
from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.own_process import serving
from support.server.realtime_peer import IN_WRITING, connected, talked
from support.server.scripted_server import SCRIPT, configured
from support.stores.s3_double import Lost, s3

pytestmark = pytest.mark.anyio

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}}
SECOND = bytes(range(256)) * 100


@pytest.fixture
def anyio_backend():
    return "asyncio"


def opened(tmp_path, **settings):
    config = configured(tmp_path, MODELS, **{"logging.level": "error", "recording.when": "consent", **settings})
    return background_server(config, is_persistent=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server that needs no key, and records sessions with consent."""
    with opened(tmp_path_factory.mktemp("open")) as address:
        yield address


def answered(url, path, key=None, method="GET", **headers):
    """Status, headers and body of an answer."""
    named = {**({"authorization": f"Bearer {key}"} if key else {}), **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=named, method=method)) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def asked(url, path, key=None, method="GET"):
    status, _, body = answered(url, path, key, method)
    return status, json.loads(body)


async def settled(url, session_id, key=None):
    """A session, once it is no longer live."""
    async with asyncio.timeout(20):
        while (found := asked(url, f"/v1/sessions/{session_id}", key))[0] != 200 or found[1]["status"] == "live":  # noqa: ASYNC110 - a server sets no event
            await asyncio.sleep(0.01)
    return found[1]


async def spoken(url, **connection):
    """A session in which something is said and answered; its id."""
    async with connected(url, model="parrot", **connection) as peer:
        session_id = (await peer.hear())["session"]["id"]
        await peer.say("session.update", session=IN_WRITING["ga"])
        await peer.until("session.updated")
        await peer.say("input_audio_buffer.append", audio=base64.b64encode(SECOND).decode())
        await peer.ask("Hi")
    return session_id


async def test_a_client_that_asks_for_it_is_recorded_and_others_are_not(url):
    by_query = await spoken(url, record="1")
    by_header = await spoken(url, headers={"antiphon-record": "yes"})
    silent = await spoken(url)
    refused = await spoken(url, headers={"antiphon-record": "no"}, record="0")
    for session_id in (by_query, by_header):
        session = await settled(url, session_id)
        assert session["reason"] == "left" and session["model"] == "parrot" and session["mode"] == "conversation"
        assert [file["name"] for file in session["files"]] == ["events.jsonl", "in.wav", "meta.json"]
    assert asked(url, f"/v1/sessions/{silent}")[0] == asked(url, f"/v1/sessions/{refused}")[0] == 404


async def test_its_events_and_files_are_given_whole_and_in_part(url):
    session_id = await spoken(url, record="1")
    await settled(url, session_id)
    status, headers, body = answered(url, f"/v1/sessions/{session_id}/events")
    assert status == 200 and headers["content-type"] == "application/x-ndjson"
    kinds = [json.loads(line)["event"]["type"] for line in body.splitlines()]
    assert kinds[0] == "session.created" and kinds[-2:] == ["response.done", "rate_limits.updated"]
    status, headers, body = answered(url, f"/v1/sessions/{session_id}/files/in.wav")
    assert status == 200 and headers["content-type"] == "audio/wav" and body[44:] == SECOND
    status, headers, body = answered(url, f"/v1/sessions/{session_id}/files/in.wav", range="bytes=44-47")
    assert (status, headers["content-range"], body) == (206, f"bytes 44-47/{44 + len(SECOND)}", SECOND[:4])
    status, headers, _ = answered(url, f"/v1/sessions/{session_id}/files/in.wav", range="bytes=99999999-")
    assert (status, headers["content-range"]) == (416, f"bytes */{44 + len(SECOND)}")
    assert answered(url, f"/v1/sessions/{session_id}/files/in.wav", method="HEAD")[2] == b""
    assert answered(url, f"/v1/sessions/{session_id}/files/..%2Fmeta.json")[0] == 404


async def test_all_of_it_comes_in_a_zip_file(url):
    session_id = await spoken(url, record="1")
    await settled(url, session_id)
    _, headers, body = answered(url, f"/v1/sessions/{session_id}/download")
    assert headers["content-disposition"] == f'attachment; filename="{session_id}.zip"'
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("private, no-store", "nosniff")
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None
        assert archive.read(f"{session_id}/in.wav")[44:] == SECOND
        assert json.loads(archive.read(f"{session_id}/meta.json"))["id"] == session_id


@pytest.fixture
def bucket(monkeypatch):
    """The objects of an S3 server, which the environment names."""
    with s3() as (address, objects):
        names = {"ENDPOINT_URL": address, "ALLOW_HTTP": "true", "ACCESS_KEY_ID": "ada", "SECRET_ACCESS_KEY": "lovelace", "REGION": "eu"}
        for name, value in names.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield objects


async def test_a_file_that_can_not_be_read_is_an_error_and_no_broken_download(tmp_path, bucket):
    with opened(tmp_path, **{"recording.url": "s3://talks"}) as url:
        session_id = await spoken(url, record="1")
        path = f"/v1/sessions/{session_id}"
        await settled(url, session_id)
        for name, content in bucket.items():
            bucket[name] = Lost(content)
        for file in ("events", "files/in.wav", "download"):
            status, body = asked(url, f"{path}/{file}")
            assert (status, body["error"]["code"]) == (503, "recordings_away")


async def test_a_download_that_breaks_off_is_seen_as_that_and_logged_as_no_defect(tmp_path, bucket, capfd):
    with opened(tmp_path, **{"recording.url": "s3://talks", "logging.level": "warning", "logging.format": "json"}) as url:
        session_id = await spoken(url, record="1")
        await settled(url, session_id)
        (name,) = [name for name in bucket if name.endswith("/meta.json")]  # the last file
        bucket[name] = Lost(bucket[name])
        with pytest.raises(http.client.IncompleteRead):
            answered(url, f"/v1/sessions/{session_id}/download")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    assert {"broken_off"} <= {line["event"] for line in lines} and "defect" not in {line["event"] for line in lines}


async def test_sessions_are_listed_page_by_page_and_gone_when_deleted(url):
    ids = [await spoken(url, record="1") for _ in range(3)]
    for session_id in ids:
        await settled(url, session_id)
    _, page = asked(url, "/v1/sessions?limit=2")
    assert [session["id"] for session in page["data"]] == [ids[2], ids[1]] == [page["first_id"], page["last_id"]] and page["has_more"]
    assert asked(url, f"/v1/sessions?limit=1&after={ids[1]}")[1]["data"][0]["id"] == ids[0]
    assert asked(url, f"/v1/sessions?order=asc&after={ids[1]}")[1]["data"][0]["id"] == ids[2]
    assert asked(url, f"/v1/sessions/{ids[1]}", method="DELETE") == (200, {"id": ids[1], "object": "session.deleted", "deleted": True})
    assert asked(url, f"/v1/sessions/{ids[1]}", method="DELETE")[0] == 404
    assert answered(url, f"/v1/sessions/{ids[1]}/download")[0] == 404
    assert asked(url, f"/v1/sessions?after={ids[1]}")[1]["error"]["param"] == "after"
    assert asked(url, "/v1/sessions?limit=0")[1]["error"]["param"] == "limit"


async def test_a_live_session_is_shown_and_neither_read_nor_deleted(url):
    async with connected(url, model="parrot", record="1") as peer:
        session_id = (await peer.hear())["session"]["id"]
        assert asked(url, f"/v1/sessions/{session_id}")[1]["status"] == "live"  # at once, though its record is stored later
        for path, method in (("/events", "GET"), ("/files/in.wav", "GET"), ("/download", "GET"), ("", "DELETE")):
            status, body = asked(url, f"/v1/sessions/{session_id}{path}", method=method)
            assert (status, body["error"]["code"]) == (409, "session_is_live")
    await settled(url, session_id)


async def test_a_transcription_is_recorded_as_one(tmp_path):
    with opened(tmp_path, **{"recording.when": "always"}) as url:
        async with connected(url, intent="transcription") as peer:
            session_id = (await peer.hear())["session"]["id"]
        assert (await settled(url, session_id))["mode"] == "transcription"


async def test_words_that_the_server_heard_are_recorded_though_the_client_did_not_ask_for_them(tmp_path):
    hears = {"hears": [{"says": "What is a fugue?"}], "answers": [{"say": "{input}"}]}
    config = configured(tmp_path, {"parrot": {"engine": "scripted", **hears}}, **{"logging.level": "error", "recording.when": "always"})
    with background_server(config, is_persistent=True) as url:
        async with connected(url, model="parrot") as peer:
            session_id = (await peer.hear())["session"]["id"]
            await peer.say("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
            await peer.until("session.updated")
            await peer.say("input_audio_buffer.append", audio=base64.b64encode(SECOND).decode())
            await peer.say("input_audio_buffer.commit")
            await peer.say("response.create")
            events = await peer.until("response.done")
        assert not any("input_audio_transcription" in event["type"] or "input_transcript" in event["type"] for event in events)
        await settled(url, session_id)
        lines = list(decode_lines(answered(url, f"/v1/sessions/{session_id}/events")[2]))
    assert [line.event["transcript"] for line in lines if line.direction == "internal"] == ["What is a fugue?"]
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert [(turn.role, turn.text) for turn in read_turns(lines)] == [("person", "What is a fugue?"), ("model", "What is a fugue?")]


async def test_a_call_is_recorded_with_what_was_heard_and_said(url):
    pytest.importorskip("aiortc")
    from support.server.caller import calling  # noqa: PLC0415 - it needs what may not be there

    async with calling(url, model="parrot", record="1") as call:
        session_id = (await call.until("session.created"))[-1]["session"]["id"]
        call.tones.speak(600)
        await call.until("response.done")
    session = await settled(url, session_id)
    assert {"in.wav", "out.wav"} <= {file["name"] for file in session["files"]}


async def test_a_server_that_forgets_records_nobody(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"recording.when": "always", "logging.level": "error"})) as url:
        await talked(url, model="parrot", record="1")
        assert asked(url, "/v1/sessions")[1]["data"] == []
    assert not list(tmp_path.rglob("recording*"))


# Who may


async def test_another_tenants_recording_is_as_good_as_none_save_for_an_admin(tmp_path):
    house = KeyServer(tmp_path, MODELS, **{"recording.when": "consent"})
    ada = await house.key(tenant="ada")
    colleague = await house.key(tenant="ada")
    eve = await house.key(tenant="eve")
    admin = await house.key(tenant="root", scopes=("sessions", "admin"))
    only_talks = await house.key(tenant="ada", scopes=("realtime",))
    with house.serving() as url:
        session_id = await spoken(url, key=ada, record="1")
        await settled(url, session_id, ada)
        paths = [f"/v1/sessions/{session_id}{rest}" for rest in ("", "/events", "/files/in.wav", "/download")]
        keys = {"ada": ada, "colleague": colleague, "eve": eve, "admin": admin, "only_talks": only_talks}
        reached = {name: [answered(url, path, key)[0] for path in paths] for name, key in keys.items()}
        assert reached == {
            "ada": [200] * 4,
            "colleague": [200] * 4,
            "eve": [404] * 4,
            "admin": [200] * 4,
            "only_talks": [403] * 4,
        }
        assert answered(url, paths[0])[0] == 401
        listed = {name: len(asked(url, "/v1/sessions", key)[1]["data"]) for name, key in (("ada", ada), ("eve", eve), ("admin", admin))}
        assert listed == {"ada": 1, "eve": 0, "admin": 1}
        assert asked(url, paths[0], eve, "DELETE")[0] == 404
        assert asked(url, f"/v1/sessions?after={session_id}", eve)[0] == 400
        assert asked(url, paths[0], admin, "DELETE")[0] == 200
        assert answered(url, paths[0], ada)[0] == 404


async def test_a_key_says_which_of_its_sessions_are_recorded(tmp_path):
    house = KeyServer(tmp_path, MODELS, **{"recording.when": "consent"})
    always = await house.key(tenant="ada", record="always")
    never = await house.key(tenant="ada", record="never")
    with house.serving() as url:
        kept = await spoken(url, key=always)
        left_out = await spoken(url, key=never, record="1")
        assert (await settled(url, kept, always))["tenant"] == "ada"
        assert asked(url, f"/v1/sessions/{left_out}", always)[0] == 404


# A server that dies


async def test_a_recording_whose_server_was_killed_is_there_after_the_next_start(tmp_path):
    (tmp_path / "antiphon.toml").write_text('[recording]\nwhen = "always"\n')
    with serving(tmp_path) as (process, url):
        async with connected(url, model="parrot") as peer:
            session_id = (await peer.hear())["session"]["id"]
            await peer.say("session.update", session=IN_WRITING["ga"])
            await peer.until("session.updated")
            await peer.ask("Hi")
            spool = tmp_path / ".local" / "share" / "antiphon" / "recording"
            while not any(b"response.done" in path.read_bytes() for path in spool.rglob("events.jsonl")):  # noqa: ASYNC110 - a server sets no event
                await asyncio.sleep(0.01)
            process.kill()
            process.wait()
    with serving(tmp_path) as (_, url):
        session = await settled(url, session_id)
        assert (session["status"], session["reason"]) == ("interrupted", "interrupted")
        assert b"response.done" in answered(url, f"/v1/sessions/{session_id}/events")[2]


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, None),
        ("bytes=0-", range(100)),
        ("bytes=10-19", range(10, 20)),
        ("bytes=90-200", range(90, 100)),
        ("bytes=-5", range(95, 100)),
        ("bytes=-500", range(100)),
        ("bytes=100-", range(0)),
        ("bytes=-0", range(0)),
        ("bytes=9-5", None),
        ("bytes=-", None),
        ("bytes=0-1,5-6", None),
        ("lines=0-1", None),
    ],
)
def test_a_range_is_what_it_says_or_nothing_or_passed_over(header, wanted):
    assert parse_range(header, 100) == wanted
