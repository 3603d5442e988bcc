"""A server that reloads its configuration: its tools afterwards, and responses in progress."""

import contextlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from antiphon.server.processes.run import background_server
from support.server import plain_http
from support.server.config_file import Files, reload

PATIENCE_S = 30

FUNCTIONS = """
import os, pathlib, time

def version() -> str:
    "The version of this file, and the process that has loaded it."
    return "{version} of " + str(os.getppid())

def wait(begun: str, release: str) -> str:
    "Waits for a file."
    pathlib.Path(begun).touch()
    while not pathlib.Path(release).exists():
        time.sleep(0.01)
    return version()
"""


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


class Stage:
    """A server whose model calls the functions of a file."""

    def __init__(self, folder):
        self.folder, self.files = folder, Files(folder)
        self.file, self.begun, self.release = folder / "ops.py", folder / "begun", folder / "release"
        waiting = {"call": "wait", "namespace": "ops", "arguments": {"begun": str(self.begun), "release": str(self.release)}}
        self.model = {
            "name": "m",
            "engine": "scripted",
            "answers": [
                {"to": "result", "say": "{input}"},
                {"when": "wait", "lines": [waiting]},
                {"when": "web", "lines": [{"call": "web_search", "arguments": {"query": "owl"}}]},
                {"when": "", "lines": [{"call": "version", "namespace": "ops", "arguments": {}}]},
            ],
        }

    def configure(self, version, **tools):
        self.file.write_text(FUNCTIONS.replace("{version}", version))
        functions = {"label": "ops", "file": str(self.file), "read_only": ["wait", "version"]}
        sandbox = {"tools.code_interpreter": {"sandbox": "off"}, "store": {"url": "memory"}}
        self.files.write(self.model, **sandbox, **{"tools.functions": [functions]} | tools)

    @contextlib.contextmanager
    def serve(self):
        with background_server(self.files.load(), load=self.files.load) as url:
            yield url

    def ask(self, url, input="Which version?", type="mcp"):
        tool = {"type": type} | ({"server_label": "ops", "require_approval": "never"} if type == "mcp" else {})
        status, _, body = plain_http.post(url, {"model": "m", "input": input, "tools": [tool]})
        answer = json.loads(body)
        if status != 200:
            return answer["error"]["message"]
        last = answer["output"][-1]
        return last["content"][0]["text"] if last["type"] == "message" else last["type"]


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lives(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_file_of_functions_is_read_again_and_a_call_under_way_ends_with_what_it_began_with(stage):
    stage.configure("first")
    with stage.serve() as url, ThreadPoolExecutor() as threads:
        before = stage.ask(url)
        assert before.startswith("first of ")
        assert reload(url)[1]["settings"] == []
        assert stage.ask(url) == before, "nothing has changed, so the process is the same"
        waiting = threads.submit(stage.ask, url, "Now wait.")
        until(stage.begun.exists)
        stage.configure("second version")
        status, report = reload(url)
        assert (status, report["settings"], report["restart"]) == (200, ["tools.functions"], [])
        after = stage.ask(url)
        assert after.startswith("second version of ")
        assert not waiting.done() and lives(int(before.split()[-1]))
        stage.release.touch()
        assert waiting.result(PATIENCE_S) == before
        until(lambda: not lives(int(before.split()[-1])))
        assert stage.ask(url) == after


def test_tools_come_and_go(stage):
    (stage.folder / "pages").mkdir()
    (stage.folder / "pages" / "owls.html").write_text("<title>Owls</title><p>The barn owl hears a mouse.</p>")
    folders = [{"path": str(stage.folder / "pages"), "url": "https://birds.example/"}]
    stage.configure("first")
    with stage.serve() as url:
        assert stage.ask(url, "web", "web_search") == "function_call", "the server has no such tool"
        stage.configure("first", **{"tools.web_search": {"provider": "local", "folders": folders}, "tools": {"call_s": 77}})
        assert set(reload(url)[1]["settings"]) == {"tools.web_search", "tools.call_s", "tools.functions"}
        assert "hears a mouse" in stage.ask(url, "web", "web_search")
        stage.configure("first", **{"tools.functions": []})
        assert set(reload(url)[1]["settings"]) == {"tools.web_search", "tools.call_s", "tools.functions"}
        assert "'ops'" in stage.ask(url)


def test_a_mistake_in_a_tool_keeps_all_as_it_was(stage):
    stage.configure("first")
    with stage.serve() as url:
        stage.model["name"] = "other"
        missing = [{"path": str(stage.folder / "none"), "url": "https://birds.example/"}]
        stage.configure("second", **{"tools.web_search": {"provider": "local", "folders": missing}})
        status, answer = reload(url)
        assert status == 409
        assert answer["error"]["message"] == "The configuration stays as it was. `tools.web_search.folders`: 'none' is no folder."
        assert stage.ask(url).startswith("second of "), "the function's process had not begun"
