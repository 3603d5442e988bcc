"""What clients, probes and the operator meet while the store of a running server is away, hangs, is locked or gone."""

import asyncio
import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from antiphon.runtime.access.keys import make_key
from antiphon.stores.sql.store import SqlStore
from support.programs import forks
from support.server.minicpmo_peer import opened
from support.server.own_process import MODELS, PROGRAM
from support.server.realtime_peer import IN_WRITING, connected

pytestmark = pytest.mark.anyio

PATIENCE_S = 60
NEUTRAL = "The server can't use its store now. Please try again later."
ASK = {"model": "parrot", "input": "Hi"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any


class Server:
    """A server in a process of its own, with one key, and its log."""

    def __init__(self, process: forks.Popen, url: str, key: str, log: Path, http: aiohttp.ClientSession) -> None:
        self.process, self.url, self.key, self.log = process, url, key, log
        self._http = http

    async def request(self, method: str, path: str, body: Any = None, key: str | None = None) -> Reply:
        headers = {"authorization": f"Bearer {key or self.key}"} if key != "" else {}
        async with asyncio.timeout(PATIENCE_S), self._http.request(method, self.url + path, json=body, headers=headers) as reply:
            content = await reply.read()
            return Reply(reply.status, reply.headers, json.loads(content))

    async def ask(self, **fields: Any) -> Reply:
        return await self.request("POST", "/v1/responses", ASK | fields)

    async def status_of(self, response_id: str, key: str) -> int:
        return (await self.request("GET", f"/v1/responses/{response_id}", key=key)).status

    async def probe(self, path: str) -> int:
        return (await self.request("GET", path, key="")).status

    async def until(self, path: str, status: int) -> None:
        """Probe until that is the status; the server must be alive all the time."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.probe(path) != status:
                assert await self.probe("/livez") == 200
                await asyncio.sleep(0.05)

    async def refuse(self, method: str, path: str, body: Any = None, key: str | None = None) -> None:
        """Expect an error that the store can't be used, without details."""
        reply = await self.request(method, path, body, key)
        assert (reply.status, reply.body["error"]["code"]) == (503, "store_unavailable"), reply
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.body["error"]["message"] == NEUTRAL
        assert not re.search(r"postgres|sqlite|SELECT|/tmp|store_\d", str(reply))

    def reports(self) -> list[Mapping[str, str]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"].startswith("store_")]

    async def until_reports(self, count: int) -> list[Mapping[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.reports()) < count:  # noqa: ASYNC110 - a line in a file sets no event
                await asyncio.sleep(0.05)
        return self.reports()


@contextlib.asynccontextmanager
async def serving(home: Path, store_url: str, timeout_s: float = 1) -> AsyncIterator[Server]:
    """A server that needs keys. With `timeout_s` of many seconds, a use fails for its cause alone, however slow the machine is."""
    record, secret = make_key("laptop", now=1)
    store = SqlStore(store_url)
    await store.open()
    await store.keys.add(record)
    await store.close()
    flags = {"server.port": 0, "server.require_keys": True, "models": MODELS, "store.url": store_url, "store.timeout_s": timeout_s}
    log = home / "log"
    with log.open("w") as output:
        command = [sys.executable, "-c", PROGRAM, str(home), json.dumps(flags)]
        process = forks.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
    try:
        assert process.stdout
        url = (await asyncio.to_thread(process.stdout.readline)).strip()
        assert url, log.read_text()
        async with aiohttp.ClientSession() as http:
            yield Server(process, url, secret, log, http)
        process.terminate()
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


@pytest.mark.parametrize("trouble", ["away", "hangs"])
async def test_a_database_that_is_away_or_hangs_costs_only_what_needs_it(tmp_path: Path, postgres: Any, trouble: str) -> None:
    begin, end = (postgres.stop, postgres.start) if trouble == "away" else (postgres.hang, postgres.go_on)
    async with serving(tmp_path, postgres.new_store()) as server:
        stored = (await server.ask()).body["id"]
        async with connected(server.url, key=server.key) as talking, opened(server.url, key=server.key, mode="chat") as chatting:
            await chatting.begin()
            await talking.hear()
            await talking.say("session.update", session=IN_WRITING["ga"])
            await talking.until("session.updated")
            with _during(begin, end):
                await server.until("/readyz", 503)
                for _ in range(3):
                    await server.refuse("POST", "/v1/responses", ASK)
                    await server.refuse("GET", f"/v1/responses/{stored}")
                    await server.refuse("GET", f"/v1/responses/{stored}", key="ak-of-somebody-else")
                    assert (await server.ask(store=False)).body["status"] == "completed"
                    assert (await server.request("GET", f"/v1/responses/{stored}", key="")).status == 401
                assert (await talking.ask("Hi"))[-1]["type"] == "response.done"
                assert (await chatting.ask("Hi"))[-1]["type"] == "response.done"
                async with connected(server.url, key=server.key) as another:
                    assert (await another.hear())["type"] == "session.created"
            await server.until("/readyz", 200)
            assert (await server.request("GET", f"/v1/responses/{stored}")).body["id"] == stored
            assert (await server.ask()).body["status"] == "completed"
            async with asyncio.timeout(PATIENCE_S):  # the keys are read again every few seconds
                while await server.status_of(stored, key="ak-of-somebody-else") != 401:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.2)
        reports = await server.until_reports(2)  # more where a busy machine let a use wait for longer than it may
        assert all(report["event"] == f"store_{'' if number % 2 else 'un'}available" for number, report in enumerate(reports))
        away = reports[0]
        assert away["level"] == "error"
        assert away["message"].startswith("The store at postgresql://antiphon@/store_")


async def test_a_server_whose_database_hangs_ends_when_it_is_told_to(tmp_path: Path, postgres: Any) -> None:
    async with serving(tmp_path, postgres.new_store()) as server:
        assert (await server.ask()).status == 200
        postgres.hang()
        try:
            await server.refuse("POST", "/v1/responses", ASK)
            server.process.terminate()
            assert await asyncio.to_thread(server.process.wait, PATIENCE_S) == 0
        finally:
            postgres.go_on()


@contextlib.contextmanager
def _during(begin: Callable[[], None], end: Callable[[], None]) -> Any:
    begin()
    try:
        yield
    finally:
        end()


@pytest.mark.long
async def test_a_stream_whose_end_cannot_be_stored_says_so_and_is_failed_later(tmp_path: Path, postgres: Any) -> None:
    async with serving(tmp_path, postgres.new_store()) as server, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {server.key}"}
        asked = {"model": "short", "input": "Hi", "stream": True}
        async with asyncio.timeout(PATIENCE_S), http.post(server.url + "/v1/responses", json=asked, headers=headers) as stream:
            created = json.loads(await anext(_data(stream)))
            with _during(postgres.stop, postgres.start):
                events = [json.loads(line) async for line in _data(stream)]
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert (events[-2]["error"]["message"] if "error" in events[-2] else events[-2]["message"]) == NEUTRAL
        async with asyncio.timeout(PATIENCE_S):
            while True:
                reply = await server.request("GET", f"/v1/responses/{created['response']['id']}")
                if reply.body.get("status") == "failed":
                    break
                await asyncio.sleep(0.1)


async def _data(stream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for line in stream.content:
        if line.startswith(b"data: {"):
            yield line.removeprefix(b"data: ")


async def test_a_locked_file_refuses_what_writes_and_a_removed_one_everything(tmp_path: Path) -> None:
    file = tmp_path / "home" / "store.sqlite3"
    async with serving(tmp_path, f"sqlite:///{file}?timeout=1", PATIENCE_S) as server:
        stored = (await server.ask()).body["id"]
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            await server.refuse("POST", "/v1/responses", ASK)
            assert (await server.request("GET", f"/v1/responses/{stored}")).body["id"] == stored
            assert (await server.ask(store=False)).body["status"] == "completed"
        other.execute("ROLLBACK")
        other.close()
        assert (await server.ask()).body["status"] == "completed"
        locked, back = await server.until_reports(2)
        assert (locked["event"], back["event"]) == ("store_unavailable", "store_available")
        assert f"{file} is locked by another program" in locked["message"]
        shutil.rmtree(file.parent)
        for _ in range(3):
            await server.refuse("POST", "/v1/responses", ASK)
            await server.refuse("GET", f"/v1/responses/{stored}")
            assert (await server.ask(store=False)).body["status"] == "completed"
        await server.until("/readyz", 503)
        *_, removed = await server.until_reports(3)
        assert f"{file} was removed" in removed["message"]
        assert len(server.reports()) == 3
