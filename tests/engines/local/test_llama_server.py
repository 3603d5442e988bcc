"""The HTTP side of the native server, against a server that behaves as badly as one can."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from antiphon.engines.local.llama_server import LlamaChunk, LlamaServer, LlamaSettings, openmp_variables
from antiphon.engines.local.prompt import PromptSegment
from antiphon.errors import ClientError, ServerError


def against(behaviour, visit):
    """What `visit` makes of a server whose every address behaves so."""

    async def run():
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/{any}", behaviour)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        llama = LlamaServer([object()], aiohttp.ClientSession(f"http://{host}:{port}"))
        try:
            async with asyncio.timeout(10):
                return await visit(llama)
        finally:
            await llama.close()
            await runner.cleanup()

    return asyncio.run(run())


def streaming(*pieces, then=None):
    async def behaviour(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if then is not None:
            await then(request)
        return response

    return behaviour


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


LAST = event(content="", stop=True, stop_type="eos", tokens_predicted=2)


async def complete(llama, take=lambda _: True):
    chunks = []
    may_read = asyncio.Event()
    may_read.set()
    await llama.complete({}, may_read, lambda arrived: chunks.extend(arrived) or take(arrived))
    return chunks


def test_a_completion_comes_chunk_by_chunk_up_to_the_one_that_stops():
    chunks = against(streaming(event(content="a", tokens=[1]), b": ping\n\n", event(content="b"), LAST), complete)
    assert [chunk.content for chunk in chunks] == ["a", "b", ""]
    assert chunks[0] == LlamaChunk(content="a", tokens=(1,)) and chunks[-1].stop_type == "eos"


def test_a_failure_on_the_way_is_told():
    with pytest.raises(ServerError, match="out of memory"):
        against(streaming(event(content="a"), event(error={"message": "out of memory", "code": 500})), complete)


def test_a_stream_that_ends_too_soon_is_no_answer():
    with pytest.raises(ServerError, match="ended too early"):
        against(streaming(event(content="a")), complete)


def test_a_prompt_that_is_too_long_is_the_clients_mistake():
    async def behaviour(_):
        error = {"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_prompt_tokens": 90, "n_ctx": 64}
        return web.json_response({"error": error}, status=400)

    with pytest.raises(ClientError) as raised:
        against(behaviour, complete)
    assert raised.value.code == "context_length_exceeded" and "90" in raised.value.message


def test_nonsense_instead_of_an_error_is_a_fault_too():
    async def behaviour(_):
        return web.Response(text="<html>", status=502)

    with pytest.raises(ServerError, match="refused"):
        against(behaviour, complete)


def test_who_has_heard_enough_closes_the_connection():
    gone = asyncio.Event()

    async def until_gone(_):
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async def visit(llama):
        chunks = await complete(llama, take=lambda _: False)
        await gone.wait()
        return chunks

    assert [chunk.content for chunk in against(streaming(event(content="a"), then=until_gone), visit)] == ["a"]


def test_while_it_may_not_nothing_more_is_read():
    more, heard = asyncio.Event(), []

    async def behaviour(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(event(content="a"))
        await more.wait()
        await response.write(LAST)
        return response

    async def visit(llama):
        may_read = asyncio.Event()

        def take(chunks):
            heard.extend(chunk.content for chunk in chunks)
            more.set()
            return True

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(llama.complete({}, may_read, take))
            await more.wait()
            for _ in range(100):
                await asyncio.sleep(0)
            paused = list(heard)
            may_read.set()
        return paused

    assert against(behaviour, visit) == ["a"]
    assert heard == ["a", ""]


def test_the_same_words_are_tokenised_once():
    asked = []

    async def behaviour(request):
        asked.append(await request.json())
        return web.json_response({"tokens": [1, 2]})

    async def visit(llama):
        return [await llama.tokenize(PromptSegment("hi")) for _ in range(3)] + [
            await llama.tokenize(PromptSegment("hi", parse_special=True))
        ]

    assert against(behaviour, visit) == [[1, 2]] * 4
    assert asked == [
        {"content": "hi", "parse_special": False, "add_special": False},
        {"content": "hi", "parse_special": True, "add_special": False},
    ]


def test_what_is_remembered_of_words_is_bounded():
    asked = []

    async def behaviour(request):
        asked.append((await request.json())["content"][0])
        return web.json_response({"tokens": [1]})

    async def visit(llama):
        for word in "abcda":
            await llama.tokenize(PromptSegment(word * 1_500_000))

    against(behaviour, visit)
    assert asked == ["a", "b", "c", "d", "a"]


@pytest.mark.weights
def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ServerError, match=r"model\.gguf can't be loaded"):
        asyncio.run(LlamaServer.load(LlamaSettings(path=path, slots=1, context=512, threads=1)))


def test_threads_sleep_while_they_wait_unless_they_are_to_spin():
    assert openmp_variables(spin=False) == {"OMP_WAIT_POLICY": "passive"}
    assert openmp_variables(spin=True) == {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"}
