"""A link over a real socket pair, and what processes have in common over it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from antiphon.errors import ClientError, ServerError
from antiphon.link import StreamLinkTransport
from antiphon.records import KeyRecord
from antiphon.runtime.core.metrics import Metrics, Snapshot
from antiphon.runtime.multiprocess.ledger import UsageLedger
from antiphon.runtime.multiprocess.link import (
    BeginRequest,
    BeginStream,
    EndStream,
    GetLimits,
    GetSnapshot,
    GetTotals,
    OperatorNotice,
    ServerTotals,
    SupervisorLink,
)
from antiphon.runtime.multiprocess.peer import PeerProcesses

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Ends:
    """Both ends of a link, and what came out of the far one."""

    def __init__(self) -> None:
        self.near = SupervisorLink(lambda *_: None, lambda: None)
        self.far = SupervisorLink(self.receive, lambda: self.lost.set())
        self.lost = asyncio.Event()
        self.got: list[object] = []
        self.ledger = UsageLedger(monotonic=lambda: 0.0)
        self.ledger.add_process(1)

    def receive(self, message, answer) -> None:
        self.got.append(message)
        match message:
            case BeginRequest() | BeginStream() | GetLimits():
                answer(self.ledger.judge(1, message))
            case EndStream():
                self.ledger.end_stream(1, message)
            case GetTotals(mine):
                answer(ServerTotals(mine, (1,), 0.5))


@contextlib.asynccontextmanager
async def linked() -> AsyncIterator[Ends]:
    ends = Ends()
    loop = asyncio.get_running_loop()
    for made, end in zip(socket.socketpair(), (ends.near, ends.far), strict=True):
        await loop.create_connection(lambda end=end: StreamLinkTransport(end.endpoint), sock=made)
    yield ends
    ends.near.close()
    await ends.lost.wait()


def key(**limits: int) -> KeyRecord:
    return KeyRecord(id="key_1", hash=b"", prefix="", name="", tenant="", scopes=(), created_at=0, **limits)


async def test_messages_of_any_size_arrive_whole_and_in_order() -> None:
    async with linked() as ends:
        lines = ["x" * size for size in (0, 1, 100, 70_000, 3)]
        for line in lines:
            ends.near.send(OperatorNotice(line))
        await ends.near.request(GetTotals(Snapshot()))
        assert ends.got == [*map(OperatorNotice, lines), GetTotals(Snapshot())]


async def test_an_answer_finds_its_question_among_many() -> None:
    async with linked() as ends:
        asked = [Metrics() for _ in range(20)]
        for number, metrics in enumerate(asked):
            metrics.stream_events = number
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(ends.near.request(GetTotals(metrics.snapshot()))) for metrics in asked]
        assert [answer.result().snapshot.stream_events for answer in answers] == list(range(20))


async def test_a_question_that_nobody_answers_is_given_up() -> None:
    async with linked() as ends:
        with pytest.raises(ServerError, match="lost their connection"):
            await ends.near.request(GetSnapshot(), timeout_s=0)


async def test_questions_fail_when_the_other_end_is_gone() -> None:
    async with linked() as ends:
        waiting = asyncio.ensure_future(ends.near.request(GetSnapshot()))  # noqa: TID251 - awaited below
        while not ends.got:  # noqa: ASYNC110 - the other end sets no event
            await asyncio.sleep(0)
        ends.far.close()
        with pytest.raises(ServerError, match="lost their connection"):
            await waiting
        with pytest.raises(ServerError, match="lost their connection"):
            await ends.near.request(GetSnapshot())
        ends.near.send(OperatorNotice("to nobody"))


async def test_a_key_without_limits_asks_nobody() -> None:
    async with linked() as ends:
        allowance = PeerProcesses(ends.near, (1, 2)).allowance(key())
        await allowance.begin_request()
        async with allowance.track_response(lambda: 5):
            pass
        assert (await allowance.states(), ends.got) == ({}, [])


async def test_a_refusal_comes_back_as_the_mistake_that_it_was() -> None:
    async with linked() as ends:
        allowance = PeerProcesses(ends.near, (1, 2)).allowance(key(requests_per_minute=1))
        await allowance.begin_request()
        assert (await allowance.states())["requests"].remaining == 0
        with pytest.raises(ClientError, match="Limit 1, Used 1") as mistake:
            await allowance.begin_request()
        assert (mistake.value.status, mistake.value.code, mistake.value.retry_after_s) == (429, "rate_limit_exceeded", 60)


async def test_what_is_left_is_asked_for_again_once_an_answer_has_cost_something() -> None:
    async with linked() as ends:
        allowance = PeerProcesses(ends.near, (1, 2)).allowance(key(tokens_per_minute=10))
        await allowance.begin_request()
        async with allowance.track_response(lambda: 7):
            assert (await allowance.states())["tokens"].remaining == 10
        assert (await allowance.states())["tokens"].remaining == 3
        assert [type(message) for message in ends.got] == [BeginRequest, BeginStream, EndStream, GetLimits]


async def test_an_answer_called_off_while_it_waited_to_be_allowed_is_not_counted() -> None:
    async with linked() as ends:
        allowance = PeerProcesses(ends.near, (1, 2)).allowance(key(streams=1))

        async def answer() -> None:
            async with allowance.track_response(lambda: 0):
                raise AssertionError("it was called off before")

        called_off = asyncio.ensure_future(answer())  # noqa: TID251 - awaited below
        await asyncio.sleep(0)
        called_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await called_off
        async with allowance.track_response(lambda: 0):
            assert [type(message) for message in ends.got] == [BeginStream, EndStream, BeginStream]
