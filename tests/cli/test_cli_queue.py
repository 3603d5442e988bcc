"""`antiphon queue` and `antiphon workers`: what a running server says of them, in a terminal."""

import asyncio
import contextlib
import json
import threading

import aiohttp
import pytest

from antiphon.config import load
from antiphon.server.run import background

MODELS = [{"name": "parrot", "engine": "scripted", "sessions": 1, "answers": [{"say": "You said: {input}"}]}]


@pytest.fixture
def url(tmp_path):
    home = tmp_path / "served"
    home.mkdir()
    flags = {"models": MODELS, "logging.level": "error"}
    with background(load(flags, None, {"HOME": str(home)}, home, etc=home / "none.toml").config) as address:
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
    assert "nobody waits" in antiphon("queue", "list", "--url", url).err
    with two_who_want_a_place(url):
        shown = antiphon("queue", "list", "--url", url).out
        assert "1." in shown
        assert "with parrot-1" in shown
        (ticket,) = antiphon("queue", "list", "--json", "--url", url).json["items"]
        assert antiphon("queue", "cancel", ticket["ticket_id"], "--url", url).code == 0
        missing = antiphon("queue", "cancel", "q_000000000000", "--url", url)
        assert (missing.code, "not found" in missing.err) == (1, True)


def test_workers_can_be_seen_drained_and_removed(antiphon, url):
    assert "parrot-1" in antiphon("workers", "list", "--url", url).out
    assert "gets nobody more; it has 0 now" in antiphon("workers", "drain", "parrot-1", "--url", url).err
    assert antiphon("workers", "list", "--json", "--url", url).json[0]["status"] == "draining"
    assert antiphon("workers", "remove", "parrot-1", "--url", url).code == 0
    assert "there are no workers" in antiphon("workers", "list", "--url", url).err
    assert antiphon("workers", "drain", "parrot-1", "--url", url).code == 1
