"""`serve --processes 2`: two processes act as one server for clients, keys, the store and metrics."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.runtime.access.keys import REFRESH_S, SCOPES, make_key
from antiphon.stores.sql.store import SqlStore
from support.programs import forks
from support.server.raw_http import PATIENCE_S, POLL_S, ask, connect, error_of, request, rest_of, statuses, until
from support.server.realtime_peer import posted, talked

MANY = 24
"""Connections of which some come to each of two processes, but once in millions of times."""

MODELS = """
[[models]]
name = "parrot"
engine = "scripted"

[[models]]
name = "short"
engine = "scripted"
pace_ms = 10
answers = [{ lines = [{ text = "la ", repeat = 60 }] }]

[[models]]
name = "endless"
engine = "scripted"
pace_ms = 10
answers = [{ lines = [{ text = "la ", repeat = 100000 }] }]

[[models]]
name = "calm"
engine = "scripted"
pace_ms = 200
answers = [{ lines = [{ text = "la ", repeat = 100000 }] }]
"""


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def serving(home, models=MODELS, **settings):
    """The program with two processes; its supervisor and its address."""
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (home / "antiphon.toml").write_text(f"[server]\nprocesses = 2\nport = 0\n{lines}[speech]\nwarm_up = false\n{models}")
    environ = os.environ | {"ANTIPHON_HOME": str(home / "data"), "XDG_CONFIG_HOME": str(home / "none")}
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "children": forks.shared_by(2)}
    with forks.Popen([sys.executable, "-m", "antiphon", "serve"], cwd=home, env=environ, **more) as process:
        try:
            yield process, process.stdout.readline().split()[-1:]
        finally:
            process.kill()


def one(base_url, data):
    with connect(base_url) as connection:
        connection.sendall(data)
        return rest_of(connection)


def opened(base_url, model, count=MANY):
    """Streams that have begun to say something, with what they said."""
    streams = [connect(base_url) for _ in range(count)]
    for stream in streams:
        stream.sendall(ask(model, stream=True))
    return [(stream, until(stream, b"output_text.delta")) for stream in streams]


def events(answer):
    return [json.loads(line.removeprefix(b"data: ")) for line in answer.split(b"\n") if line.startswith(b"data: ")]


def eventually(what):
    """Ask until it is so; a server that never comes to it fails the test."""
    until_s = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until_s
        time.sleep(POLL_S)


def status(base_url, response_id):
    answer = one(base_url, request(path=f"/v1/responses/{response_id}", connection="close"))
    return json.loads(answer.partition(b"\r\n\r\n")[2]).get("status")


# Both processes answer, and are one


@pytest.fixture(scope="module")
def keys():
    """Keys and their records: `all` may do everything, the others have a limit each."""
    limits = {
        "all": {},
        "revoked": {},
        "requests": {"requests_per_minute": 6},
        "streams": {"streams": 3},
        "tokens": {"tokens_per_minute": 5},
        "talks": {"tokens_per_minute": 7},
    }
    return {name: make_key(name, now=0, scopes=SCOPES, **limit) for name, limit in limits.items()}


@pytest.fixture(scope="module")
def home(tmp_path_factory, keys):
    folder = tmp_path_factory.mktemp("keyed")

    async def keep():
        store = SqlStore(f"sqlite:///{folder}/data/antiphon.sqlite3")
        await store.open()
        for record, _ in keys.values():
            await store.keys.add(record)
        await store.close()

    asyncio.run(keep())
    return folder


@pytest.fixture(scope="module")
def served(home):
    with serving(home) as (process, (base_url,)):
        yield process, base_url


def asked(base_url, key, count=1, **fields):
    """The answers to requests with a key, each on a connection of its own."""
    body = json.dumps({"model": "parrot", "input": "Hi", **fields}).encode()
    data = request("POST", "/v1/responses", body, authorization=f"Bearer {key[1]}", connection="close")
    return [one(base_url, data) for _ in range(count)]


def told(base_url, key):
    answer = one(base_url, request(path="/metrics", authorization=f"Bearer {key[1]}", connection="close"))
    families = text_string_to_metric_families(answer.partition(b"\r\n\r\n")[2].decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_both_processes_take_connections(served):
    process, base_url = served
    before = [len(os.listdir(f"/proc/{child}/fd")) for child in children(process.pid)]
    with contextlib.ExitStack() as held:
        for _ in range(MANY):
            connection = held.enter_context(connect(base_url))
            connection.sendall(request())
            until(connection, b'"ok"')
        after = [len(os.listdir(f"/proc/{child}/fd")) for child in children(process.pid)]
    assert len(before) == 2
    assert all(more > less for more, less in zip(after, before, strict=True))


def test_metrics_tell_the_sum_whichever_process_is_asked(served, keys):
    process, base_url = served
    before = told(base_url, keys["all"])
    answers = asked(base_url, keys["all"], MANY)
    assert {*statuses(b"".join(answers))} == {200}
    for _ in range(8):
        after = told(base_url, keys["all"])
        assert after["antiphon_store_writes_total", "stored"] - before.get(("antiphon_store_writes_total", "stored"), 0) == MANY
        assert after["gen_ai_server_request_duration_seconds_count", "parrot", "completed"] >= MANY
        assert after["http_server_active_requests",] == 1
    assert after["process_cpu_seconds_total",] > before["process_cpu_seconds_total",]
    statuses_of_processes = [Path(f"/proc/{pid}/status").read_text() for pid in (process.pid, *children(process.pid))]
    largest = max(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) for status in statuses_of_processes)
    assert after["process_resident_memory_bytes",] > largest * 1024 * 1.5


def test_a_limit_on_requests_holds_over_both(served, keys):
    answers = asked(served[1], keys["requests"], 16)
    assert statuses(b"".join(answers)) == [200] * 6 + [429] * 10
    left = [int(re.search(rb"x-ratelimit-remaining-requests: (\d+)", answer)[1]) for answer in answers]
    assert left == [5, 4, 3, 2, 1, 0] + [0] * 10
    assert error_of(answers[-1])["message"].startswith("Rate limit reached on requests per min (RPM): Limit 6, Used 6, Requested 1.")


def test_a_limit_on_tokens_holds_over_both(served, keys):
    answers = asked(served[1], keys["tokens"], 16)
    assert statuses(b"".join(answers)) == [200, 200, 200] + [429] * 13
    assert json.loads(answers[0].partition(b"\r\n\r\n")[2])["usage"]["total_tokens"] == 2
    left = [int(re.search(rb"x-ratelimit-remaining-tokens: (\d+)", answer)[1]) for answer in answers]
    assert left == [3, 1] + [0] * 14


def test_a_client_secret_opens_sessions_in_both_and_their_tokens_are_taken_from_one_key(served, keys):
    base_url, key = served[1], keys["talks"][1]

    async def talked_until_refused():
        status, made = await posted(base_url, "/v1/realtime/client_secrets", {}, key)
        assert status == 200
        answered = 0
        while answered < 16:
            try:
                heard = await talked(base_url, "Hi", key=made["value"])
            except aiohttp.WSServerHandshakeError as refused:
                return answered, refused.status
            assert heard[-1]["response"]["usage"]["total_tokens"] == 2
            answered += 1
        return answered, 101

    assert asyncio.run(talked_until_refused()) == (4, 429)


def test_a_limit_on_streams_holds_over_both_and_a_place_is_free_again_when_its_client_left(served, keys):
    base_url = served[1]
    body = json.dumps({"model": "endless", "input": "Hi", "stream": True}).encode()
    data = request("POST", "/v1/responses", body, authorization=f"Bearer {keys['streams'][1]}")
    streams = [connect(base_url) for _ in range(3)]
    for stream in streams:
        stream.sendall(data)
        until(stream, b"output_text.delta")
    refused = asked(base_url, keys["streams"], 8)
    assert statuses(b"".join(refused)) == [429] * 8
    for stream in streams:
        stream.close()
    eventually(lambda: statuses(asked(base_url, keys["streams"])[0]) == [200])


def test_a_revoked_key_opens_nothing_in_either(served, home, keys):
    base_url, (record, _) = served[1], keys["revoked"]
    assert statuses(b"".join(asked(base_url, keys["revoked"], 8))) == [200] * 8

    async def revoke():
        store = SqlStore(f"sqlite:///{home}/data/antiphon.sqlite3")
        await store.open()
        await store.keys.revoke(record.id, 1)
        await store.close()

    asyncio.run(revoke())
    revoked_at = time.monotonic()
    eventually(lambda: time.monotonic() - revoked_at > REFRESH_S)
    assert statuses(b"".join(asked(base_url, keys["revoked"], MANY))) == [401] * MANY


# Death, and the end


def test_what_a_killed_process_had_under_way_is_failed_and_nothing_else(tmp_path):
    with serving(tmp_path, drain_s=0.2) as (process, (base_url,)):
        streams = opened(base_url, "calm")
        ids = {stream: events(begun)[0]["response"]["id"] for stream, begun in streams}
        killed, survivor = children(process.pid)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: killed not in children(process.pid))
        broken = [stream for stream, _ in streams if is_cut(stream)]
        assert 0 < len(broken) < MANY
        for stream in broken:
            eventually(lambda stream=stream: status(base_url, ids[stream]) == "failed")
        going = [stream for stream, _ in streams if stream not in broken]
        for stream in going:
            assert status(base_url, ids[stream]) == "in_progress"
            until(stream, b"output_text.delta")
        replaced = children(process.pid)
        assert survivor in replaced and killed not in replaced and len(replaced) == 2
        process.send_signal(signal.SIGTERM)
        for stream in going:
            *_, error, failed = events(rest_of(stream))
            assert (error["code"], failed["response"]["status"]) == ("server_shutting_down", "failed")
            stream.close()
        assert process.wait(10) == 0
        assert f'"pid": {killed}' in process.stderr.read()


def is_cut(stream):
    """Whether a stream has ended; what it had said by now is read."""
    stream.setblocking(False)
    try:
        while stream.recv(1 << 16):
            pass
    except BlockingIOError:
        stream.settimeout(PATIENCE_S)
        return False
    except ConnectionResetError:
        pass
    stream.close()
    return True


def is_gone(pid):
    try:
        return not Path(f"/proc/{pid}/cmdline").read_text()  # nothing is left of it but its exit code
    except OSError:
        return True


def test_sigterm_drains_both_and_both_say_so_until_the_last_is_done(tmp_path):
    with serving(tmp_path) as (process, (base_url,)):
        streams = opened(base_url, "short", 3)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: statuses(one(base_url, request(path="/readyz", connection="close"))) == [503])
        refused = [one(base_url, request(path="/readyz", connection="close")) for _ in range(MANY)]
        assert statuses(b"".join(refused)) == [503] * MANY
        for stream, begun in streams:
            assert events(begun + rest_of(stream))[-1]["type"] == "response.completed"
            stream.close()
        assert process.wait(10) == 0
        assert process.stderr.read().count("Traceback") == 0


def test_processes_end_when_their_supervisor_is_killed(tmp_path):
    with serving(tmp_path) as (process, (base_url,)):
        ((stream, _),) = opened(base_url, "endless", 1)
        processes = children(process.pid)
        process.kill()
        *_, error, _failed = events(rest_of(stream))
        assert error["code"] == "server_shutting_down"
        stream.close()
        eventually(lambda: all(map(is_gone, processes)))


def test_a_process_that_can_not_start_ends_the_server_with_its_words_said_once(tmp_path):
    with serving(tmp_path, '[[models]]\nname = "m"\nengine = "none"\n') as (process, said):
        assert (said, process.wait(10)) == ([], 1)
        (line,) = process.stderr.read().splitlines()
        assert json.loads(line)["message"].partition(": Model 'm': ")[2].startswith("There is no engine 'none'")


def test_a_store_in_memory_is_refused(tmp_path):
    with serving(tmp_path, MODELS + '[store]\nurl = "memory"\n') as (process, said):
        assert (said, process.wait(10)) == ([], 2)
        assert "can't share a store in memory" in process.stderr.read()


def test_a_second_server_finds_the_port_taken(served, tmp_path):
    (tmp_path / "antiphon.toml").write_text(MODELS)
    command = [sys.executable, "-m", "antiphon", "serve", "--processes", "2", "--port", served[1].rpartition(":")[2]]
    done = forks.run(command, cwd=tmp_path, env=os.environ | {"ANTIPHON_HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert json.loads(done.stderr)["message"].startswith("Can't listen on 127.0.0.1:")


def test_a_process_that_hangs_is_killed_and_replaced(tmp_path):
    with serving(tmp_path) as (supervisor, (base_url,)):
        hanging = children(supervisor.pid)[0]
        os.kill(hanging, signal.SIGSTOP)
        eventually(lambda: hanging not in children(supervisor.pid) and len(children(supervisor.pid)) == 2)
        eventually(lambda: statuses(one(base_url, request(path="/livez", connection="close"))) == [200])
        supervisor.terminate()
        assert f"Process {hanging} of the server stopped answering, and was killed." in supervisor.communicate(timeout=20)[1]
