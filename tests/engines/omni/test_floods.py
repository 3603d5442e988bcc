"""A MiniCPM-o worker that never stops speaking."""

import asyncio

import pytest

from antiphon.engine_api import commands, events
from antiphon.errors import ServerError
from support.engines.omni_doubles import Worker, ask, engine, facing, loud, played, quiet


async def speaks_on(worker):
    while worker.socket is not None and not worker.socket.closed:
        await worker.delta("text", text="a" * 100)


async def shouts_on(worker):
    while worker.socket is not None and not worker.socket.closed:
        await worker.delta("text", text="a" * 100_000)


async def speaks_long(worker):
    for _ in range(150):
        await worker.delta("text", text="a")


def words_of(client, id):
    return "".join(word.text for word in client.log.words if word.id == id and hasattr(word, "text"))


@pytest.mark.parametrize("limit", [{"max_response_events": 100}, {"max_response_bytes": 30_000}])
def test_an_endless_answer_costs_its_session_and_the_next_question_is_answered(limit):
    async def scenario():
        async with facing(Worker(faults={1: speaks_on}), "chat", **limit) as client:
            client.tell(ask("resp_1"))
            assert await client.log.end_of("resp_1") == events.ResponseEnded("resp_1", "length")
            assert 5_000 < len(words_of(client, "resp_1")) <= 30_000
            client.tell(ask("resp_2"))
            assert await client.log.end_of("resp_2") == events.ResponseEnded("resp_2")
            assert not client.log.of(events.EngineLost)

    played(scenario)


def test_a_turn_in_full_duplex_that_is_too_long_is_cut_off_and_the_model_told_to_listen():
    async def scenario():
        worker = Worker(faults={2: speaks_long})
        async with facing(worker, max_response_events=100) as client:
            client.tell(commands.StartDuplex())
            await client.log.some(events.DuplexStarted)
            client.tell(commands.AppendAudio(loud()), commands.AppendAudio(loud()))
            (turn, *_) = await client.log.some(events.ResponseEnded)
            assert turn.reason == "length"
            assert len(words_of(client, turn.id)) <= 170
            client.tell(commands.AppendAudio(quiet()))
            await worker.until(lambda: len(worker.asked) == 3)
            assert worker.asked[-1]["force_listen"] is True
            await client.log.some(events.Listening)
            client.tell(commands.AppendAudio(loud()))
            await client.log.until(lambda: any(word.id not in ("", turn.id) for word in client.log.words))

    played(scenario)


def test_a_worker_that_goes_on_all_the_same_is_lost():
    async def scenario():
        async with facing(Worker(faults={1: shouts_on}), max_response_events=100) as client:
            client.tell(commands.StartDuplex())
            await client.log.some(events.DuplexStarted)
            client.tell(commands.AppendAudio(loud()))
            (lost,) = await client.log.some(events.EngineLost)
            assert "cut off" in lost.message
            assert [word.reason for word in client.log.of(events.ResponseEnded)] == ["length"]

    played(scenario)


@pytest.mark.parametrize("name", ["max_response_bytes", "max_response_events"])
def test_a_limit_of_nothing_is_refused(name):
    async def scenario():
        async with Worker().open() as worker:
            with pytest.raises(ServerError, match=name):
                engine(worker, **{name: 0})
        await asyncio.sleep(0)

    played(scenario)
