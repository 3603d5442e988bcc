"""What every store does, whatever it is made of."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.errors import ClientError
from antiphon.records import ClientSecretRecord, Direction, ItemRecord, KeyRecord, ResponseRecord, SessionRecord
from antiphon.stores import memory
from antiphon.stores.base import MAX_CHAIN_BYTES, ItemPage, ItemsTooLarge, MissingAncestor, Store, UnknownCursor
from antiphon.stores.sql import conversations

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def item(id: str, direction: Direction = "input", body: bytes = b"{}") -> ItemRecord:
    return ItemRecord(id=id, direction=direction, body=body)


def response(id: str, *items: ItemRecord, after: str | None = None, status: str = "completed", body: bytes = b"{}") -> ResponseRecord:
    return ResponseRecord(
        id=id, tenant="ada", created_at=1, status=status, model="parrot", previous_response_id=after, body=body, items=items
    )


DIALOGUE = response("resp_1", item("msg_1"), item("rs_1", "output"), item("msg_2"), item("msg_3", "output"), item("msg_4"))


async def page(
    store: Store, direction: Direction = "input", after: str | None = None, limit: int = 10, order: str = "asc"
) -> list[str] | None:
    found = await store.list_items(
        "ada", "resp_1", direction=direction, after=after, limit=limit, order="asc" if order == "asc" else "desc"
    )
    return None if found is None else [item.id for item in found.items]


async def test_a_record_comes_back_as_it_was_put(store: Store) -> None:
    record = response("resp_1", item("msg_1", body=b"\x00\xff"), item("msg_2", "output"), after="resp_0", body='{"a":"ä"}'.encode())
    await store.put(record)
    assert await store.get("ada", "resp_1") == record


async def test_what_only_some_profiles_show_is_kept_and_changes_with_the_end(store: Store) -> None:
    begun = replace(response("resp_1", status="in_progress"), notes=b'{"routing":1}')
    await store.put(begun)
    assert await store.get("ada", "resp_1") == begun
    ended = replace(begun, status="completed", notes=b'{"routing":1,"rewrite":2}')
    await store.finish(ended)
    assert await store.get("ada", "resp_1") == ended
    both = replace(begun, id="resp_2")
    async with asyncio.TaskGroup() as tasks:  # in one batch
        tasks.create_task(store.put(both))
        tasks.create_task(store.finish(replace(ended, id="resp_2")))
    assert await store.get("ada", "resp_2") == replace(ended, id="resp_2")


async def test_a_record_may_have_no_items(store: Store) -> None:
    await store.put(response("resp_1"))
    assert await store.get("ada", "resp_1") == response("resp_1")


async def test_an_unknown_id_is_none(store: Store) -> None:
    assert await store.get("ada", "resp_1") is None


async def test_an_id_that_no_database_takes_is_an_unknown_one(store: Store) -> None:
    await store.put(DIALOGUE)
    assert await store.get("ada", "resp_\0") is None
    assert len(await store.chain("ada", "resp_\0")) == 0
    assert await store.items("ada", ["msg_\0"]) == {}
    assert await store.delete("ada", "resp_\0") is False
    assert await store.list_items("ada", "resp_\0", direction="input", after=None, limit=1, order="asc") is None
    with pytest.raises(UnknownCursor):
        await page(store, after="msg_\0")


async def test_putting_again_replaces_the_record_and_all_its_items(store: Store) -> None:
    await store.put(DIALOGUE)
    await store.put(response("resp_1", item("msg_9")))
    assert await store.get("ada", "resp_1") == response("resp_1", item("msg_9"))
    assert await store.items("ada", ["msg_1"]) == {}


async def test_a_deleted_response_is_gone_with_its_items(store: Store) -> None:
    await store.put(DIALOGUE)
    assert await store.delete("ada", "resp_1") is True
    assert await store.get("ada", "resp_1") is None
    assert await store.items("ada", ["msg_1"]) == {}
    assert await page(store) is None


async def test_deleting_nothing_says_so(store: Store) -> None:
    assert await store.delete("ada", "resp_1") is False


async def test_another_tenants_id_is_as_good_as_none(store: Store) -> None:
    await store.put(DIALOGUE)
    assert await store.get("eve", "resp_1") is None
    assert await store.chain("eve", "resp_1") == [] or await store.chain("eve", "resp_1") == ()
    assert await store.items("eve", ["msg_1"]) == {}
    assert await store.list_items("eve", "resp_1", direction="input", after=None, limit=1, order="asc") is None
    assert await store.delete("eve", "resp_1") is False
    assert await store.get("ada", "resp_1") == DIALOGUE


async def test_a_chain_begins_with_the_oldest(store: Store) -> None:
    records = [response("resp_3", item("msg_3")), response("resp_1", after="resp_3"), response("resp_2", item("msg_2"), after="resp_1")]
    for record in records:
        await store.put(record)
    assert list(await store.chain("ada", "resp_2")) == records
    assert list(await store.chain("ada", "resp_1")) == records[:2]


async def test_a_chain_begins_with_the_newest_compaction_even_if_what_came_before_is_gone(store: Store) -> None:
    first = response("resp_1", ItemRecord(id="cmp_1", direction="input", body=b"{}"))
    second = response("resp_2", ItemRecord(id="cmp_2", direction="output", body=b"{}"), after="resp_1")
    third = response("resp_3", item("cmpx"), after="resp_2")
    fourth = response("resp_4", ItemRecord(id="cmp_3", direction="input", body=b"{}"), after="resp_3")
    for record in (first, second, third, fourth):
        await store.put(record)
    assert list(await store.chain("ada", "resp_4")) == [second, third, fourth]
    assert list(await store.chain("ada", "resp_2")) == [second]
    await store.delete("ada", "resp_1")
    assert list(await store.chain("ada", "resp_4")) == [second, third, fourth]


async def test_two_responses_may_continue_the_same_one(store: Store) -> None:
    trunk, left, right = response("resp_1"), response("resp_2", after="resp_1"), response("resp_3", after="resp_1")
    for record in (trunk, left, right):
        await store.put(record)
    assert list(await store.chain("ada", "resp_2")) == [trunk, left]
    assert list(await store.chain("ada", "resp_3")) == [trunk, right]


async def test_a_chain_of_an_unknown_response_is_empty(store: Store) -> None:
    assert len(await store.chain("ada", "resp_1")) == 0


async def test_a_chain_with_a_gap_names_what_is_missing(store: Store) -> None:
    await store.put(response("resp_2", after="resp_1"))
    await store.put(response("resp_3", after="resp_2"))
    with pytest.raises(MissingAncestor) as missing:
        await store.chain("ada", "resp_3")
    assert missing.value.args == ("resp_1",)


async def test_an_ancestor_of_another_tenant_is_missing(store: Store) -> None:
    await store.put(
        ResponseRecord(id="resp_1", tenant="eve", created_at=1, status="completed", model="m", previous_response_id=None, body=b"")
    )
    await store.put(response("resp_2", after="resp_1"))
    with pytest.raises(MissingAncestor):
        await store.chain("ada", "resp_2")


async def test_a_circle_is_refused_as_too_long(store: Store) -> None:
    await store.put(response("resp_1", after="resp_2"))
    await store.put(response("resp_2", after="resp_1"))
    with pytest.raises(Exception, match="more than 10,000 responses"):
        await store.chain("ada", "resp_2")


async def test_an_item_is_found_whichever_side_it_came_from(store: Store) -> None:
    await store.put(DIALOGUE)
    assert await store.items("ada", ["msg_2"]) == {"msg_2": item("msg_2")}
    assert await store.items("ada", ["msg_3"]) == {"msg_3": item("msg_3", "output")}
    assert await store.items("ada", ["msg_5"]) == {}


async def test_items_are_read_together(store: Store) -> None:
    await store.put(response("resp_1", *(item(f"msg_{number}", body=b"%d" % number) for number in range(1_500))))
    await store.put(response("resp_2", item("msg_7", body=b"newer"), item("msg_8"), item("msg_8", body=b"later")))
    ids = [f"msg_{number}" for number in range(1_500)]
    found = await store.items("ada", [*ids, "msg_1", "msg_\0", "msg_none"])
    assert found.keys() == set(ids) and found["msg_1499"].body == b"1499"
    assert (found["msg_7"].body, found["msg_8"].body) == (b"newer", b"later")
    assert await store.items("ada", []) == {}


async def test_items_that_are_too_large_together_are_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, conversations):
        monkeypatch.setattr(module, "MAX_CHAIN_BYTES", 10)
    await store.put(response("resp_1", item("msg_1", body=b"12345"), item("msg_2", body=b"12345"), item("msg_3", body=b"1")))
    assert len(await store.items("ada", ["msg_1", "msg_2", "msg_1"])) == 2
    with pytest.raises(ItemsTooLarge):
        await store.items("ada", ["msg_1", "msg_2", "msg_3"])


async def test_of_an_id_used_again_the_newest_output_is_found_or_else_the_newest_input(store: Store) -> None:
    await store.put(response("resp_3", item("msg_1", body=b"oldest")))
    await store.put(response("resp_2", item("msg_1", "output", b"old"), item("msg_1", "output", b"made"), item("msg_2", body=b"2")))
    await store.put(response("resp_1", item("msg_1", body=b"new")))
    both = {"msg_1": item("msg_1", "output", b"made"), "msg_2": item("msg_2", body=b"2")}
    assert await store.items("ada", ["msg_1", "msg_2"]) == both
    await store.delete("ada", "resp_2")
    assert await store.items("ada", ["msg_1"]) == {"msg_1": item("msg_1", body=b"new")}


async def test_items_are_listed_by_direction_in_either_order(store: Store) -> None:
    await store.put(DIALOGUE)
    assert await page(store) == ["msg_1", "msg_2", "msg_4"]
    assert await page(store, order="desc") == ["msg_4", "msg_2", "msg_1"]
    assert await page(store, "output") == ["rs_1", "msg_3"]


async def test_a_page_ends_at_its_limit_and_says_whether_there_is_more(store: Store) -> None:
    await store.put(DIALOGUE)
    two = await store.list_items("ada", "resp_1", direction="input", after=None, limit=2, order="asc")
    assert two == ItemPage((item("msg_1"), item("msg_2")), has_more=True)
    all_three = await store.list_items("ada", "resp_1", direction="input", after=None, limit=3, order="asc")
    assert all_three is not None and not all_three.has_more


async def test_a_page_begins_after_its_cursor_in_the_order_asked(store: Store) -> None:
    await store.put(DIALOGUE)
    assert await page(store, after="msg_1") == ["msg_2", "msg_4"]
    assert await page(store, after="msg_2", order="desc") == ["msg_1"]
    assert await page(store, after="msg_4") == []


@pytest.mark.parametrize("cursor", ["msg_9", "msg_3"])
async def test_a_cursor_that_names_none_of_the_list_is_refused(store: Store, cursor: str) -> None:
    await store.put(DIALOGUE)
    with pytest.raises(UnknownCursor):
        await page(store, after=cursor)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_following_the_cursors_ends_though_an_id_is_used_twice(store: Store, order: str) -> None:
    await store.put(response("resp_1", item("msg_1"), item("msg_2"), item("msg_1")))
    assert await page(store, after="msg_1", order=order) == []


async def test_what_a_server_works_on_is_not_orphaned(store: Store) -> None:
    await store.put(response("resp_1", status="in_progress"))
    await store.put(response("resp_2", status="queued"))
    assert len(await store.orphans()) == 0


async def test_an_unfinished_response_is_finished_once_and_keeps_its_items(store: Store) -> None:
    begun, ended = response("resp_1", item("msg_1"), status="in_progress"), response("resp_1", item("msg_1"), item("msg_2", "output"))
    await store.put(begun)
    assert await store.finish(ended) is True
    assert await store.get("ada", "resp_1") == ended
    assert await store.finish(response("resp_1", item("msg_1"), status="failed")) is False
    assert await store.get("ada", "resp_1") == ended


async def test_finishing_changes_nothing_but_status_and_body_and_adds_what_is_new(store: Store) -> None:
    await store.put(response("resp_1", item("msg_1", body=b"stored"), after="resp_0", status="queued"))
    assert await store.finish(response("resp_1", item("msg_2"), item("msg_3", "output"), body=b"new", status="in_progress")) is True
    assert await store.finish(response("resp_1", item("msg_2"), item("msg_3"), item("msg_4", "output"), body=b"end")) is True
    assert await store.get("ada", "resp_1") == response(
        "resp_1", item("msg_1", body=b"stored"), item("msg_3", "output"), item("msg_4", "output"), after="resp_0", body=b"end"
    )


async def test_what_has_ended_or_never_was_is_not_finished(store: Store) -> None:
    await store.put(DIALOGUE)
    assert await store.finish(response("resp_1", status="failed")) is False
    assert await store.finish(response("resp_2", status="failed")) is False
    assert await store.get("ada", "resp_1") == DIALOGUE
    assert await store.get("ada", "resp_2") is None


async def test_what_this_server_works_on_is_not_written_off(store: Store) -> None:
    await store.put(response("resp_1", status="in_progress"))
    assert await store.write_off(response("resp_1", status="failed")) is False
    assert await store.finish(response("resp_1")) is True


async def test_a_conversation_that_is_too_large_is_refused(store: Store) -> None:
    large = bytes(MAX_CHAIN_BYTES // 2 - 4)
    await store.put(response("resp_1", item("msg_1", body=large)))
    await store.put(response("resp_2", item("msg_2", "output", large), after="resp_1"))
    assert len(await store.chain("ada", "resp_2")) == 2
    await store.put(response("resp_3", item("msg_3", body=bytes(10)), after="resp_2"))
    with pytest.raises(ClientError, match=r"too large: it has more than 64 MiB\. Start a new one") as error:
        await store.chain("ada", "resp_3")
    assert (error.value.status, error.value.code, error.value.param) == (400, "context_length_exceeded", "previous_response_id")


async def test_many_at_once_are_all_kept(store: Store) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(60):
            group.create_task(store.put(response(f"resp_{number}", item(f"msg_{number}"))))
    for number in range(60):
        assert await store.get("ada", f"resp_{number}") == response(f"resp_{number}", item(f"msg_{number}"))


async def test_closing_twice_is_no_mistake(store: Store) -> None:
    await store.close()
    await store.close()


# API keys


def key(id: str, created_at: int = 1, **fields: Any) -> KeyRecord:
    return KeyRecord(
        id=id, hash=id.encode() * 4, prefix="ak-1", name="laptop", tenant="ada", scopes=("a:b", "c"), created_at=created_at, **fields
    )


async def test_keys_come_back_as_they_were_added_oldest_first(store: Store) -> None:
    limited = key("key_a", 2, expires_at=9, requests_per_minute=1, tokens_per_minute=2**40, streams=3, record="consent")
    for one in (limited, key("key_b", 1)):
        await store.keys.add(one)
    assert list(await store.keys.all()) == [key("key_b", 1), limited]


async def test_a_key_is_revoked_once_and_stays_listed(store: Store) -> None:
    await store.keys.add(key("key_a"))
    assert await store.keys.revoke("key_b", 5) is False
    assert await store.keys.revoke("key_a", 5) is True
    assert await store.keys.revoke("key_a", 6) is False
    assert list(await store.keys.all()) == [key("key_a", revoked_at=5)]


async def test_the_latest_use_of_a_key_is_kept(store: Store) -> None:
    for id in ("key_a", "key_b", "key_c"):
        await store.keys.add(key(id))
    await store.keys.mark_used({"key_a": 7, "key_b": 8})
    await store.keys.mark_used({"key_a": 6, "key_none": 1})
    await store.keys.mark_used({})
    assert {key.id: key.last_used_at for key in await store.keys.all()} == {"key_a": 7, "key_b": 8, "key_c": None}


# Client secrets


def client_secret(hash: bytes, created_at: int = 10, expires_at: int = 20, key_id: str | None = "key_1") -> ClientSecretRecord:
    return ClientSecretRecord(hash=hash, key_id=key_id, session=b'{"type":"realtime"}', created_at=created_at, expires_at=expires_at)


async def test_a_client_secret_is_found_by_its_hash_and_by_nothing_less(store: Store) -> None:
    kept = [client_secret(b"\x00one"), client_secret(b"\x00two", key_id=None)]
    for secret in kept:
        await store.client_secrets.add(secret)
    assert [await store.client_secrets.find(secret.hash) for secret in kept] == kept
    assert await store.client_secrets.find(b"\x00on") is None
    assert await store.client_secrets.find(b"") is None


async def test_a_new_client_secret_sweeps_away_those_that_have_expired(store: Store) -> None:
    await store.client_secrets.add(client_secret(b"first", expires_at=20))
    await store.client_secrets.add(client_secret(b"second", expires_at=31))
    assert await store.client_secrets.find(b"first") is not None
    await store.client_secrets.add(client_secret(b"third", created_at=20, expires_at=30))
    assert await store.client_secrets.find(b"first") is None
    assert await store.client_secrets.find(b"second") is not None
    await store.client_secrets.delete(b"second")
    await store.client_secrets.delete(b"second")
    assert await store.client_secrets.find(b"second") is None
    assert await store.client_secrets.find(b"third") is not None


# Recorded sessions


def session(id: str, tenant: str = "ada", **fields: Any) -> SessionRecord:
    asked = {"key_id": None, "protocol": "realtime", "mode": "conversation", "model": "parrot", "created_at": 1, **fields}
    return SessionRecord(id=id, tenant=tenant, **asked)


KEPT = {"state": "kept", "ended_at": 9, "duration_ms": 8000, "reason": "left", "bytes": 2**40, "truncated": "disk full"}


async def sessions(store: Store, tenant: str | None = "ada", after: str | None = None, limit: int = 10, order: Any = "asc") -> list[str]:
    return [one.id for one in (await store.sessions.page(tenant, after=after, limit=limit, order=order)).sessions]


async def test_a_session_is_kept_and_changed_and_stays_in_its_place(store: Store) -> None:
    for id in ("sess_1", "sess_2"):
        await store.sessions.put(session(id))
    await store.sessions.put(session("sess_1", key_id="key_1", **KEPT))
    assert await store.sessions.get("ada", "sess_1") == session("sess_1", key_id="key_1", **KEPT)
    assert await sessions(store) == ["sess_1", "sess_2"]


async def test_another_tenants_session_is_as_good_as_none_save_for_whoever_looks_after_all(store: Store) -> None:
    await store.sessions.put(session("sess_1"))
    await store.sessions.put(session("sess_2", tenant="eve"))
    assert await store.sessions.get("eve", "sess_1") is None
    assert await store.sessions.delete("eve", "sess_1") is False
    assert await sessions(store, "eve") == ["sess_2"]
    with pytest.raises(UnknownCursor):
        await sessions(store, "eve", after="sess_1")
    assert await store.sessions.get(None, "sess_1") == session("sess_1")
    assert await sessions(store, None) == ["sess_1", "sess_2"]
    assert await store.sessions.delete(None, "sess_2") is True
    assert await store.sessions.delete("ada", "sess_1") is True
    assert await sessions(store, None) == []


async def test_sessions_are_paged_in_either_order(store: Store) -> None:
    for number in range(4):
        await store.sessions.put(session(f"sess_{number}"))
    assert await sessions(store, limit=2, order="desc") == ["sess_3", "sess_2"]
    assert await sessions(store, after="sess_2", order="desc") == ["sess_1", "sess_0"]
    assert await sessions(store, after="sess_2") == ["sess_3"]
    assert (await store.sessions.page("ada", after=None, limit=3, order="asc")).has_more
    assert not (await store.sessions.page("ada", after=None, limit=4, order="asc")).has_more


async def test_the_oldest_sessions_are_those_that_have_ended(store: Store) -> None:
    await store.sessions.put(session("sess_1"))
    for number in (2, 3, 4):
        await store.sessions.put(session(f"sess_{number}", **KEPT))
    assert [one.id for one in await store.sessions.oldest(2)] == ["sess_2", "sess_3"]
    assert [one.id for one in await store.sessions.live()] == ["sess_1"]
    assert await store.sessions.total_bytes() == 3 * 2**40


async def test_no_session_has_an_id_with_a_nul(store: Store) -> None:
    assert await store.sessions.get("ada", "sess\0") is None
    assert await store.sessions.delete("ada", "sess\0") is False
    with pytest.raises(UnknownCursor):
        await sessions(store, after="\0")
