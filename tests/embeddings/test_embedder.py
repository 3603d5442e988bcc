"""Several callers share one thread: each gets its own vectors, none waits for all of another's."""

import asyncio

import numpy as np
import pytest

from antiphon.embeddings.embedder import BATCH_TOKENS, Embedder
from antiphon.errors import ServerError


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 60))


def test_callers_get_the_vectors_of_their_own_texts(tiny, tiny_folder):
    async def scenario():
        embedder = Embedder(tiny_folder)
        texts = {caller: [f"{caller} {number}" for number in range(caller * 20)] for caller in range(5)}
        async with asyncio.TaskGroup() as tasks:
            running = {caller: tasks.create_task(embedder.embed(texts[caller])) for caller in texts}
        for caller, task in running.items():
            assert np.allclose(task.result(), tiny.embed(texts[caller]), atol=1e-6)
        await embedder.stop()

    run(scenario())


def test_the_tokens_that_were_read_are_counted(tiny_folder):
    async def scenario():
        embedder = Embedder(tiny_folder)
        embedded = await embedder.embed_counted(["hello world", "", "hello " * 1000])
        assert embedded.tokens == 4 + 2 + 256
        await embedder.stop()

    run(scenario())


def test_a_short_text_does_not_wait_for_all_of_a_long_list(tiny_folder):
    async def scenario():
        embedder = Embedder(tiny_folder)
        await embedder.start()
        async with asyncio.TaskGroup() as tasks:
            long = tasks.create_task(embedder.embed(["hello " * BATCH_TOKENS] * 60))
            await asyncio.sleep(0)
            await embedder.embed(["hello"])
            assert not long.done()
        await embedder.stop()

    run(scenario())


def test_a_caller_that_goes_away_leaves_the_others(tiny_folder):
    async def scenario():
        embedder = Embedder(tiny_folder, max_callers=1)
        async with asyncio.TaskGroup() as tasks:
            gone = tasks.create_task(embedder.embed(["hello " * BATCH_TOKENS] * 1000))
            await asyncio.sleep(0)
            with pytest.raises(ServerError) as raised:
                await embedder.embed(["hello"])
            assert raised.value.status == 503
            gone.cancel()
        assert (await embedder.embed(["hello"])).shape == (1, 64)
        await embedder.stop()

    run(scenario())


def test_what_waits_when_the_server_stops_is_told_so(tiny_folder):
    async def scenario():
        embedder = Embedder(tiny_folder)

        async def wait():
            with pytest.raises(ServerError, match="shutting down"):
                await embedder.embed(["hello " * BATCH_TOKENS] * 100)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(wait())
            await asyncio.sleep(0)
            await embedder.stop()
        with pytest.raises(ServerError, match="shutting down"):
            await embedder.embed(["hello"])

    run(scenario())


def test_missing_weights_are_an_error_of_the_caller_and_of_the_next(tmp_path):
    async def scenario():
        embedder = Embedder(tmp_path / "all-minilm-l6-v2")
        for _ in range(2):
            with pytest.raises(ServerError, match="antiphon models pull all-minilm-l6-v2"):
                await embedder.embed(["hello"])
        await embedder.stop()

    run(scenario())
