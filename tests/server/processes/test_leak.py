"""After thousands of requests of every kind the server is as it was before them. `bench/leak.py` looks longer."""

import asyncio
import gc
import os

import pytest

from antiphon.engine_api.commands import Respond
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.runtime.core.driver import Driver
from antiphon.server.processes.run import background_server
from antiphon.server.responses.create import ResponseCollector
from antiphon.server.responses.event_stream import EventStream
from antiphon.wire.responses.request import CreateRequest
from support.engines.upstreams import CUT, streamed, whole
from support.server.raw_http import ask, connect, exchange, request, until
from support.server.raw_upstream import playing
from support.server.scripted_server import SCRIPT, configured

REQUESTS = 2000
SETTLING = 200
"""Objects that one look may find more than another: caches that fill, and the other threads of the tests."""


@pytest.fixture
def url(tmp_path):
    with background_server(configured(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT}}, **{"logging.level": "error"})) as address:
        yield address


KINDS = [
    ask(store=False),
    ask(store=False, stream=True),
    ask(text="think", store=False, stream=True),
    ask(text="break midway", store=False, stream=True),
    ask(text="break at once", store=False),
    ask(model="none"),
    request(path="/v1/responses/resp_none"),
    request("POST", "/v1/responses", b"{"),
]


def put_through(base_url, count):
    """So many requests: most on connections that are kept, some by clients that leave or that speak no HTTP."""
    for number in range(0, count, 50):
        exchange(base_url, *[KINDS[(number + offset) % len(KINDS)] for offset in range(47)], request(connection="close"))
        with connect(base_url) as connection:
            connection.sendall(ask(text="sing", store=False, stream=True))
            until(connection, b"output_text.delta")
        exchange(base_url, b"\0\0\0\0")


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """What earlier tests have left is not looked through again and again."""
    gc.collect()
    gc.freeze()


def alive():
    """Tasks that are not done, open descriptors, and all objects there are."""
    gc.collect()
    everything = gc.get_objects()
    tasks = sum(type(each) is asyncio.Task and not each.done() for each in everything)  # a lazy module would load if asked what it is
    return tasks, len(os.listdir("/proc/self/fd")), len(everything)


def test_tasks_descriptors_and_objects_come_back_to_where_they_were(url):
    put_through(url, 400)
    exchange(url, request(connection="close"))
    tasks, descriptors, objects = alive()
    put_through(url, REQUESTS)
    for _ in range(50):
        exchange(url, request(connection="close"))
        now = alive()
        if now[0] <= tasks and now[1] <= descriptors and now[2] <= objects + SETTLING:
            break
    assert now[:2] == (tasks, descriptors)
    assert now[2] <= objects + SETTLING


LARGE = (CreateRequest, Driver, EventStream, Respond, ResolvedRequest, ResponseCollector, ResponsesSession)
"""What holds a request, or all of a response."""


@pytest.fixture
def no_collector():
    """Objects are freed by counting references to them, or not at all."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def large_objects():
    return [type(each).__name__ for each in gc.get_objects() if type(each) in LARGE]


def left_behind(base_url, before):
    """What there is more of than `before`, once the server has let go of what it will let go of."""
    for _ in range(50):
        exchange(base_url, request(connection="close"))
        left = large_objects()
        for name in before:
            if name in left:
                left.remove(name)
        if not left:
            break
    return left


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_finished_request_is_freed_without_the_collector(url, no_collector, number):
    before = large_objects()
    exchange(url, *[KINDS[number]] * 3, request(connection="close"))
    assert left_behind(url, before) == []


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_request_of_a_client_that_left_is_freed_without_the_collector(url, no_collector, is_stored):
    before = large_objects()
    with connect(url) as connection:
        connection.sendall(ask(text="sing", store=is_stored, stream=True))
        until(connection, b"output_text.delta")
    assert left_behind(url, before) == []


@pytest.mark.parametrize("engine", ["chat", "responses"])
@pytest.mark.parametrize("play", [whole("400 Bad Request", {"error": {"message": "no"}}), streamed("hello"), CUT])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_to_an_upstream_is_freed_without_the_collector(tmp_path, no_collector, engine, play, is_streamed):
    with playing(play) as (upstream, _):
        options = {"engine": engine, "base_url": upstream, "retries": 0} | ({"quirks": "generic"} if engine == "chat" else {})
        with background_server(configured(tmp_path, {"m": options}, **{"logging.level": "error"})) as base_url:
            before = large_objects()
            exchange(base_url, ask("m", stream=is_streamed), request(connection="close"))
            assert left_behind(base_url, before) == []
