"""opencode, the program, on Chat Completions. It is 350 MB large, so it is used where it is installed, and not fetched."""

import json
import os
import shutil
import subprocess

import pytest

PROGRAM = os.environ.get("ANTIPHON_OPENCODE") or shutil.which("opencode")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no opencode here: npm install --global opencode-ai")


@pytest.fixture
def run(tmp_path):
    model = {"name": "parrot", "tool_call": True, "limit": {"context": 128_000, "output": 4096}}
    options = {"baseURL": os.environ["ANTIPHON_URL"], "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "antiphon", "options": options, "models": {"parrot": model}}
    config = {"provider": {"antiphon": provider}, "model": "antiphon/parrot", "small_model": "antiphon/parrot", "autoupdate": False}
    (tmp_path / "opencode.json").write_text(json.dumps(config))
    environ = os.environ | {"HOME": str(tmp_path), "PWD": str(tmp_path), "OPENCODE_CONFIG": str(tmp_path / "opencode.json")}
    environ |= {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    def say(*words):
        command = [PROGRAM, "run", "--model", "antiphon/parrot", "--format", "json", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return say


def said(events):
    return [event["part"]["text"] for event in events if event["type"] == "text"]


def test_an_answer(run):
    assert said(run("Hello"))[-1].startswith("You said:")


def test_a_command(run):
    events = run("use bash now")
    (used,) = [event["part"] for event in events if event["type"] == "tool_use"]
    assert (used["tool"], used["state"]["output"].strip()) == ("bash", "the shell was here")
    assert said(events)[-1].strip() == "The tool says the shell was here"
