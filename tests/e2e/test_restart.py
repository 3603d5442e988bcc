"""The whole program as its users run it: a process of its own, the official client, and a death in the middle."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from support.programs import forks
from support.server.raw_http import POLL_S


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(home: Path, models: str, *, warms_up: bool = False):
    """`antiphon serve` on a free port; its process and the official client for it."""
    (home / "antiphon.toml").write_text(f"{models}[speech]\nwarm_up = {str(warms_up).lower()}\n")
    port = free_port()
    command = [sys.executable, "-m", "antiphon", "serve", "--port", str(port)]
    environ = os.environ | {"ANTIPHON_HOME": str(home / "data"), "XDG_CONFIG_HOME": str(home / "config")}
    with forks.Popen(command, cwd=home, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while f":{port}" not in (line := process.stdout.readline()):
                assert line, process.stderr.read()
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
                yield process, client
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=40)
            process.kill()


SLOW = '[[models]]\nname = "slow"\nengine = "scripted"\npace_ms = 5\nanswers = [{ lines = [{ text = "la ", repeat = 100000 }] }]\n'


def test_a_response_whose_server_was_killed_is_failed_and_readable_after_the_next_start(tmp_path):
    with serving(tmp_path, SLOW) as (process, client):
        stream = client.responses.create(model="slow", input="sing", stream=True)
        response_id = next(iter(stream)).response.id
        process.kill()
        process.wait()
    with serving(tmp_path, SLOW) as (_, client):
        response = client.responses.retrieve(response_id)
        assert response.status == "failed"
        assert "before it was finished" in response.error.message


def texts(client, conversation_id):
    return [item.content[0].text for item in client.conversations.items.list(conversation_id, order="asc")]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_conversation_whose_server_was_killed_is_free_and_has_whole_turns_only(tmp_path, request, kind):
    models = SLOW + '[[models]]\nname = "parrot"\nengine = "scripted"\nanswers = [{ say = "You said: {input}" }]\n'
    if kind == "postgresql":
        models = f'[store]\nurl = "{request.getfixturevalue("postgres").new_database()}"\n{models}'
    with serving(tmp_path, models) as (process, client):
        id = client.conversations.create(metadata={"a": "b"}).id
        first = client.responses.create(model="parrot", input="Hi", conversation=id)
        # Without a name, it would be closed here.
        stream = client.responses.create(model="slow", input="sing", conversation=id, stream=True)
        next(iter(stream))
        with pytest.raises(openai.BadRequestError, match="Another process"):
            client.responses.create(model="parrot", input="no", conversation=id)
        process.kill()
        process.wait()
    with serving(tmp_path, models) as (_, client):
        assert client.conversations.retrieve(id).metadata == {"a": "b"}
        assert texts(client, id) == ["Hi", "You said: Hi"]
        assert client.responses.retrieve(first.id).conversation.id == id
        deadline = time.monotonic() + 60
        while True:  # PostgreSQL notices a moment later that the killed server is gone
            try:
                client.responses.create(model="parrot", input="again", conversation=id)
                break
            except openai.BadRequestError as error:
                assert error.code == "conversation_locked" and time.monotonic() < deadline
        assert texts(client, id) == ["Hi", "You said: Hi", "again", "You said: again"]


def test_sigterm_lets_a_stream_finish_and_exits_cleanly(tmp_path):
    models = '[[models]]\nname = "slow"\nengine = "scripted"\npace_ms = 5\n'
    with serving(tmp_path, models) as (process, client):
        stream = client.responses.create(model="slow", input="one two three four five six", stream=True)
        kinds = [next(iter(stream)).type]
        process.send_signal(signal.SIGTERM)
        kinds += [event.type for event in stream]
        assert kinds[-1] == "response.completed"
        assert process.wait(timeout=40) == 0


def readiness(url):
    try:
        with urllib.request.urlopen(url) as reply:
            return json.loads(reply.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return json.loads(refusal.read())


@pytest.mark.long
def test_ready_is_told_once_models_are_there(tmp_path):
    with serving(tmp_path, SLOW, warms_up=True) as (_, client):
        url, until_s = str(client.base_url).replace("/v1/", "/readyz?wait_for=speech"), time.monotonic() + 120
        while (told := readiness(url))["status"] == "warming_up":
            assert time.monotonic() < until_s
            time.sleep(POLL_S)
        assert told["status"] == "ok"
