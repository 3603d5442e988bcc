"""A server whose embedded models have processes of their own, and what its clients see when one is killed."""

import os
import signal
from pathlib import Path

import pytest

from antiphon.server.processes.run import background_server
from support.server.raw_http import ask, connect, until
from support.server.scripted_server import configured

pytestmark = pytest.mark.weights

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
WEIGHTS = Path(os.environ.get("ANTIPHON_MODELS") or CACHE / "antiphon" / "models")
SMOL = {"engine": "local", "model": "smollm2-135m-instruct", "context": 1024, "threads": 1}
LONG = {"stream": True, "text": "Write down all numbers from one to ten thousand in words.", "temperature": 0}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with background_server(configured(home, {"one": SMOL, "other": SMOL}, models_dir=str(WEIGHTS), **{"logging.level": "error"})) as url:
        yield url


def children():
    """The processes of embedded models that are ours."""
    mine = Path(f"/proc/{os.getpid()}/task")
    pids = [int(pid) for task in mine.iterdir() for pid in (task / "children").read_text().split()]
    return [pid for pid in pids if b"workers.child_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_killed_model_fails_its_own_answer_and_no_other_and_answers_again(base_url):
    with connect(base_url) as one, connect(base_url) as other:
        one.sendall(ask("one", **LONG, max_output_tokens=120))
        other.sendall(ask("other", **LONG, max_output_tokens=40))
        until(one, b"output_text.delta")
        until(other, b"output_text.delta")
        killed, survivor = sorted(children())
        os.kill(killed, signal.SIGKILL)
        assert b'"code":"server_error"' in until(one, b"event: response.failed")
        assert b"response.failed" not in until(other, b'"usage":{')
    with connect(base_url) as again:
        again.sendall(ask("one", max_output_tokens=16))
        assert b" 200 " in until(again, b"\r\n")
    assert survivor in children()
    assert killed not in children()
    assert len(children()) == 2
