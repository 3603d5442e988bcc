"""The log of `antiphon serve` without a terminal: every line is a JSON object, from any source."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from support.programs import forks

CONFIG = "[server]\nport = 0\n[[models]]\nname = 'parrot'\nengine = 'scripted'\n"

NOISE = """
import logging, os, subprocess, sys, threading, warnings

IS_CHILD = "child_main" in " ".join(sys.orig_argv)
has_begun = False


class Leaky:
    def __del__(self):
        raise ValueError("unraisable")


def make_noise():
    os.write(2, b"native: loading\\n")
    os.write(2, b"antiphon: fetching weights: 10 %\\n")
    os.write(2, b"half ")
    os.write(2, b"a line\\n")
    os.write(2, b"no UTF-8: \\xff\\n{not json}\\n[1]\\n\\n")
    warnings.warn("old thing", FutureWarning)
    logging.getLogger("somelib").error("it broke: %s", 1)
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("somelib").exception("with a reason")
    Leaky()
    thread = threading.Thread(target=lambda: {}["lost key"])
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-c", "import os; os.write(2, b'grandchild speaks\\\\n'); raise OSError('of a child')"])


def on_event(event, arguments):
    global has_begun
    if not has_begun and event == ("socket.__new__" if IS_CHILD else "socket.bind"):
        has_begun = True
        make_noise()


if "-m" in sys.orig_argv or IS_CHILD:
    sys.addaudithook(on_event)
"""


@contextlib.contextmanager
def serving(home, *arguments, config=CONFIG):
    """The program as a process, with noise in it and in its children; yields it and its address."""
    (home / "antiphon.toml").write_text(config)
    (home / "sitecustomize.py").write_text(NOISE)
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(home), *sys.path])}
    command = [sys.executable, "-m", "antiphon", "serve", *arguments]
    with subprocess.Popen(
        command, cwd=home, env=environ, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            lines = list(itertools.takewhile(lambda line: line != "Ctrl-C stops it.\n", process.stdout))
            yield process, lines[0].split()[-1] if lines else ""
        finally:
            process.kill()


def log_of(process):
    lines = process.communicate(timeout=60)[1].splitlines()
    events = [json.loads(line) for line in lines]
    assert all(isinstance(event, dict) and {"event", "level", "timestamp"} <= event.keys() for event in events)
    return events


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_every_line_is_a_json_object(tmp_path, processes):
    with serving(tmp_path, "--processes", str(processes)) as (process, base_url):
        urllib.request.urlopen(f"{base_url}/v1/models", timeout=30).close()
        process.send_signal(signal.SIGTERM)
        events = log_of(process)
        assert process.returncode == 0
    messages = [str(event.get("message", "")) for event in events]
    sources = 1 if processes == 1 else 3  # the supervisor, too
    for message in ("native: loading", "half a line", "no UTF-8: \N{REPLACEMENT CHARACTER}", "{not json}", "[1]", "grandchild speaks"):
        assert messages.count(message) == sources, message
    for part in ("FutureWarning: old thing", "it broke: 1", "ValueError: unraisable", "KeyError: 'lost key'", "OSError: of a child"):
        assert sum(part in message for message in messages) == sources, part
    notes = [event["level"] for event in events if (event["event"], event.get("message")) == ("note", "fetching weights: 10 %")]
    assert notes == ["info"] * sources  # what the program itself says warns of nothing
    exceptions = [str(event.get("exception", event.get("message", ""))) for event in events]
    assert sum("ZeroDivisionError" in text for text in exceptions) == sources
    (traceback,) = {message for message in messages if message.endswith("OSError: of a child")}
    assert traceback.startswith("Traceback (most recent call last):\n  File ")
    assert [(event["event"], event["path"]) for event in events if "path" in event] == [("request", "/v1/models")]


def test_why_it_can_not_start_is_a_json_object_too(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        with serving(tmp_path, "--port", str(other.getsockname()[1])) as (process, _):
            events = log_of(process)
            assert process.returncode == 1
    (failure,) = [event for event in events if event["event"] == "failure"]  # what a child wrote may come behind it
    assert failure["level"] == "error" and "Can't listen on 127.0.0.1" in failure["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["serve"], "There is no engine 'zzz'"),
        (["worker", "--join", "ws://127.0.0.1:1", "--engine", "zzz", "--model", "m"], "There is no engine 'zzz'"),
        (["worker", "--join", "ws://127.0.0.1:1", "--engine", "scripted", "--model", "m", "--option", "nope=1"], "nope"),
    ],
)
def test_mistakes_in_arguments_and_configuration_stay_plain_text(tmp_path, arguments, told):
    (tmp_path / "antiphon.toml").write_text("[[models]]\nname = 'm'\nengine = 'zzz'\n")
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "ANTIPHON_WORKER_KEY": "k" * 32}
    command = [sys.executable, "-m", "antiphon", *arguments]
    ended = forks.run(command, cwd=tmp_path, env=environ, text=True, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("antiphon: ") and told in ended.stderr


def test_for_people_it_stays_as_it_is(tmp_path):
    with serving(tmp_path, config=CONFIG + "[logging]\nformat = 'console'\n") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert "\nhalf a line\n" in process.communicate(timeout=60)[1]
