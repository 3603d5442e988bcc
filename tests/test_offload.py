"""Work on a large input leaves the event loop to others."""

import asyncio
import threading

import pytest

from antiphon.offload import LARGE_BYTES, offload

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_small_input_is_handled_at_once():
    assert await offload(LARGE_BYTES - 1, threading.get_ident) == threading.get_ident()


async def test_others_run_while_a_large_input_is_handled():
    released = threading.Event()
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(offload(LARGE_BYTES, released.wait, 60))
        await asyncio.sleep(0)
        assert not work.done()
        released.set()  # only a loop that goes on gets here
    assert work.result() is True


async def test_large_inputs_are_handled_one_after_another():
    order = []
    released = threading.Event()

    def first():
        released.wait(60)
        order.append("first")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(offload(LARGE_BYTES, first))
        tasks.create_task(offload(LARGE_BYTES, lambda: order.append("second")))
        await asyncio.sleep(0)
        released.set()
    assert order == ["first", "second"]


async def test_an_error_arrives_as_it_is():
    with pytest.raises(ValueError, match="no number"):
        await offload(LARGE_BYTES, _fail)


def _fail():
    raise ValueError("no number")
