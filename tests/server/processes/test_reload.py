"""A server that reloads its configuration: its models afterwards, and responses in progress."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from antiphon.runtime.service import Service
from antiphon.server.processes.run import HttpServer, background_server
from antiphon.stop_signals import has_terminal
from support.embeddings.tiny_model import write_tiny_model
from support.programs import forks
from support.server import plain_http
from support.server.config_file import Files, ask, model, names, reload

PATIENCE_S = 20


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def serve(files):
    """Starts a server of what the file says."""
    with contextlib.ExitStack() as stack:

        def start():
            return stack.enter_context(background_server(files.load(), load=files.load))

        yield start


def test_models_are_added_changed_and_removed(files, serve):
    files.write(model("a"), model("b"), model("c"))
    url = serve()
    files.write(model("d"), model("b", "I am another."), model("a"))
    status, report = reload(url)
    assert (status, report["added"], report["changed"], report["removed"]) == (200, ["d"], ["b"], ["c"])
    assert names(url) == ["d", "b", "a"]
    assert [ask(url, name) for name in "abcd"] == ["I am a.", "I am another.", "model_not_found", "I am d."]
    assert ask(url, None) == "I am d.", "the first one"
    assert reload(url)[1] == {"added": [], "changed": [], "removed": [], "problems": [], "settings": [], "restart": []}


MODEL_A = '[[models]]\nname = "a"\nengine = "scripted"'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[models]]\nname == 1", "antiphon.toml: is not valid TOML: Invalid value (at line 2, column 7)"),
        ('[[models]]\nname = "a"\n', "antiphon.toml:1: models[0].engine: is missing"),
        (
            '[server]\nprot = 1\n[[models]]\nname = "a"\nengine = "scripted"',
            "antiphon.toml:2: server.prot: there is no such setting; did you mean 'port'?",
        ),
        (
            '[[rewrites]]\nname = "r"\nkind = "spelling"\nmodel = "x"\n[[models]]\nname = "a"\nengine = "scripted"',
            "antiphon.toml:4: rewrites[0].model: there is no model 'x'. There is 'a'.",
        ),
        (
            '[[routing]]\ndefault = "x"\n[[models]]\nname = "a"\nengine = "scripted"',
            "antiphon.toml:2: routing[0].default: there is no model 'x'; there is 'a'",
        ),
        (
            f'[[routing]]\ndefault = "a"\nexamples = [{{category = "c", model = "a", texts = ["x"]}}]\n{MODEL_A}',
            "routing: The embedding model in all-minilm-l6-v2 can't be loaded",
        ),
        (
            '[[models]]\nname = "a"\nengine = "chat"\nbase_url = "http://127.0.0.1:9/v1"\nfallback = ["b"]',
            "antiphon.toml:5: The options of model 'a' are wrong: `fallback` names 'b', which is no model here.",
        ),
        (
            '[[prompts]]\nid = "pmpt_x"\ncontext = 1\n[[models]]\nname = "a"\nengine = "scripted"',
            "antiphon.toml:3: Prompt 'pmpt_x' (version 1): ",
        ),
    ],
)
def test_a_mistake_keeps_the_configuration_and_says_where_it_is(files, serve, text, problem):
    files.write(model("old"))
    url = serve()
    files.path.write_text(text)
    status, body = reload(url)
    assert (status, body["error"]["code"]) == (409, "invalid_configuration")
    assert problem in body["error"]["message"] and str(files.folder) not in body["error"]["message"]
    assert names(url) == ["old"] and ask(url, "old") == "I am old."


def test_a_model_that_can_not_start_leaves_the_former_one(files, serve):
    files.write(model("a"), model("b"))
    url = serve()
    files.write(model("a"), {"name": "b", "engine": "scripted", "script": "missing.toml"}, {"name": "c", "engine": "no-such-engine"})
    status, report = reload(url)
    assert status == 200 and [each["name"] for each in report["problems"]] == ["b", "c"]
    assert report["problems"][0]["message"] == "antiphon.toml:7: The script missing.toml can't be read: No such file or directory."
    assert "no-such-engine" in report["problems"][1]["message"]
    assert (ask(url, "b"), ask(url, "c")) == ("I am b.", "model_not_found")
    files.write(model("a"), model("b"))
    assert reload(url)[1]["problems"] == []


def test_settings_that_can_be_changed_are_and_the_others_are_named(files, serve):
    files.write(model("a"), responses={"obfuscation": True})
    url = serve()
    files.write(
        model("a"),
        responses={"obfuscation": False},
        server={"port": 9999, "connections": 10},
        rewrites=[{"name": "r", "kind": "rule", "rules": [{"pattern": "am", "replacement": "was"}]}],
        prompts=[{"id": "pmpt_guide", "instructions": "Be brief."}],
    )
    status, report = reload(url)
    assert (status, sorted(report["settings"])) == (200, ["prompts", "responses.obfuscation", "rewrites"])
    assert sorted(report["restart"]) == ["server.connections", "server.port"]
    assert ask(url, "a") == "I was a."
    _, _, body = plain_http.post(url, {"model": "a", "input": "x", "stream": True, "prompt": {"id": "pmpt_guide"}})
    assert b"obfuscation" not in body and b"response.completed" in body
    files.write(model("a"))
    reload(url)
    assert ask(url, "a") == "I am a."


def chosen(url, **fields):
    """The model that answers `auto`, and how it was chosen."""
    _, headers, body = plain_http.post(url, {"model": "auto", "input": "Who?", **fields})
    body = json.loads(body)
    return (body["model"], headers["antiphon-route"].split(";")[1].strip()) if not body.get("error") else body["error"]["code"]


TOOL = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}


def test_routes_come_change_and_go_with_their_models(files, serve):
    files.write(model("a"), model("b"))
    url = serve()
    assert chosen(url) == "model_not_found"
    files.write(model("a"), model("b"), routing=[{"default": "a", "rules": [{"model": "b", "when": {"has_tools": True}}]}])
    assert reload(url)[1]["settings"] == ["routing"]
    assert names(url) == ["a", "b", "auto"]
    assert (chosen(url), chosen(url, tools=[TOOL])) == (("a", "source=default"), ("b", "source=rule"))
    _, _, first = plain_http.post(url, {"model": "auto", "input": "Who?", "tools": [TOOL]})
    files.write(model("b"), model("c"), routing=[{"default": "c", "rules": [{"model": "b", "when": {"pattern": "hey"}}]}])
    assert reload(url)[1]["problems"] == []
    assert chosen(url, tools=[TOOL]) == ("c", "source=default")
    assert chosen(url, previous_response_id=json.loads(first)["id"]) == ("b", "source=conversation")
    files.write(model("b"), model("c"))
    reload(url)
    assert (names(url), chosen(url)) == (["b", "c"], "model_not_found")


def test_a_route_whose_model_can_not_start_goes_to_another(files, serve):
    files.write(model("a"))
    url = serve()
    broken = {"name": "b", "engine": "scripted", "script": "missing.toml"}
    files.write(model("a"), broken, routing=[{"default": "b", "rules": [{"model": "a", "when": {"has_tools": True}}]}])
    assert [each["name"] for each in reload(url)[1]["problems"]] == ["b"]
    assert chosen(url) == ("a", "source=default")
    files.write(model("a"), broken, routing=[{"default": "b"}])
    reload(url)
    assert chosen(url) == "model_not_found"


def test_models_that_make_vectors_come_and_go(files, serve, tmp_path):
    files.write(model("a"))
    url = serve()
    files.write(model("a"), {"name": "vectors", "engine": "embeddings", "path": str(write_tiny_model(tmp_path / "tiny"))})
    assert reload(url)[1]["added"] == ["vectors"]
    assert plain_http.post(url, {"model": "vectors", "input": "hello"}, "/v1/embeddings")[0] == 200
    assert ask(url, "vectors") == "unsupported_model"
    files.write(model("a"))
    assert reload(url)[1]["removed"] == ["vectors"]
    assert plain_http.post(url, {"model": "vectors", "input": "hello"}, "/v1/embeddings")[0] == 404


def upstreams(url):
    with urllib.request.urlopen(f"{url}/status") as reply:
        return {each["name"]: each for each in json.loads(reply.read())["upstreams"]}


def upstream_states(url):
    """The upstreams whose state is in the metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        return set(re.findall(r'^antiphon_upstream_state\{.*?upstream="(.*?)"', reply.read().decode(), re.MULTILINE))


def test_upstreams_of_an_unchanged_model_keep_their_state(files, serve):
    def pool(name, *ports, **fields):
        places = [{"base_url": f"http://127.0.0.1:{port}/v1", "name": f"{name}-{port}", "failures": 1, "rest_s": 600} for port in ports]
        return {"name": name, "engine": "chat", "quirks": "generic", "upstreams": places, **fields}

    files.write(model("a"), pool("b", 8, 9), pool("c", 8, 9))
    url = serve()
    assert (ask(url, "b"), ask(url, "c")) == ("upstream_unreachable", "upstream_unreachable")
    assert {each["state"] for each in upstreams(url).values()} == {"open"}
    files.write(pool("b", 8, 9), pool("c", 8, 9, fallback=["a"]), model("a"), pool("d", 7, 8))
    assert reload(url)[1]["changed"] == ["c"]
    states = {name: each["state"] for name, each in upstreams(url).items()}
    assert upstream_states(url) == {"b/b-8", "b/b-9", "c/c-8", "c/c-9", "d/d-7", "d/d-8"}
    assert states == {"b-8": "open", "b-9": "open", "c-8": "ready", "c-9": "ready", "d-7": "ready", "d-8": "ready"}
    assert ask(url, "c") == "I am a."
    files.write(pool("b", 8, 9), model("a", "I am another."), pool("c", 8, 9, fallback=["a"]))
    assert reload(url)[1]["changed"] == ["a"]
    assert ask(url, "c") == "I am another."
    assert upstream_states(url) == {"b/b-8", "b/b-9", "c/c-8", "c/c-9"}


def test_a_server_without_files_says_so(tmp_path):
    files = Files(tmp_path)
    files.write(model("a"))
    with background_server(files.load()) as url:
        status, body = reload(url)
    assert (status, body["error"]["code"]) == (409, "reload_unavailable")


def test_streams_under_way_end_well_while_models_come_and_go(files, serve):
    files.write(model("song", pace_ms=10))
    url = serve()

    def listen(name, has_begun):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            stream = client.responses.create(model=name, input="sing", stream=True)
            next(stream)
            has_begun.set()
            *_, event = stream
        return event.type, event.response.output_text

    def begin(pool, name):
        has_begun = threading.Event()
        streams.append(pool.submit(listen, name, has_begun))
        assert has_begun.wait(PATIENCE_S)

    streams = []
    with ThreadPoolExecutor(64) as pool:
        for _ in range(4):
            begin(pool, "song")
        for number in range(20):
            files.write(*([] if number % 3 == 0 else [model("song", f"Take {number}", pace_ms=10)]), model(f"other-{number}"))
            status, report = reload(url)
            assert (status, report["problems"]) == (200, [])
            assert ask(url, f"other-{number}") == f"I am other-{number}."
            if number % 6 == 1:
                begin(pool, "song")
        assert [stream.result() for stream in streams] == [("response.completed", "la " * 60)] * 8


def test_requests_in_a_loop_never_fail_while_their_model_is_changed(files, serve):
    files.write(model("a"))
    url = serve()
    is_over = threading.Event()

    def ask_on():
        answers = []
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            while not is_over.is_set():
                answers.append(client.responses.create(model="a", input="Who?").output_text)
        return answers

    with ThreadPoolExecutor(4) as pool:
        loops = [pool.submit(ask_on) for _ in range(4)]
        for number in range(12):
            files.write(model("a", f"I am number {number}."))
            assert reload(url)[1]["changed"] == ["a"]
        is_over.set()
        answers = [answer for loop in loops for answer in loop.result()]
    assert answers and all(re.fullmatch(r"I am (a|number \d+)\.", answer) for answer in answers)
    assert ask(url, "a") == "I am number 11."


PROGRAM = """
import pathlib, sys
from antiphon.config.load import load
from antiphon.server.processes import run, supervisor
home, processes = pathlib.Path(sys.argv[1]), int(sys.argv[2])
flags = {"server.port": 0, "server.processes": processes}
def read():
    return load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config
serve = run.serve if processes == 1 else supervisor.serve
serve(read(), on_ready=lambda url, _access: print(url, flush=True), load=read)
"""


@contextlib.contextmanager
def own_process(folder, processes):
    """A server in a process of its own, without a terminal; the process and its address."""
    command = [sys.executable, "-c", PROGRAM, str(folder), str(processes)]
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with forks.Popen(command, children=forks.shared_by(processes), **more) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_hangup_without_a_terminal_and_the_route_reach_every_process(files, processes):
    files.write(model("a"), model("song", pace_ms=10))
    with own_process(files.folder, processes) as (process, url):
        streams = [begun_song(url) for _ in range(2)]
        files.write(model("b"))
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE_S
        while {ask(url, "b") for _ in range(12)} != {"I am b."}:  # connections go to any process
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert {ask(url, "a") for _ in range(12)} == {"model_not_found"}
        for stream in streams:
            with stream:
                assert b"event: response.completed" in stream.read()
        files.write(model("b", "I am better."), server={"drain_s": 3})
        status, report = reload(url)
        assert (status, report["changed"], report["restart"]) == (200, ["b"], ["server.drain_s"])
        assert {ask(url, "b") for _ in range(12)} == {"I am better."}
        files.path.write_text("[[models]]")
        status, body = reload(url)
        assert (status, body["error"]["code"]) == (409, "invalid_configuration") and ask(url, "b") == "I am better."
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def begun_song(url):
    """A stream that has begun."""
    body = json.dumps({"model": "song", "input": "sing", "stream": True}).encode()
    stream = urllib.request.urlopen(urllib.request.Request(f"{url}/v1/responses", body, {"content-type": "application/json"}))
    assert b"response.created" in stream.readline()
    return stream


@pytest.fixture
def heeds_hangups():
    """This process doesn't ignore SIGHUP, as it does below `nohup`."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.mark.skipif(has_terminal(), reason="with a terminal, a hangup ends the server")
def test_a_hangup_before_the_server_accepts_is_a_reload(files, heeds_hangups):
    async def reloaded():
        service = Service(files.load(), print, load=files.load)
        await service.open()
        server = HttpServer(service, lambda: None)
        with server.capture_signals():
            files.write(model("b"))
            signal.raise_signal(signal.SIGHUP)
            await asyncio.sleep(0)  # the signal's handler has the loop begin it
            await asyncio.wait(server._reload_tasks)
        found = [each.name for each in service.registry.all()]
        await service.close()
        return found

    files.write(model("a"))
    assert asyncio.run(reloaded()) == ["b"]
