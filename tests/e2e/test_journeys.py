"""The functions that a token, an audio chunk and a queued client pass through are those in `docs/guide/architecture.md`."""

import asyncio
import contextlib
import json
import os
import re
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from antiphon.config.load import load
from antiphon.server.processes.run import background_server
from support.engines.upstreams import DONE, STREAM_HEAD, Server, chunk, event
from support.journeys import Journeys, file_of
from support.programs import forks
from support.server.aloud import DEAF, WEIGHTS, append, recording, silence
from support.server.minicpmo_peer import BUZZ, SILENCE, opened
from support.server.realtime_peer import connected

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "architecture.md"
TIMEOUT_S = 60
KEY = "a key of workers"


def written(title):
    """The functions of a journey as the page lists them."""
    section = PAGE.read_text().partition(f"### {title}\n")[2].partition("\n#")[0]
    return re.findall(r"^\d+\. `([\w/.]+:\w+)`", section, re.MULTILINE)


def by_file(journey):
    """The first function in each file; not those of `audio.py`, which anybody may call."""
    first = {}
    for name in journey:
        first.setdefault(file_of(name), name)
    return [name for file, name in first.items() if file != "audio.py" and "<" not in name]


def is_in(steps, journey):
    """Whether all steps are made in their order, whatever lies in between."""
    rest = iter(journey)
    return bool(steps) and all(step in rest for step in steps)


def room_of(step):
    return file_of(step).partition("/")[0]


def check(title, journeys):
    """What the page says happens in one of them, which enters no other room."""
    steps = written(title)
    found = [journey for journey in journeys.seen if is_in(steps, journey)]
    assert found, title + "\n" + "\n\n".join("\n".join(by_file(journey)) for journey in sorted(journeys.seen, key=len)[-3:])
    rooms = {room_of(step) for step in steps} | {"audio.py", "engine_api", "errors.py", "records.py"}  # what any room may call
    strays = [[step for step in journey if room_of(step) not in rooms] for journey in found]
    assert [] in strays, strays


@contextlib.contextmanager
def watched_server(home, models, *starts, environ=None, **settings):
    """A server in a thread, and the journeys in it from these functions."""
    entries = [{"name": name, **options} for name, options in models.items()]
    flags = {"models": entries, "models_dir": str(WEIGHTS), "logging.level": "error"} | settings
    config = load(flags, None, {"HOME": str(home)} | (environ or {}), home, system_file=home / "none.toml").config
    journeys = Journeys(*starts)
    with journeys.of_threads_started_here(), background_server(config, is_persistent=True) as url:
        threading.setprofile(None)
        yield url, journeys


@contextlib.contextmanager
def model_server():
    """The address of a server of Chat Completions that says a word at a time, and what has it say the next."""
    ready, loop, ports = threading.Event(), asyncio.new_event_loop(), []
    stop, is_heard = asyncio.Event(), asyncio.Event()

    async def says_words(writer):
        writer.write(STREAM_HEAD)
        for number in range(20):
            writer.write(chunk(event(f" {number}")))
            await is_heard.wait()  # so that no read has two words, however slow the machine is
            is_heard.clear()
        writer.write(chunk(event(finish="stop") + DONE) + b"0\r\n\r\n")

    async def serve():
        async with Server(says_words).open() as server:
            ports.append(server.port)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(TIMEOUT_S)
    try:
        yield f"http://127.0.0.1:{ports[0]}/v1", lambda: loop.call_soon_threadsafe(is_heard.set)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_a_token(tmp_path):
    start = "engines/upstream/http_connection.py:data_received"
    # Not stored: where a disk is slow, the first words wait in the driver until the beginning of the response is stored.
    body = json.dumps({"model": "upstream", "input": "Hi", "stream": True, "store": False}).encode()
    with model_server() as (base_url, say_next):
        models = {"upstream": {"engine": "chat", "base_url": base_url, "quirks": "generic"}}
        with watched_server(tmp_path, models, start) as (url, journeys):
            request = urllib.request.Request(url + "/v1/responses", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                last = [say_next() for line in answer if line.startswith(b"event: response.output_text.delta")]
                assert len(last) == 20
    found = [by_file(journey) for journey in journeys.seen]
    for title in ("The first tokens out", "A token out"):
        assert written(title) in found, title + "\n" + "\n\n".join("\n".join(journey) for journey in found)
    assert written("A token out") == by_file(journeys.through(start, "server/")), "what most tokens pass"


@pytest.mark.weights
def test_a_piece_of_audio(tmp_path):
    starts = "server/transport/websocket.py:buffer_updated", "speech/turn_detection/vad.py:_run"

    async def speak(url):
        async with connected(url, model="parrot") as peer:
            await peer.until("session.created")
            sound = recording("cards_001") + silence(1)
            for at in range(0, len(sound), 960):
                await append(peer, sound[at : at + 960])
            await peer.until("input_audio_buffer.speech_stopped")

    with watched_server(tmp_path, {"parrot": {"engine": "scripted", **DEAF}}, *starts) as (url, journeys):
        for _ in range(2):  # the first time, it waits for the models to be loaded
            asyncio.run(speak(url))
    check("A piece of audio in", journeys)
    check("In the loop's next turn", journeys)


@contextlib.contextmanager
def worker_process(url, home):
    """A worker elsewhere, with a place for one, that has joined."""
    command = [sys.executable, "-m", "antiphon", "worker", "--join", url.replace("http", "ws"), "--engine", "scripted"]
    environ = os.environ | {"ANTIPHON_HOME": str(home / "worker"), "ANTIPHON_WORKER_KEY": KEY}
    with forks.Popen([*command, "--model", "far", "--slots", "1"], cwd=home, env=environ) as process:
        try:
            while not json.load(urllib.request.urlopen(url + "/workers", timeout=TIMEOUT_S))["workers"]:
                assert process.poll() is None
            yield
        finally:
            process.terminate()


def test_a_client_that_queues_for_a_worker_elsewhere_and_is_recorded(tmp_path):
    client, worker = "server/transport/websocket.py:buffer_updated", "runtime/scheduling/engine.py:_acquire"

    async def converse(url):
        async with opened(url, mode="audio", record="1") as first:
            await first.begin()
            async with opened(url, mode="audio", record="1") as second:
                assert (await second.hear())["type"] == "session.queued"
                for sound in (BUZZ, BUZZ, SILENCE, SILENCE):
                    await first.hear_sound(sound)
                await first.deltas("text")
                await first.say("session.close")
                await second.until("session.queue_done")

    environ = {"ANTIPHON_WORKER_KEY": KEY}
    settings = {"recording.when": "consent"}
    models = {"far": {"engine": "worker"}}
    with watched_server(tmp_path, models, client, worker, environ=environ, **settings) as (url, journeys), worker_process(url, tmp_path):
        asyncio.run(asyncio.wait_for(converse(url), TIMEOUT_S))
    for title in ("It asks for a worker", "What it sends goes to the worker", "What the worker sends goes to it"):
        check(title, journeys)
