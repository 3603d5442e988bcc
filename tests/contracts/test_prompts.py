"""What every store does with stored prompts."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TypeVar

import pytest

from antiphon.records import PromptRecord
from antiphon.stores.base import Store

pytestmark = pytest.mark.anyio


T = TypeVar("T")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def prompt(id: str = "pmpt_a", tenant: str = "ada", **fields: int) -> PromptRecord:
    return PromptRecord(id=id, tenant=tenant, created_at=7, **fields)


async def body(store: Store, version: int | None = None, tenant: str = "ada", id: str = "pmpt_a") -> bytes | None:
    found = await store.prompts.version(tenant, id, version)
    return found.body if found else None


async def at_once(works: Iterable[Coroutine[None, None, T]]) -> list[T]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


async def test_a_prompt_comes_back_as_it_was_added(store: Store) -> None:
    assert await store.prompts.add(prompt(), b"\x00\xff")
    assert list(await store.prompts.find("ada", "pmpt_a")) == [prompt()]
    found = await store.prompts.version("ada", "pmpt_a")
    assert found and (found.version, found.created_at, found.body) == (1, 7, b"\x00\xff")


async def test_versions_are_numbered_and_the_newest_is_the_default_where_it_should_be(store: Store) -> None:
    await store.prompts.add(prompt(), b"1")
    assert await store.prompts.add_version("ada", "pmpt_a", b"2", at=8, is_default=True) == 2
    assert await store.prompts.add_version("ada", "pmpt_a", b"3", at=9, is_default=False) == 3
    assert [await body(store, version) for version in (None, 1, 2, 3)] == [b"2", b"1", b"2", b"3"]
    assert list(await store.prompts.find("ada")) == [prompt(default_version=2, latest_version=3)]
    assert [(each.version, each.created_at) for each in await store.prompts.versions("ada", "pmpt_a")] == [(1, 7), (2, 8), (3, 9)]


async def test_an_id_is_used_once_in_a_tenant_and_by_any_number_of_tenants(store: Store) -> None:
    assert await store.prompts.add(prompt(), b"ada's")
    assert not await store.prompts.add(prompt(), b"again")
    assert await store.prompts.add(prompt(tenant="bob"), b"bob's")
    assert (await body(store), await body(store, tenant="bob")) == (b"ada's", b"bob's")
    assert [each.tenant for each in await store.prompts.find(None, "pmpt_a")] == ["ada", "bob"]
    assert [each.tenant for each in await store.prompts.find("bob")] == ["bob"]


async def test_of_two_that_add_the_same_prompt_one_succeeds(store: Store) -> None:
    added = await at_once(store.prompts.add(prompt(), str(n).encode()) for n in range(4))
    assert sorted(added) == [False, False, False, True]
    assert await body(store) == str(added.index(True)).encode()


async def test_versions_that_are_added_at_once_get_numbers_of_their_own(store: Store) -> None:
    await store.prompts.add(prompt(), b"0")
    numbers = await at_once(store.prompts.add_version("ada", "pmpt_a", str(n).encode(), at=8, is_default=True) for n in range(8))
    assert sorted(number or 0 for number in numbers) == [*range(2, 10)]
    assert [await body(store, number) for number in numbers] == [str(n).encode() for n in range(8)]


async def test_another_version_becomes_the_default(store: Store) -> None:
    await store.prompts.add(prompt(), b"1")
    await store.prompts.add_version("ada", "pmpt_a", b"2", at=8, is_default=True)
    assert await store.prompts.set_default("ada", "pmpt_a", 1)
    assert await body(store) == b"1"
    assert not await store.prompts.set_default("ada", "pmpt_a", 3)
    assert not await store.prompts.set_default("bob", "pmpt_a", 2)
    assert await body(store) == b"1"


async def test_a_deleted_prompt_is_gone_with_its_versions(store: Store) -> None:
    await store.prompts.add(prompt(), b"1")
    assert not await store.prompts.delete("bob", "pmpt_a")
    assert await store.prompts.delete("ada", "pmpt_a")
    assert not await store.prompts.delete("ada", "pmpt_a")
    assert await body(store, 1) is None and not await store.prompts.versions("ada", "pmpt_a")
    assert await store.prompts.add_version("ada", "pmpt_a", b"2", at=8, is_default=True) is None
    assert await store.prompts.add(prompt(), b"new") and await body(store, 1) == b"new"


@pytest.mark.parametrize(("id", "version"), [("pmpt_b", None), ("pmpt_\0", None), ("pmpt_a", 0), ("pmpt_a", 2), ("pmpt_a", 2**63)])
async def test_what_is_not_there_is_not_found(store: Store, id: str, version: int | None) -> None:
    await store.prompts.add(prompt(), b"1")
    assert await body(store, version, id=id) is None
    assert await body(store, version, tenant="bob", id=id) is None
    assert not await store.prompts.set_default("ada", id, 1 if version is None else version)
    if id != "pmpt_a":
        assert not await store.prompts.versions("ada", id) and not await store.prompts.find(None, id)
        assert not await store.prompts.delete("ada", id)
