"""The start of a server: mistakes in its configuration, and what a server left that died."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.load import Config, load, pack, unpack
from antiphon.errors import ClientError, ServerError
from antiphon.records import ResponseRecord
from antiphon.runtime.service import Service, is_loopback
from antiphon.stores.sql.store import SqlStore
from antiphon.wire.responses.request import Prompt
from support.server import scripted_server

pytestmark = pytest.mark.anyio

BODY = b"""{"id":"resp_1","object":"response","created_at":1,"status":"in_progress","model":"m","output":[],"error":null,
"incomplete_details":null,"instructions":null,"metadata":{},"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"auto",
"tools":[],"top_p":1.0}"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def configured(folder: Path, url: str) -> Config:
    return load({"store.url": url}, None, {"HOME": str(folder)}, folder, system_file=folder / "none.toml").config


async def test_every_mistake_in_a_models_options_is_told_with_its_line_in_each_process_of_a_server(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text('[[models]]\nname = "a"\nengine = "scripted"\nwords = 3\n[[models]]\nname = "b"\nengine = "scriptd"\n')
    config = load({}, file, {"HOME": str(tmp_path)}, tmp_path, system_file=tmp_path / "none.toml").config
    with pytest.raises(ServerError) as caught:
        Service(unpack(pack(config)), print)
    first, second = caught.value.message.split("\n")
    assert first.startswith(f"{file}:4: The script of model 'a' is wrong")
    assert second.startswith(f"{file}:5: Model 'b': There is no engine 'scriptd'")


async def test_a_reload_that_is_cancelled_leaves_the_old_models_and_the_old_prompts(tmp_path: Path) -> None:
    async def has_prompt() -> bool:
        with contextlib.suppress(ClientError):
            return await service.prompts.find("", Prompt(id="pmpt_new")) is not None
        return False

    service = Service(scripted_server.configured(tmp_path, {"old": {"engine": "scripted"}}, **{"store.url": "memory"}), print)
    await service.open()
    new = scripted_server.configured(
        tmp_path,
        {"new": {"engine": "scripted"}},
        **{"store.url": "memory", "prompts": [{"id": "pmpt_new", "instructions": "Be brief."}]},
    )
    async with asyncio.TaskGroup() as tasks:
        reload = tasks.create_task(service.configure(new))
        while not reload.done() and not await has_prompt():
            await asyncio.wait([reload], timeout=0)
        reload.cancel()
    assert ([model.name for model in service.registry.all()] == ["new"]) is await has_prompt()
    await service.close()


async def working(url: str) -> SqlStore:
    """A server's store, with a response that the server works on."""
    store = SqlStore(url)
    await store.open()
    await store.put(
        ResponseRecord(id="resp_1", tenant="ada", created_at=1, status="in_progress", model="m", previous_response_id=None, body=BODY)
    )
    return store


async def status(service: Service) -> str | None:
    record = await service.store.get("ada", "resp_1")
    return record and record.status


async def test_what_a_dead_server_left_in_a_file_is_failed_at_the_next_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite3"
    await (await working(url)).close()
    service = Service(configured(tmp_path, url), print)
    await service.open()
    assert await status(service) == "failed"
    await service.close()


async def test_a_starting_server_looks_twice_before_it_writes_anything_off(tmp_path: Path, postgres: Any) -> None:
    """A database that was restarted has forgotten for a moment who lives."""
    url = postgres.new_store()
    await (await working(url)).close()
    service = Service(configured(tmp_path, url), print)
    await service.open()
    assert await status(service) == "in_progress"
    await service.fail_orphans({"resp_1"})
    assert await status(service) == "failed"
    await service.close()


async def test_a_server_fails_what_another_left_when_it_is_still_gone_at_the_second_look(tmp_path: Path, postgres: Any) -> None:
    url = postgres.new_store()
    other = await working(url)
    service = Service(configured(tmp_path, url), print)
    await service.open()
    assert await status(service) == "in_progress"
    assert not await service.fail_orphans({"resp_1"})
    await other.close()
    suspects = await service.fail_orphans(())
    assert await status(service) == "in_progress"
    await service.fail_orphans(suspects)
    assert await status(service) == "failed"
    await service.close()


async def test_servers_that_share_a_store_may_share_a_home(tmp_path: Path, postgres: Any) -> None:
    url = postgres.new_store()
    services = [Service(configured(tmp_path, url), print) for _ in range(2)]
    for service in services:
        await service.open()
    for service in services:
        await service.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_addresses_that_only_this_machine_reaches_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", "::ffff:10.0.0.1"])
def test_all_others_are_reached_by_others(host: str) -> None:
    assert not is_loopback(host)
