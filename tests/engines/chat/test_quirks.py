"""Finding out what kind of server is upstream."""

import asyncio
from pathlib import Path

import pytest

from antiphon.engine_api import events
from antiphon.engine_api.engine import NULL_OBSERVER, BuildContext
from antiphon.engine_api.options import Sampling
from antiphon.engines.chat.quirks import QUIRKS, detect_quirks
from antiphon.engines.upstream.client import UpstreamClient, UpstreamOptions
from support.engines.upstreams import CUT, Server, ask, before, run, streamed, whole


def listed(*owners):
    return whole("200 OK", {"object": "list", "data": [{"id": f"m{n}", "owned_by": owner} for n, owner in enumerate(owners)]})


def found(play, **options):
    async def scenario():
        async with asyncio.timeout(20), Server(play).open() as server:
            options_ = UpstreamOptions(base_url=f"http://127.0.0.1:{server.port}/v1", **options)
            upstream = UpstreamClient("m", options_, BuildContext(weights_folder=Path(), base_folder=Path(), observer=NULL_OBSERVER))
            row = await detect_quirks(upstream)
            upstream.close()
            assert server.asked[0][0].startswith("GET /v1/models HTTP/1.1\r\n")
            return next((name for name, quirks in QUIRKS.items() if quirks is row), row)

    return run(scenario())


@pytest.mark.parametrize(
    ("play", "row"),
    [
        (listed("vllm"), "vllm"),
        (listed("vllm", "vllm"), "vllm"),
        (listed("sglang"), "sglang"),
        (listed("llamacpp"), "llamacpp"),
        (listed("library", "somebody"), "ollama"),
        (listed("organization_owner"), "lmstudio"),
        (listed("openai", "system", "openai-internal", "org-1"), "openai"),
        (listed("somebody"), "generic"),
        (listed("vllm", "library"), "generic"),
        (listed(None), "generic"),
        (whole("200 OK", {"data": [{}]}), "generic"),
        (whole("200 OK", b"<html>"), "generic"),
        (whole("200 OK", b"[" * 40_000), "generic"),
        (whole("404 Not Found", {}), "generic"),
        (whole("401 Unauthorized", {}), "generic"),
        (whole("200 OK", {"data": None}), None),
        (whole("200 OK", {"data": []}), None),
        (whole("503 Loading", {}), None),
        (CUT, None),
    ],
)
def test_the_owner_of_its_models_tells_what_a_server_is(play, row):
    assert found(play) == row


def test_what_was_found_out_once_is_not_asked_again():
    async def scenario():
        async with (
            asyncio.timeout(20),
            Server(listed("vllm"), streamed("one")).open() as server,
            before(server, quirks="auto") as (tell, heard),
        ):
            for id in ("resp_1", "resp_2"):
                tell.send(ask(id, sampling=Sampling(max_tokens=5)))
                await heard.end_of(id)
        assert [head.split()[1] for head, _ in server.asked] == ["/v1/models", "/v1/chat/completions", "/v1/chat/completions"]
        assert server.asked[1][1]["max_completion_tokens"] == 5

    run(scenario())


def test_requests_that_came_together_ask_once_also_when_nothing_is_found_out():
    async def scenario():
        ready = asyncio.Event()
        lists = 0

        async def play(writer):
            nonlocal lists
            if "GET" in server.asked[-1][0]:
                lists += 1
                await ready.wait()
                writer.write(whole("503 Loading", {}))
            else:
                writer.write(streamed("one"))
            await writer.drain()

        ids = [f"resp_{number}" for number in range(20)]
        async with asyncio.timeout(20), Server(play).open() as server, before(server, quirks="auto") as (conversation, heard):
            for id in ids:
                conversation.send(ask(id))
            await server.until(lambda: server.asked)
            ready.set()
            for id in ids:
                assert await heard.end_of(id) == events.ResponseEnded(id)
        assert lists == 1

    run(scenario())


def test_a_server_that_is_left_alone_is_not_asked_what_it_is():
    async def scenario():
        options = {"quirks": "auto", "failures": 1, "rest_s": 60}
        async with asyncio.timeout(20), Server(CUT).open() as server, before(server, **options) as (conversation, heard):
            for id in ("resp_1", "resp_2", "resp_3"):
                conversation.send(ask(id))
                await heard.end_of(id)
        assert [head.split()[0] for head, _ in server.asked] == ["GET", "POST"]

    run(scenario())
