"""What an operator sees of several processes is the whole server, whichever of them answers."""

import asyncio
import contextlib
import json

import aiohttp
import pytest

from support.server.own_process import serving

pytestmark = pytest.mark.anyio
SESSIONS = 6


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def told(http, method, path):
    async with http.request(method, path) as reply:
        return json.loads(await reply.text())


@contextlib.asynccontextmanager
async def asking(url):
    """Requests that each take a connection of their own, and so any of the processes."""
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(force_close=True, limit=0)) as http:
        yield http


async def rows_of(stream, wanted):
    """The rows that came, by their events, until there are enough."""
    names = []
    async with asyncio.timeout(30):
        while not wanted(names):
            line = (await stream.content.readline()).decode()
            if line.startswith("event: "):
                names.append(line[7:].strip())
    return names


async def test_sessions_state_log_and_usage_are_those_of_all_processes(tmp_path):
    with serving(tmp_path, processes=2) as (_, url):
        async with asking(url) as http, contextlib.AsyncExitStack() as stack:
            stream = await stack.enter_async_context(http.get("/updates?topics=sessions,status"))
            sockets = [await stack.enter_async_context(http.ws_connect("/v1/realtime?model=parrot")) for _ in range(SESSIONS)]
            ids = {json.loads(await socket.receive_str())["session"]["id"] for socket in sockets}
            for _ in range(4):
                assert {session["id"] for session in (await told(http, "GET", "/sessions"))["sessions"]} == ids
            names = await rows_of(stream, lambda names: names.count("sessions.row") == SESSIONS and "status.row" in names)
            assert {*names} == {"sessions.all", "sessions.row", "status.all", "status.row"}
            for session_id in ids:
                assert await told(http, "POST", f"/sessions/{session_id}/close") == {"id": session_id, "closed": True}
            await rows_of(stream, lambda names: names.count("sessions.gone") == SESSIONS)
            assert [(await socket.receive()).data for socket in sockets] == [1008] * SESSIONS

            for _ in range(SESSIONS):
                async with http.post("/v1/responses", json={"model": "parrot", "input": "hello"}) as reply:
                    assert reply.status == 200
            async with asyncio.timeout(30):
                while (await counted(http)) != SESSIONS:  # noqa: ASYNC110 - no event tells that another process has written
                    await asyncio.sleep(0.05)
            async with http.get("/log?event=request&limit=2000") as reply:
                paths = [json.loads(line)["path"] for line in (await reply.text()).splitlines()]
            assert paths.count("/v1/responses") == SESSIONS and paths.count("/sessions") == 4


async def counted(http):
    page = await told(http, "GET", "/usage?bucket=1d&limit=2&group_by=protocol")
    results = [result for bucket in page["data"] for result in bucket["results"]]
    return sum(result["requests"] for result in results if result["protocol"] == "responses")
