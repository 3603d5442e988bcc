"""After thousands of requests of every kind the server is as it was before them. `bench/leak.py` looks longer."""

import asyncio
import gc
import os

import pytest

from antiphon.server.processes.run import background_server
from support.server.raw_http import ask, connect, exchange, request, until
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
