"""The writer commits together what waits together, and answers each caller for itself."""

import asyncio
from collections.abc import Sequence

import pytest

from antiphon.errors import ServerError
from antiphon.stores.database.group_commit import GroupCommit

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Ledger:
    """Takes writes that are words, all or nothing, when its gate is open. Refuses `bad`; is broken by `fire`."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.writer = GroupCommit[str, bool](self.commit, lambda error: isinstance(error, OSError))
        self.writer.start()

    async def commit(self, writes: Sequence[str]) -> list[bool]:
        self.batches.append(list(writes))
        self.begun.set()
        await self.gate.wait()
        if "fire" in writes:
            raise OSError("the ledger burns")
        if "bad" in writes:
            raise ValueError("a bad word")
        return [write == "yes" for write in writes]

    async def outcome(self, word: str) -> bool | str:
        try:
            return await self.writer.write(word)
        except (OSError, ValueError) as error:
            return str(error)

    async def outcomes(self, *words: str) -> list[bool | str]:
        """What becomes of words written at the same time."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.outcome(word)) for word in words]
        return [task.result() for task in tasks]


async def test_a_lone_write_does_not_wait_for_company() -> None:
    ledger = Ledger()
    assert await ledger.writer.write("yes") is True
    assert await ledger.writer.write("no") is False
    await ledger.writer.stop()
    assert ledger.batches == [["yes"], ["no"]]


async def test_writes_that_wait_at_the_same_time_are_one_batch_in_their_order() -> None:
    ledger = Ledger()
    assert await ledger.outcomes("yes", "no", "yes") == [True, False, True]
    await ledger.writer.stop()
    assert ledger.batches == [["yes", "no", "yes"]]


async def test_no_batch_is_larger_than_500() -> None:
    ledger = Ledger()
    await ledger.outcomes(*["yes"] * 1100)
    await ledger.writer.stop()
    assert [len(batch) for batch in ledger.batches] == [500, 500, 100]


async def test_a_bad_write_fails_its_own_caller_only() -> None:
    ledger = Ledger()
    assert await ledger.outcomes("yes", "bad", "no") == [True, "a bad word", False]
    assert await ledger.outcomes("yes") == [True]
    await ledger.writer.stop()


async def test_a_common_failure_fails_all_callers_at_once() -> None:
    ledger = Ledger()
    assert await ledger.outcomes("yes", "fire") == ["the ledger burns", "the ledger burns"]
    assert ledger.batches == [["yes", "fire"]]
    await ledger.writer.stop()


async def test_stopping_writes_what_waits() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(ledger.writer.write("yes"))
        second = group.create_task(ledger.writer.write("no"))
        group.create_task(ledger.writer.stop())
        ledger.gate.set()
    assert (first.result(), second.result()) == (True, False)


async def test_a_stopped_writer_refuses_by_name() -> None:
    ledger = Ledger()
    await ledger.writer.stop()
    await ledger.writer.stop()
    with pytest.raises(ServerError, match="The store is closed"):
        await ledger.writer.write("yes")


async def test_a_cancelled_caller_does_not_take_its_write_back_and_stops_no_other() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(ledger.writer.write("no"))
        staying = group.create_task(ledger.writer.write("yes"))
        await ledger.begun.wait()
        leaving.cancel()
        ledger.gate.set()
    assert leaving.cancelled() and staying.result() is True
    await ledger.writer.stop()
    assert ledger.batches == [["no", "yes"]]
