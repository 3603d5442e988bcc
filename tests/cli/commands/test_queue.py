"""`antiphon queue` and `antiphon workers`: their output for a running server."""

import asyncio
import contextlib
import json
import threading

import aiohttp
import pytest

from antiphon.cli.commands.queue import format_duration
from antiphon.config.load import load
from antiphon.server.processes.run import background_server

MODELS = [{"name": "parrot", "engine": "scripted", "sessions": 1, "answers": [{"say": "You said: {input}"}]}]


@pytest.fixture
def url(tmp_path):
    home = tmp_path / "served"
    home.mkdir()
    flags = {"models": MODELS, "logging.level": "error"}
    with background_server(load(flags, None, {"HOME": str(home)}, home, system_file=home / "none.toml").config) as address:
        yield address


@contextlib.contextmanager
def two_who_want_a_place(url):
    """One is served, and one waits."""
    ready, over = threading.Event(), threading.Event()

    async def visit():
        async with aiohttp.ClientSession(url) as http:
            path = "/v1/realtime?mode=chat"
            async with http.ws_connect(path) as first:
                while json.loads(await first.receive_str())["type"] != "session.queue_done":
                    pass
                async with http.ws_connect(path) as second:
                    while json.loads(await second.receive_str())["type"] != "session.queued":
                        pass
                    ready.set()
                    await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(visit()))
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_who_waits_and_who_is_served_can_be_seen_and_a_ticket_cancelled(antiphon, url):
    assert "no ticket waits" in antiphon("queue", "list", "--url", url).err
    with two_who_want_a_place(url):
        head, waiting, served = [line.split() for line in antiphon("queue", "list", "--url", url).out.splitlines()]
        assert head == ["TICKET", "MODEL", "KIND", "PLACE", "FOR", "ETA", "KEY"]
        assert waiting[1:4] == ["parrot", "chat", "1."]
        assert (waiting[5], waiting[-2:]) == ("s", ["min", "-"])
        assert served[1:5] == ["parrot", "chat", "with", "parrot-1"]
        worker = antiphon("workers", "show", "parrot-1", "--json", "--url", url).json
        assert [(one["kind"], one["status"]) for one in worker["sessions"]] == [("chat", "serving")]
        shown = antiphon("workers", "show", "parrot-1", "--url", url).out
        assert worker["sessions"][0]["ticket_id"] in shown
        assert "1 of 1" in shown
        (ticket,) = antiphon("queue", "list", "--json", "--url", url).json["items"]
        assert antiphon("queue", "cancel", ticket["ticket_id"], "--url", url).code == 0
        missing = antiphon("queue", "cancel", "q_000000000000", "--url", url)
        assert (missing.code, "not found" in missing.err) == (1, True)


def test_workers_can_be_seen_drained_resumed_and_removed(antiphon, url):
    head, row = antiphon("workers", "list", "--url", url).out.splitlines()
    assert head.split() == ["WORKER", "MODEL", "STATE", "TAKEN", "KINDS", "CAN", "UP", "HEARD", "VERSION", "ADDRESS"]
    assert row.split()[:7] == ["parrot-1", "parrot", "idle", "0", "of", "1", "chat,audio,video"]
    assert "hears,speaks" in row
    assert "gets no new sessions; 0 sessions left" in antiphon("workers", "drain", "parrot-1", "--wait", "--url", url).err
    (listed,) = antiphon("workers", "list", "--json", "--url", url).json
    assert (listed["status"], listed["sessions"], listed["silent_s"], listed["version"]) == ("draining", [], None, None)
    assert listed["abilities"]["audio_out"]
    assert "parrot-1 gets sessions again; it is idle" in antiphon("workers", "resume", "parrot-1", "--url", url).err
    assert antiphon("workers", "remove", "parrot-1", "--url", url).code == 0
    assert "there are no workers" in antiphon("workers", "list", "--url", url).err
    assert antiphon("workers", "drain", "parrot-1", "--url", url).code == 1
    assert "not found" in antiphon("workers", "resume", "parrot-1", "--url", url).err


def test_a_drain_that_is_waited_for_returns_when_the_last_session_is_over(antiphon, url):
    with contextlib.ExitStack() as held:
        visitors = held.enter_context(contextlib.ExitStack())
        visitors.enter_context(two_who_want_a_place(url))
        done = []
        drain = threading.Thread(target=lambda: done.append(antiphon("workers", "drain", "parrot-1", "--wait", "--url", url)))
        drain.start()
        while antiphon("workers", "list", "--json", "--url", url).json[0]["status"] != "draining":
            assert drain.is_alive()
        assert drain.is_alive(), "somebody is served still"
        visitors.close()
        drain.join(20)
    assert done[0].err.splitlines() == ["antiphon: parrot-1 gets no new sessions; 1 session left", "antiphon: 0 sessions left"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-0.4, "0 s"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_how_long_something_lasts_is_told_in_one_unit(seconds, told):
    assert format_duration(seconds) == told
