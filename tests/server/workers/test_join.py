"""Workers that join a real server: with which key, and what happens when one side dies."""

import asyncio
import contextlib
import gc
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

import pytest
from msgspec import structs

from antiphon.config.load import load
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engines.remote.engine import RemoteEngine
from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import Script
from antiphon.framing import FrameDecoder, pack_frame
from antiphon.runtime.workers.client import JoinTimeouts, WorkerClient
from antiphon.server.processes.run import background_server
from antiphon.wire.internal.worker_link import (
    PATH,
    VERSION,
    VERSION_HEADER,
    ConversationOpened,
    Heartbeat,
    Hello,
    JoinAccepted,
    JoinRefused,
    to_worker_decoder,
)
from support.programs import forks
from support.server.raw_http import connect, rest_of
from support.server.raw_socket import BINARY, CLOSE, TEXT, Client, error_in, frame, handshake

KEY = "a key that workers have"
MODELS = [{"name": "far", "engine": "worker"}, {"name": "near", "engine": "scripted"}]
HELLO = Hello(version=VERSION, abilities=ScriptedEngine(Script()).capabilities, model="far", slots=2, name="testing")
QUICK = JoinTimeouts(backoff_s=(0.01,), drain_s=5)


def configured(home, **environ):
    flags = {"models": MODELS, "logging.level": "error", "store.url": "memory"}
    return load(flags, None, {"HOME": str(home)} | environ, home, system_file=home / "none.toml").config


@pytest.fixture
def base_url(tmp_path):
    with background_server(configured(tmp_path, ANTIPHON_WORKER_KEY=KEY)) as url:
        yield url


def asked(base_url, model="far", text="Hi"):
    """The answer of a model: its status and its text, or its error."""
    connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=20)
    connection.request("POST", "/v1/responses", json.dumps({"model": model, "input": text}), {"content-type": "application/json"})
    reply = connection.getresponse()
    told = json.loads(reply.read())
    connection.close()
    return reply.status, told["error"] if reply.status != 200 else told["output"][0]["content"][0]["text"]


class Worker:
    """A worker in a thread of its own; `notices` are what its operator sees."""

    def __init__(self, url, key, hello, engine, **more):
        self.notices = []
        self._noticed = threading.Condition()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(url.replace("http", "ws"), key, hello, engine, more),))
        self._thread.start()
        assert self._begun.wait(10)

    async def _run(self, url, key, hello, engine, more):
        self._loop = asyncio.get_running_loop()
        self._joining = WorkerClient(engine, hello, url, key, self._notice, **({"timeouts": QUICK} | more))
        self._begun.set()
        await self._joining.run()

    def _notice(self, line):
        with self._noticed:
            self.notices.append(line)
            self._noticed.notify_all()

    def until(self, part, count=1):
        """Wait for a notice."""
        with self._noticed:
            assert self._noticed.wait_for(lambda: sum(part in line for line in self.notices) >= count, 20), self.notices

    def drain(self):
        self._loop.call_soon_threadsafe(self._joining.stop)

    def stop(self):
        if self._thread.is_alive():
            self.drain()
        self.ended()

    def ended(self):
        """Return when it has ended, which is soon."""
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def joined(url, key=KEY, hello=HELLO, engine=None, **more):
    worker = Worker(url, key, hello, engine or ScriptedEngine(Script()), **more)
    try:
        yield worker
    finally:
        worker.stop()


# Who may join


def refused(base_url, **headers):
    with connect(base_url) as connection:
        connection.sendall(handshake(PATH, **headers))
        answer = rest_of(connection)
    return int(answer.split()[1]), error_in(answer)


def test_nobody_joins_a_server_that_has_no_key_for_it(tmp_path):
    for key in ({}, {"ANTIPHON_WORKER_KEY": ""}, {"ANTIPHON_WORKER_KEY": "  "}):
        with background_server(configured(tmp_path, **key)) as url:
            for sent in ("any", KEY):
                status, error = refused(url, authorization=f"Bearer {sent}")
                assert (status, error["code"]) == (403, "no_workers")
                assert "accepts no workers" in error["message"]
            for sent in ({}, {"authorization": "Bearer "}):
                assert refused(url, **sent)[0] == 401


def test_a_wrong_key_or_none_is_refused_before_anything_is_read(base_url):
    for sent in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {KEY}x"}, {"authorization": f"Basic {KEY}"}):
        status, error = refused(base_url, **sent)
        assert (status, error["code"]) == (401, "invalid_api_key")


def test_a_web_page_is_no_worker(base_url):
    status, _ = refused(base_url, authorization=f"Bearer {KEY}", origin=base_url)
    assert status == 403


def test_the_key_may_be_in_a_file(tmp_path):
    (tmp_path / "key").write_text(f"{KEY}\n")
    with background_server(configured(tmp_path, ANTIPHON_WORKER_KEY_FILE=str(tmp_path / "key"))) as url, joined(url) as worker:
        worker.until("Joined")


def test_a_worker_with_a_wrong_key_says_so_once_and_tries_again(base_url):
    with joined(base_url, key="wrong") as worker:
        worker.until("is not this server's key")
        assert len(worker.notices) == 1


def test_a_server_that_is_not_there_is_told_of_in_words():
    with joined(f"http://127.0.0.1:{free_port()}") as worker:
        worker.until("could not be joined: nothing listens at this address. This worker keeps trying.")
        worker.until("could not be joined (2 times so far): nothing listens at this address. This worker keeps trying.")


# What joins


def test_a_model_is_answered_by_the_worker_that_joined_for_it(base_url):
    with joined(base_url) as worker:
        worker.until("Joined")
        assert asked(base_url) == (200, "Hi")


def test_several_workers_answer_for_one_model(base_url):
    with joined(base_url) as one, joined(base_url) as other:
        one.until("Joined")
        other.until("Joined")
        one.drain()
        one.stop()
        assert asked(base_url) == (200, "Hi")


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Hello(version=VERSION + 1, abilities=Capabilities(), model="far"), f"version {VERSION + 1}"),
        (Hello(version=VERSION, abilities=Capabilities(), model="near"), "'far'"),
        (Hello(version=VERSION, abilities=Capabilities(), model="unknown"), "'unknown'"),
        (Hello(version=VERSION, abilities=Capabilities(), model="far", kinds=()), "no kind"),
    ],
    ids=["version", "not awaited", "unknown", "no kinds"],
)
def test_a_worker_that_can_not_be_used_is_told_why(base_url, hello, why):
    with joined(base_url, hello=hello) as worker:
        worker.until(why)
        assert not any("Joined" in line for line in worker.notices)


def test_a_worker_of_another_version_is_told_so_before_it_says_anything(base_url):
    status, error = refused(base_url, **{"authorization": f"Bearer {KEY}", VERSION_HEADER: "99"})
    assert (status, error["code"]) == (409, "another_version")
    assert f"version 99 of the link, this server version {VERSION}" in error["message"]
    assert refused(base_url, **{"authorization": "Bearer wrong", VERSION_HEADER: "99"})[0] == 401


def test_a_worker_whose_hello_makes_no_sense_hears_why(base_url):
    with joined(base_url, hello=structs.replace(HELLO, kinds=("phone",))) as worker:
        worker.until("could not be joined: a frame that makes no sense")


# An operator


def told(base_url, method, path):
    connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=20)
    connection.request(method, path)
    reply = connection.getresponse()
    body = json.loads(reply.read())
    connection.close()
    return body


def far(base_url):
    """The one worker that has joined."""
    (found,) = [worker for worker in told(base_url, "GET", "/workers")["workers"] if worker["model"] == "far"]
    return found


@contextlib.contextmanager
def answering(base_url):
    """An answer that takes a second and a half is under way, and is whole at the end."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(asked(base_url, text="la " * 300)))
    thread.start()
    wait_until_served(base_url, thread)
    yield
    thread.join(20)
    assert [status for status, _ in answers] == [200]


def slow():
    return ScriptedEngine(Script(pace_ms=5))


def test_a_worker_is_seen_with_what_it_is_and_whom_it_serves(base_url):
    with joined(base_url, hello=structs.replace(HELLO, program="1.2.3"), engine=slow()) as worker:
        worker.until("Joined")
        with answering(base_url):
            seen = far(base_url)
            assert (seen["version"], seen["kinds"], seen["slots"]) == ("1.2.3", list(HELLO.kinds), 2)
            assert 0 <= seen["silent_s"] < 5
            assert seen["abilities"]["context_window"] == HELLO.abilities.context_window
            assert [(one["kind"], one["worker_id"]) for one in seen["sessions"]] == [("responses", seen["worker_id"])]


def test_a_worker_that_the_operator_drains_says_how_many_are_left_and_stays_without_any(base_url):
    with joined(base_url, engine=slow()) as worker:
        worker.until("Joined")
        with answering(base_url):
            told(base_url, "POST", f"/workers/{far(base_url)['worker_id']}/drain")
            worker.until("drained this worker")
            worker.until("Draining: 1 session left.")
        worker.until("Drained: no sessions left. This worker stays joined")
        assert (far(base_url)["status"], far(base_url)["taken"]) == ("draining", 0)
        assert asked(base_url)[1]["code"] == "worker_busy"


def test_a_worker_that_is_to_end_when_drained_does_after_its_last_session(base_url):
    with joined(base_url, engine=slow(), exits_when_drained=True) as worker:
        worker.until("Joined")
        with answering(base_url):
            told(base_url, "POST", f"/workers/{far(base_url)['worker_id']}/drain")
            worker.until("Draining: 1 session left.")
        worker.ended()
        assert worker.notices[-1] == "Drained: no sessions left."


def test_a_worker_that_the_operator_removes_ends_after_its_last_session(base_url):
    with joined(base_url, engine=slow()) as worker:
        worker.until("Joined")
        with answering(base_url):
            told(base_url, "DELETE", f"/workers/{far(base_url)['worker_id']}")
            worker.until("removed this worker")
            assert not [each for each in told(base_url, "GET", "/workers")["workers"] if each["model"] == "far"]
        worker.ended()


def test_a_worker_that_was_drained_is_so_still_when_it_joins_again(tmp_path):
    port = str(free_port())
    base_url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as held:
        with serving(tmp_path, port):
            worker = held.enter_context(joined(base_url))
            worker.until("Joined")
            told(base_url, "POST", f"/workers/{far(base_url)['worker_id']}/drain")
            worker.until("Drained")
        with serving(tmp_path, port):
            worker.until("but takes no sessions, as it was drained")
            while not any(each["status"] == "draining" for each in told(base_url, "GET", "/workers")["workers"]):
                pass
            assert asked(base_url)[1]["code"] == "worker_busy"


def test_a_worker_that_is_resumed_answers_again_also_when_it_joins_again(tmp_path):
    port = str(free_port())
    base_url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as held:
        with serving(tmp_path, port):
            worker = held.enter_context(joined(base_url))
            worker.until("Joined")
            told(base_url, "POST", f"/workers/{far(base_url)['worker_id']}/drain")
            worker.until("Drained")
            assert asked(base_url)[1]["code"] == "worker_busy"
            assert told(base_url, "POST", f"/workers/{far(base_url)['worker_id']}/resume")["status"] == "idle"
            assert asked(base_url) == (200, "Hi")
            worker.until("resumed this worker: it takes sessions again.")
        with serving(tmp_path, port):
            worker.until("Joined", 2)
            assert far(base_url)["status"] == "idle"
            assert asked(base_url) == (200, "Hi")
        assert not [line for line in worker.notices if "as it was drained" in line]


def test_a_worker_that_joined_drained_is_resumed_as_any_other(tmp_path):
    port = str(free_port())
    base_url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as held:
        with serving(tmp_path, port):
            worker = held.enter_context(joined(base_url))
            worker.until("Joined")
            told(base_url, "POST", f"/workers/{far(base_url)['worker_id']}/drain")
            worker.until("Drained")
        with serving(tmp_path, port):
            worker.until("as it was drained")
            while not [each for each in told(base_url, "GET", "/workers")["workers"] if each["model"] == "far"]:
                pass
            told(base_url, "POST", f"/workers/{far(base_url)['worker_id']}/resume")
            assert asked(base_url) == (200, "Hi")


def test_a_worker_that_ends_with_its_last_session_can_not_be_resumed(base_url):
    with joined(base_url, engine=slow(), exits_when_drained=True) as worker:
        worker.until("Joined")
        with answering(base_url):
            at = f"/workers/{far(base_url)['worker_id']}"
            told(base_url, "POST", f"{at}/drain")
            worker.until("Draining: 1 session left.")
            while (answer := told(base_url, "POST", f"{at}/resume")).get("error", {}).get("code") != "worker_ending":
                assert answer["status"] in ("busy", "draining"), "until its word that it ends is here"
            assert far(base_url)["status"] == "draining"
        worker.ended()


def test_a_worker_that_is_told_to_stop_while_it_dials_ends_at_once():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        patience = JoinTimeouts(connect_s=600)
        with joined(f"http://127.0.0.1:{silent.getsockname()[1]}", timeouts=patience) as worker:
            connection, _ = silent.accept()
            worker.stop()
            connection.close()
        assert worker.notices == ["Stopping: this worker takes no more sessions; no sessions are running."]


def test_a_server_that_hangs_up_instead_of_answering_is_dialled_again():
    with socket.create_server(("127.0.0.1", 0)) as server, joined(f"http://127.0.0.1:{server.getsockname()[1]}") as worker:
        for _ in range(3):
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1 << 16).startswith(b"GET")
        worker.until("could not be joined: it hung up instead of answering.")


# What goes wrong


def raw_worker(base_url):
    return Client(base_url, PATH, authorization=f"Bearer {KEY}")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (frame(BINARY, b"\xff\xff\xff\xff"), "limit"),
        (frame(BINARY, b"\0\0\0\3\x93\xa4H"), "makes no sense"),
        (frame(BINARY, struct.pack("!I", 6) + b"\x91\xa4Shou"), "makes no sense"),
        (frame(TEXT, b"hello"), "binary"),
    ],
    ids=["oversized", "no frame", "truncated", "text"],
)
def test_garbage_closes_the_link_with_a_reason_and_the_server_goes_on(base_url, sent, reason):
    with raw_worker(base_url) as client:
        client.send(frame(BINARY, pack_frame(HELLO)))
        (welcome,) = FrameDecoder(to_worker_decoder).feed(client.next()[1])
        assert isinstance(welcome, JoinAccepted)
        client.send(sent)
        kind, payload = client.next()
        while kind != CLOSE:
            kind, payload = client.next()
        assert reason in payload[2:].decode()
    assert asked(base_url, "near") == (200, "Hi")


def test_frames_may_be_cut_to_messages_anywhere(base_url):
    with raw_worker(base_url) as client:
        for byte in pack_frame(HELLO):
            client.send(frame(BINARY, bytes((byte,))))
        (welcome,) = FrameDecoder(to_worker_decoder).feed(client.next()[1])
        assert isinstance(welcome, JoinAccepted)


def test_a_refusal_is_a_frame_before_the_close(base_url):
    with raw_worker(base_url) as client:
        client.send(frame(BINARY, pack_frame(Hello(version=99, abilities=Capabilities(), model="far"))))
        (told,) = FrameDecoder(to_worker_decoder).feed(client.next()[1])
        assert isinstance(told, JoinRefused)
        assert client.closed() == (1008, told.message[:123])


def test_a_worker_that_goes_in_the_middle_of_an_answer_fails_that_one_and_the_next_gets_another(base_url):
    with raw_worker(base_url) as client, contextlib.ExitStack() as held:
        client.send(frame(BINARY, pack_frame(HELLO)))
        client.next()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(asked(base_url)))
        thread.start()
        client.next()  # a conversation is opened
        worker = held.enter_context(joined(base_url))
        worker.until("Joined")
        client.socket.close()
        thread.join(20)
        assert asked(base_url) == (200, "Hi")
        assert answers == [(200, "Hi")], "what had not been told to anyone is told to another"


def test_whoever_waits_gets_no_place_with_workers_that_are_gone(base_url):
    """Also if several leave one after another, each with a client."""
    hello = Hello(version=VERSION, abilities=HELLO.abilities, model="far", slots=1)
    answers = []
    ask = lambda: threading.Thread(target=lambda: answers.append(asked(base_url)[0]))  # noqa: E731 - three times the same
    with raw_worker(base_url) as first, raw_worker(base_url) as second, contextlib.ExitStack() as held:
        served = []
        for worker in (first, second):
            worker.send(frame(BINARY, pack_frame(hello)))
            worker.next()
            served.append(ask())
            served[-1].start()
            while isinstance(told := next(FrameDecoder(to_worker_decoder).feed(worker.next()[1])), Heartbeat):
                pass
            worker.send(frame(BINARY, pack_frame(ConversationOpened(told.number))))
            worker.next()  # it is asked
        waiting = ask()
        waiting.start()
        until_measured(base_url, 'antiphon_queue_waiting{gen_ai_request_model="far"} 1.0', waiting)
        for worker, thread in zip((first, second), served, strict=True):
            worker.socket.close()
            thread.join(20)
        held.enter_context(joined(base_url))
        waiting.join(20)
    assert answers == [503, 503, 200]


def test_a_worker_joins_again_when_its_server_is_back(tmp_path):
    port = str(free_port())
    with contextlib.ExitStack() as held:
        worker = None
        for number in (1, 2):
            with serving(tmp_path, port) as server:
                worker = worker or held.enter_context(joined(f"http://127.0.0.1:{port}"))
                worker.until("Joined", number)
                assert asked(f"http://127.0.0.1:{port}") == (200, "Hi")
                server.send_signal(signal.SIGKILL if number == 1 else signal.SIGTERM)
                assert server.wait(10) == (-signal.SIGKILL if number == 1 else 0), "a worker keeps no server from stopping"
        worker.until("link", 1)


SERVER = """
import json, pathlib, sys
from antiphon.config.load import load
from antiphon.server.processes.run import serve
home, flags, key = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
config = load(flags, None, {"HOME": str(home), "ANTIPHON_WORKER_KEY": key}, home, system_file=home / "none.toml").config
serve(config, on_ready=lambda url, _is_open: print(url, flush=True))
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(home, port):
    flags = json.dumps({"server.port": int(port), "models": MODELS, "logging.level": "error", "store.url": "memory"})
    command = [sys.executable, "-c", SERVER, str(home), flags, KEY]
    with forks.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout.readline().startswith("http")
            yield server
        finally:
            server.kill()


# The program


@contextlib.contextmanager
def program(home, url, *options):
    """`antiphon worker`, joined."""
    command = [sys.executable, "-m", "antiphon", "worker", "--join", url, "--engine", "scripted", "--model", "far", *options]
    environ = os.environ | {"HOME": str(home), "ANTIPHON_WORKER_KEY": KEY}
    with forks.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            joined = json.loads(process.stderr.readline())
            assert joined["level"] == "info" and "Joined" in joined["message"]
            yield process
        finally:
            process.kill()


def test_a_worker_that_is_told_to_stop_finishes_what_it_is_saying(tmp_path, base_url):
    with program(tmp_path, base_url, "--option", "pace_ms=5", "--slots", "1") as process:
        text = "la " * 300
        answers = []
        thread = threading.Thread(target=lambda: answers.append(asked(base_url, text=text)))
        thread.start()
        wait_until_served(base_url, thread)
        process.send_signal(signal.SIGTERM)
        assert "no more sessions" in process.stderr.readline()
        thread.join(20)
        assert [status for status, _ in answers] == [200]
        assert process.wait(10) == 0


def test_a_worker_that_is_told_to_stop_cuts_short_what_takes_longer_than_it_may(tmp_path, base_url):
    with program(tmp_path, base_url, "--option", "pace_ms=50", "--drain-s", "0.2") as process:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(asked(base_url, text="la " * 1000)))
        thread.start()
        wait_until_served(base_url, thread)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        thread.join(20)
        assert [status for status, _ in answers] == [503]
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert [(line["level"], line["message"]) for line in lines[1:]] == [
            ("warning", "Draining: 1 session left."),
            ("warning", "Time is up: 1 session cut short."),
        ]


@pytest.mark.parametrize("workers", [60, pytest.param(500, marks=pytest.mark.long)])
def test_workers_that_come_and_go_leave_nothing_behind(base_url, workers):
    def come_and_go(count):
        for _ in range(count):
            with raw_worker(base_url) as client:
                client.send(frame(BINARY, pack_frame(HELLO)))
                client.next()
        until_measured(base_url, 'antiphon_workers{gen_ai_request_model="far",state="idle"} 0.0')
        gc.collect()
        everything = gc.get_objects()
        return sum(type(each) in (asyncio.Task, RemoteEngine) for each in everything) + len(os.listdir("/proc/self/fd"))

    come_and_go(20)
    before = come_and_go(5)
    assert come_and_go(workers) < before + workers // 4, "the last few may still be going"


def wait_until_served(base_url, asking):
    """Return when a request gets a slot of a worker."""
    until_measured(base_url, 'antiphon_queue_serving{gen_ai_request_model="far"} 1.0', asking)


def until_measured(base_url, line, asking=None):
    """Return when the metrics have that line, which is before the request is answered."""
    while asking is None or asking.is_alive():
        connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=20)
        connection.request("GET", "/metrics")
        told = connection.getresponse().read().decode()
        connection.close()
        if line in told:
            return
    raise AssertionError("it was over before it was seen")


def test_a_killed_program_is_withdrawn_and_the_next_one_answers(tmp_path, base_url):
    with program(tmp_path, base_url) as process:
        assert asked(base_url) == (200, "Hi")
        process.kill()
    with program(tmp_path, base_url):
        assert asked(base_url) == (200, "Hi")
