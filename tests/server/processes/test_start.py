"""A server answers while its models are being fetched: what it says, who waits, and what happens if they can't be had."""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from antiphon.errors import ServerError
from antiphon.runtime.access.keys import make_key
from antiphon.stores.sql.store import SqlStore
from antiphon.weights.catalogue import CatalogueModel, ModelFile
from support.programs import forks
from support.server.early_server import starting
from support.server.raw_http import PATIENCE_S, POLL_S
from support.server.realtime_peer import connected
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}}
ASK = {"model": "parrot", "input": "Hi"}
WEIGHTS = CatalogueModel(
    name="tiny",
    kind="llm",
    description="",
    licence="Apache-2.0",
    homepage="",
    files=(
        ModelFile(path="a.gguf", size_bytes=600, sha256="0" * 64, sources=()),
        ModelFile(path="b.gguf", size_bytes=400, sha256="0" * 64, sources=()),
    ),
)


@pytest.fixture
def anyio_backend():
    return "asyncio"


def of(tmp_path, **settings):
    return configured(tmp_path, MODELS, **{"logging.level": "error", **settings})


def ask(url, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    payload = None if body is None else json.dumps(body)
    connection.request(method, path, payload, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, answer.headers, json.loads(content) if is_json and content else content


class Fetch:
    """Weights that come as a test says."""

    def __init__(self, config, error=None):
        self.config, self.error = config, error
        self.has_begun, self.may_end, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self, watch):
        self.calls += 1
        if self.error is not None and self.calls == 1:
            with watch.fetching(WEIGHTS):
                raise self.error
        with watch.fetching(WEIGHTS):
            for file, done in zip(WEIGHTS.files, (600, 100), strict=True):
                with watch.fetching_file(WEIGHTS, file, lambda *_progress: None) as report:
                    report(f"fetching {file.path}", done, file.size_bytes)
                    report(f"verifying {file.path}", 7, file.size_bytes)
                    if done == 100:
                        self.has_begun.set()
                        while not self.may_end.wait(0.01):
                            report(f"fetching {file.path}", done, file.size_bytes)
        return self.config


def test_while_models_are_fetched_the_server_says_how_far_it_is(tmp_path):
    fetch = Fetch(of(tmp_path))
    with starting(fetch.config, fetch) as (url, early):
        fetch.has_begun.wait()
        status, headers, told = ask(url, "GET", "/readyz")
        assert (status, told["status"], told["reason"]) == (503, "starting", "fetching")
        (weights,) = told["weights"]
        assert weights["bytes_per_s"] is None or weights["bytes_per_s"] >= 0
        assert {name: weights[name] for name in ("name", "for", "state", "bytes", "bytes_total")} == {
            "name": "tiny",
            "for": "answers",
            "state": "fetching",
            "bytes": 700,
            "bytes_total": 1000,
        }
        assert headers["x-request-id"].startswith("req_") and ask(url, "GET", "/health")[0] == 503
        assert ask(url, "GET", "/livez")[0] == ask(url, "GET", "/version")[0] == 200
        state = ask(url, "GET", "/console/state")[2]
        assert (state["ready"], state["needs_key"], state["reason"]) == (False, False, "fetching")
        assert state["weights"][0].items() >= {"name": "tiny", "bytes": 700}.items()
        assert ask(url, "GET", "/", accept="text/html")[1].get_content_type() == "text/html"
        assert ask(url, "GET", "/console/assets/none.js")[0] == 404
        fetch.may_end.set()
        early.is_ready.wait()
        assert ask(url, "GET", "/readyz")[2] == {"status": "ok", "warm_up": "off"}
        state = ask(url, "GET", "/console/state")[2]
        assert (state["ready"], state["weights"], state["reason"]) == (True, [], None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_comes_early_waits_and_is_answered(tmp_path, stream):
    fetch = Fetch(of(tmp_path))
    with starting(fetch.config, fetch) as (url, _), ThreadPoolExecutor() as pool:
        fetch.has_begun.wait()
        large = ASK | {"input": "x" * (1 << 20)}
        answers = [pool.submit(ask, url, "POST", "/v1/responses", body | {"stream": stream}) for body in (ASK, large)]
        time.sleep(POLL_S)
        assert not any(answer.done() for answer in answers)
        fetch.may_end.set()
        for answer in answers:
            status, _, body = answer.result()
            assert status == 200 and (b"response.completed" in body if stream else body["status"] == "completed")


async def test_a_session_that_is_opened_early_begins_when_the_server_is_ready(tmp_path):
    fetch = Fetch(of(tmp_path))
    with starting(fetch.config, fetch) as (url, early):
        fetch.has_begun.wait()
        threading.Timer(0.2, fetch.may_end.set).start()
        async with connected(url) as peer:
            assert (await peer.hear())["type"] == "session.created"
            assert early.is_ready.is_set()


def test_who_has_waited_long_enough_is_told_when_to_come_again(tmp_path):
    fetch = Fetch(of(tmp_path, **{"server.start_wait_s": 0.1, "logging.level": "info"}))
    with starting(fetch.config, fetch) as (url, _), capture_logs([merge_contextvars]) as lines:
        fetch.has_begun.wait()
        status, headers, body = ask(url, "POST", "/v1/responses", ASK)
        assert (status, body["error"]["code"]) == (503, "model_loading") and int(headers["retry-after"]) >= 1
        until = time.monotonic() + PATIENCE_S
        while not (written := [line for line in lines if line["event"] == "request"]):  # it follows the response
            assert time.monotonic() < until
            time.sleep(POLL_S)
        (line,) = written
        assert line["ms"] > 0 and line["request_id"] == headers["x-request-id"]
        assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/responses", 503)
        with (
            pytest.raises(openai.InternalServerError, match="still fetching its models"),
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            client.models.list()


def test_a_page_of_another_site_learns_nothing(tmp_path):
    fetch = Fetch(of(tmp_path))
    with starting(fetch.config, fetch) as (url, _):
        fetch.has_begun.wait()
        for path in ("/console/state", "/version", "/", "/v1/models"):
            assert ask(url, "GET", path, origin="https://evil.example")[0] == 403
            assert ask(url, "GET", path, host="evil.example")[0] == 421
        assert ask(url, "GET", "/readyz", host="evil.example")[0] == 503


def test_where_a_key_is_needed_no_model_is_named(tmp_path):
    config = of(tmp_path)

    async def add_key():
        store = SqlStore(str(config.database_url))
        await store.open()
        await store.keys.add(make_key("laptop", now=1)[0])
        await store.close()

    asyncio.run(add_key())
    fetch = Fetch(config, ServerError("tiny is not there, nor at /secret/folder.", code="weights_unavailable"))
    fetch.config = config = config.model_copy(update={"server": config.server.model_copy(update={"retry_start": True})})
    with starting(config, fetch) as (url, early):
        while not early.notices:
            time.sleep(POLL_S)
        state, ready = ask(url, "GET", "/console/state")[2], ask(url, "GET", "/readyz")[2]
        assert state["needs_key"] is True and state["weights"][0]["name"] is None
        assert "tiny" not in json.dumps([state, ready]) and "secret" not in json.dumps([state, ready])
        assert "tiny is not there" in early.notices[0]


def test_weights_that_cannot_be_had_end_the_server_unless_it_is_to_stay(tmp_path):
    error = ServerError("tiny could not be fetched to /some/folder.", code="weights_unavailable")
    fetch = Fetch(of(tmp_path, **{"server.retry_start": False}), error)
    with starting(fetch.config, fetch) as (_, early):
        early.is_ready.wait()
    assert early.outcome is error and fetch.calls == 1


def test_a_server_that_stays_says_why_and_tries_again(tmp_path):
    error = ServerError("tiny could not be fetched to /some/folder/tiny.", code="weights_unavailable")
    fetch = Fetch(of(tmp_path, **{"server.retry_start": True, "server.start_wait_s": 0}), error)
    with starting(fetch.config, fetch) as (url, early):
        while (told := ask(url, "GET", "/readyz")[2])["reason"] != "failed":
            time.sleep(POLL_S)
        assert told["message"] == "tiny could not be fetched to tiny." and told["weights"][0]["state"] == "failed"
        assert ask(url, "GET", "/console/state")[2]["message"] == told["message"]
        assert "can't fetch its models" in ask(url, "GET", "/v1/models")[2]["error"]["message"]
        fetch.may_end.set()
        early.is_ready.wait()
        assert ask(url, "POST", "/v1/responses", ASK)[0] == 200
    assert fetch.calls == 2 and "Trying again in 1 s" in early.notices[0]


def test_another_error_ends_the_server_and_tells_who_waits(tmp_path):
    fetch = Fetch(of(tmp_path, **{"server.retry_start": True}))
    error = ServerError("The engine can't start.")

    def prepare(watch):
        fetch(watch)
        raise error

    with starting(fetch.config, prepare) as (url, early), ThreadPoolExecutor() as pool:
        fetch.has_begun.wait()
        answer = pool.submit(ask, url, "POST", "/v1/responses", ASK)
        time.sleep(POLL_S)
        fetch.may_end.set()
        assert answer.result()[2]["error"]["code"] == "model_loading"
        early.is_ready.wait()
    assert early.outcome is error


def test_a_server_that_is_stopped_early_ends_its_download(tmp_path):
    fetch = Fetch(of(tmp_path))
    with starting(fetch.config, fetch) as (_, early):
        fetch.has_begun.wait()
    assert early.outcome is not None and not fetch.may_end.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "weights"]


def test_who_may_not_be_reached_is_not_even_while_it_starts(tmp_path):
    fetch = Fetch(of(tmp_path, **{"server.host": "0.0.0.0"}))
    with starting(fetch.config, fetch) as (_, early):
        early.is_ready.wait()
    assert "Refusing to listen on 0.0.0.0" in str(early.outcome) and fetch.calls == 0


PROGRAM = """
import pathlib, sys, time
from antiphon.config.load import load
from antiphon.errors import ServerError
from antiphon.server.processes import run, supervisor
from antiphon.weights.catalogue import CatalogueModel, ModelFile
home, processes = pathlib.Path(sys.argv[1]), int(sys.argv[2])
flags = {"server.port": 0, "server.processes": processes, "models": [], "logging.level": "error", "store.timeout_s": 120}
config = load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config
final = load({**flags, "models": [{"name": "parrot", "engine": "scripted"}]}, None, {"HOME": str(home)}, home).config
tiny = CatalogueModel(name="tiny", kind="llm", description="", licence="", homepage="", files=(
    ModelFile(path="a.gguf", size_bytes=1000, sha256="0" * 64, sources=()),))

def load_again():
    more = [{"name": name, "engine": "scripted"} for name in ("parrot", "second")]
    return load({**flags, "models": more}, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config

def prepare(watch):
    try:
        return fetch(watch)
    finally:
        (home / "ended").touch()

def fetch(watch):
    with watch.fetching(tiny), watch.fetching_file(tiny, tiny.files[0], lambda *_progress: None) as report:
        while not (home / "go").exists():
            report("fetching a.gguf", 300, 1000)
            time.sleep(0.05)
    if (home / "go").read_text() == "fail":
        raise ServerError("tiny could not be fetched.", code="weights_unavailable")
    return final

serve = run.serve if processes == 1 else supervisor.serve
try:
    say = lambda line: print(line, flush=True)
    serve(config, load=load_again, prepare=prepare, on_open=say, on_ready=lambda *_: say("ready"))
except ServerError as error:
    print(error.message, flush=True)
    sys.exit(1)
"""


def first_progress(url):
    """What `/readyz` says once some bytes have come, as far as the process knows that answers."""
    while True:
        told = ask(url, "GET", "/readyz")[2]
        if any(each["bytes"] for each in told["weights"]):
            return told
        time.sleep(POLL_S)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("outcome", ["serve", "fail"])
def test_all_processes_say_how_far_the_weights_are(tmp_path, processes, outcome):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(processes)]
    children = forks.shared_by(processes)
    with forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, children=children) as process:
        try:
            url = process.stdout.readline().strip()
            for _ in range(8):  # some come to each process
                told = first_progress(url)
                assert (told["status"], told["weights"][0]["bytes"], told["weights"][0]["bytes_total"]) == ("starting", 300, 1000)
            with ThreadPoolExecutor() as pool:
                early = [pool.submit(ask, url, "POST", "/v1/responses", ASK) for _ in range(8)]
                time.sleep(POLL_S)
                (tmp_path / "go").write_text(outcome)
                if outcome == "serve":
                    assert process.stdout.readline() == "ready\n"
                    assert [answer.result()[0] for answer in early] == [200] * 8
                else:
                    assert process.stdout.readline() == "tiny could not be fetched.\n"
                    assert process.wait() == 1
                    assert all(answer.exception() or answer.result()[0] == 503 for answer in early)
        finally:
            process.kill()


@pytest.mark.parametrize(("processes", "code"), [(1, -signal.SIGTERM), (2, 0)])
def test_a_signal_ends_the_download_before_it_ends_the_server(tmp_path, processes, code):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(processes)]
    with forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, children=forks.shared_by(processes)) as process:
        try:
            first_progress(process.stdout.readline().strip())
            process.send_signal(signal.SIGTERM)
            assert process.wait() == code
            assert (tmp_path / "ended").exists()
        finally:
            process.kill()


def test_a_reload_that_comes_while_models_are_fetched_is_made_afterwards(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "2"]
    with forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, children=forks.shared_by(2)) as process:
        try:
            url = process.stdout.readline().strip()
            first_progress(url)
            process.send_signal(signal.SIGHUP)
            (tmp_path / "go").write_text("serve")
            assert process.stdout.readline() == "ready\n"
            deadline = time.monotonic() + PATIENCE_S
            while any(len(ask(url, "GET", "/v1/models")[2]["data"]) < 2 for _ in range(12)):  # connections go to any process
                assert time.monotonic() < deadline
                time.sleep(POLL_S)
        finally:
            process.kill()
