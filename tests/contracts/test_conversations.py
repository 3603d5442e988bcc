"""What every store does with conversations."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from antiphon.errors import ClientError, ServerError
from antiphon.records import ConversationRecord, ConversationTurn, Direction, ItemRecord, ResponseRecord
from antiphon.stores.base import (
    MAX_CHAIN_BYTES,
    MAX_CONVERSATION_ITEMS,
    ConversationLocked,
    DuplicateItem,
    SortOrder,
    Store,
    UnknownConversation,
    UnknownCursor,
)

pytestmark = pytest.mark.anyio

CONVERSATION = ConversationRecord(id="conv_1", tenant="ada", created_at=1, metadata=b'{"a":"\xc3\xa4"}')


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def item(id: str, direction: Direction = "input", body: bytes = b"{}") -> ItemRecord:
    return ItemRecord(id=id, direction=direction, body=body)


def response(id: str = "resp_1", status: str = "completed") -> ResponseRecord:
    return ResponseRecord(id=id, tenant="ada", created_at=1, status=status, model="m", previous_response_id=None, body=b"{}")


def turn(response_id: str = "resp_1", *items: ItemRecord, tenant: str = "ada") -> ConversationTurn:
    return ConversationTurn(conversation_id="conv_1", tenant=tenant, response_id=response_id, items=items)


async def ids(store: Store, conversation_id: str = "conv_1") -> Sequence[str]:
    window = await store.conversations.window("ada", conversation_id)
    assert window is None or window.ids >= {item.id for item in window.items}
    return [] if window is None else [item.id for item in window.items]


async def page(store: Store, after: str | None = None, limit: int = 10, order: SortOrder = "asc") -> Sequence[str]:
    found = await store.conversations.page("ada", "conv_1", after=after, limit=limit, order=order)
    assert found is not None
    return [item.id for item in found.items] + (["…"] if found.has_more else [])


async def test_a_conversation_comes_back_as_it_was_created_with_its_items_in_order(store: Store) -> None:
    first = [item("msg_b", body=b"\x00\xff"), item("msg_a", "output")]
    await store.conversations.create(CONVERSATION, first)
    assert await store.conversations.get("ada", "conv_1") == CONVERSATION
    window = await store.conversations.window("ada", "conv_1")
    assert window is not None and list(window.items) == first and window.ids == {"msg_a", "msg_b"}
    assert await store.conversations.item("ada", "msg_b", "conv_1") == first[0]


async def test_metadata_is_replaced_and_nothing_else(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1")])
    changed = replace(CONVERSATION, metadata=b"{}")
    assert await store.conversations.update("ada", "conv_1", b"{}") == changed
    assert await store.conversations.get("ada", "conv_1") == changed
    assert await ids(store) == ["msg_1"]
    assert await store.conversations.update("ada", "conv_2", b"{}") is None


async def test_items_are_added_at_the_end_also_where_the_last_was_deleted(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1"), item("msg_2")])
    assert await store.conversations.delete_item("ada", "conv_1", "msg_2") == CONVERSATION
    await store.conversations.add_items("ada", "conv_1", [item("msg_0"), item("msg_2")])
    await store.conversations.add_items("ada", "conv_1", [])
    assert await store.conversations.delete_item("ada", "conv_1", "msg_1") == CONVERSATION
    assert await store.conversations.delete_item("ada", "conv_1", "msg_1") is None
    assert await ids(store) == ["msg_0", "msg_2"]


async def test_an_id_stands_once_in_a_conversation_and_may_stand_in_another(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1")])
    await store.conversations.create(replace(CONVERSATION, id="conv_2"), [item("msg_1", body=b"other")])
    with pytest.raises(DuplicateItem, match="msg_1"):
        await store.conversations.add_items("ada", "conv_1", [item("msg_2"), item("msg_1")])
    with pytest.raises(DuplicateItem, match="msg_3"):
        await store.conversations.add_items("ada", "conv_1", [item("msg_3"), item("msg_3")])
    with pytest.raises(DuplicateItem):
        await store.conversations.create(replace(CONVERSATION, id="conv_3"), [item("msg_3"), item("msg_3")])
    assert await ids(store) == ["msg_1"]
    assert await store.conversations.get("ada", "conv_3") is None
    assert await store.conversations.items("ada", ["msg_1"]) == {"msg_1": item("msg_1", body=b"other")}
    assert await store.conversations.item("ada", "msg_1", "conv_1") == item("msg_1")


async def test_items_are_paged_in_either_order(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item(f"msg_{number}") for number in range(4)])
    assert await page(store, limit=2) == ["msg_0", "msg_1", "…"]
    assert await page(store, after="msg_1") == ["msg_2", "msg_3"]
    assert await page(store, after="msg_2", limit=2, order="desc") == ["msg_1", "msg_0"]
    assert await page(store, after="msg_3") == []
    for cursor in ("msg_9", "msg_\0"):
        with pytest.raises(UnknownCursor):
            await page(store, after=cursor)
    assert await store.conversations.page("ada", "conv_2", after=None, limit=1, order="asc") is None


async def test_a_deleted_conversation_is_gone_with_its_items(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1")])
    assert await store.conversations.delete("ada", "conv_1") is True
    assert await store.conversations.delete("ada", "conv_1") is False
    assert await store.conversations.get("ada", "conv_1") is None
    assert await store.conversations.window("ada", "conv_1") is None
    assert await store.conversations.items("ada", ["msg_1"]) == {}
    with pytest.raises(UnknownConversation):
        await store.conversations.add_items("ada", "conv_1", [item("msg_2")])


@pytest.mark.parametrize(("tenant", "id"), [("eve", "conv_1"), ("ada", "conv_2"), ("ada", "conv_\0")])
async def test_another_tenants_conversation_is_as_good_as_none(store: Store, tenant: str, id: str) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1")])
    there = store.conversations
    assert await there.get(tenant, id) is None
    assert await there.update(tenant, id, b"{}") is None
    assert await there.delete(tenant, id) is False
    assert await there.page(tenant, id, after=None, limit=1, order="asc") is None
    assert await there.window(tenant, id) is None
    assert await there.item(tenant, "msg_1", id) is None
    assert await there.items("eve", ["msg_1"]) == {}
    assert await there.delete_item(tenant, id, "msg_1") is None
    assert await there.lock(tenant, id, "resp_1") is False
    with pytest.raises(UnknownConversation):
        await there.add_items(tenant, id, [item("msg_2")])
    assert await there.get("ada", "conv_1") == CONVERSATION and await ids(store) == ["msg_1"]


async def test_a_conversation_that_is_too_large_is_refused(store: Store) -> None:
    large = bytes(MAX_CHAIN_BYTES // 2)
    await store.conversations.create(CONVERSATION, [item("msg_1", body=large)])
    await store.conversations.add_items("ada", "conv_1", [item("msg_2", body=large)])
    assert await ids(store) == ["msg_1", "msg_2"]
    await store.conversations.add_items("ada", "conv_1", [item("msg_3")])
    with pytest.raises(ClientError, match=r"too large: it has more than 64 MiB") as error:
        await store.conversations.window("ada", "conv_1")
    assert (error.value.status, error.value.code, error.value.param) == (400, "context_length_exceeded", "conversation")


async def test_a_conversation_is_read_from_its_newest_compaction_on_whatever_came_before(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1", body=bytes(MAX_CHAIN_BYTES // 2)), item("msg_2")])
    await store.conversations.add_items("ada", "conv_1", [item("msg_3", body=bytes(MAX_CHAIN_BYTES // 2))])
    compaction, message = item("cmp_1", "output"), item("cmpx", "output")
    await store.conversations.add_items("ada", "conv_1", [item("cmp_0", "output"), compaction, item("cmp_2", "input"), message])
    window = await store.conversations.window("ada", "conv_1")
    assert window is not None and [each.id for each in window.items] == ["cmp_1", "cmp_2", "cmpx"]
    assert window.ids == {"msg_1", "msg_2", "msg_3", "cmp_0", "cmp_1", "cmp_2", "cmpx"}


async def test_a_conversation_of_too_many_items_is_refused(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item(f"msg_{number}") for number in range(MAX_CONVERSATION_ITEMS + 1)])
    with pytest.raises(ClientError, match="more than 50,000 items"):
        await store.conversations.window("ada", "conv_1")


# One response at a time


async def test_one_response_has_a_conversation_until_its_turn_is_stored(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1")])
    assert await store.conversations.lock("ada", "conv_1", "resp_1") is True
    assert await store.conversations.lock("ada", "conv_1", "resp_2") is False
    await store.conversations.end_turn(turn("resp_1", item("msg_2"), item("msg_3", "output")))
    assert await store.conversations.lock("ada", "conv_1", "resp_2") is True
    assert await ids(store) == ["msg_1", "msg_2", "msg_3"]


async def test_a_conversation_that_is_taken_back_is_free_and_unchanged(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1")])
    assert await store.conversations.lock("ada", "conv_1", "resp_1")
    await store.conversations.unlock("resp_2")
    assert not await store.conversations.lock("ada", "conv_1", "resp_2")
    await store.conversations.unlock("resp_1")
    await store.conversations.unlock("resp_1")
    assert await store.conversations.lock("ada", "conv_1", "resp_2")
    assert await ids(store) == ["msg_1"]


async def test_of_many_responses_at_once_one_gets_the_conversation(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [])
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.conversations.lock("ada", "conv_1", f"resp_{number}")) for number in range(20)]
    assert sum(task.result() for task in tasks) == 1


async def test_no_item_comes_or_goes_by_hand_while_a_response_is_made(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [item("msg_1")])
    await store.conversations.lock("ada", "conv_1", "resp_1")
    with pytest.raises(ConversationLocked):
        await store.conversations.add_items("ada", "conv_1", [item("msg_2")])
    with pytest.raises(ConversationLocked):
        await store.conversations.delete_item("ada", "conv_1", "msg_1")
    assert await store.conversations.update("ada", "conv_1", b"{}") is not None
    assert await ids(store) == ["msg_1"]


async def test_a_stored_response_and_its_turn_are_there_together(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [])
    await store.conversations.lock("ada", "conv_1", "resp_1")
    await store.put(response(), turn("resp_1", item("msg_1")))
    await store.conversations.lock("ada", "conv_1", "resp_2")
    await store.put(response("resp_2", "in_progress"))
    assert await store.finish(response("resp_2"), turn("resp_2", item("msg_2")))
    assert await ids(store) == ["msg_1", "msg_2"]
    assert await store.conversations.lock("ada", "conv_1", "resp_3")


async def test_a_response_that_was_deleted_meanwhile_still_adds_its_turn(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [])
    await store.conversations.lock("ada", "conv_1", "resp_1")
    await store.put(response(status="in_progress"))
    await store.delete("ada", "resp_1")
    assert await store.finish(response(), turn("resp_1", item("msg_1"))) is False
    assert await ids(store) == ["msg_1"]
    assert await store.conversations.lock("ada", "conv_1", "resp_2")


async def test_a_response_that_was_ended_by_another_adds_nothing_and_gives_the_conversation_back(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [])
    await store.conversations.lock("ada", "conv_1", "resp_1")
    await store.put(response(status="failed"))
    assert await store.finish(response(), turn("resp_1", item("msg_1"))) is False
    assert await ids(store) == []
    assert await store.conversations.lock("ada", "conv_1", "resp_2")


async def test_where_the_conversation_was_deleted_only_the_response_is_stored(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [])
    await store.conversations.lock("ada", "conv_1", "resp_1")
    assert await store.conversations.delete("ada", "conv_1")
    await store.put(response(), turn("resp_1", item("msg_1")))
    await store.conversations.end_turn(turn("resp_1", item("msg_1")))
    assert await store.get("ada", "resp_1") == response()
    assert await store.conversations.items("ada", ["msg_1"]) == {}


async def test_a_response_that_lost_the_conversation_is_not_stored_and_adds_nothing(store: Store) -> None:
    await store.conversations.create(CONVERSATION, [])
    await store.conversations.lock("ada", "conv_1", "resp_1")
    await store.conversations.unlock("resp_1")
    await store.conversations.lock("ada", "conv_1", "resp_2")
    with pytest.raises(ServerError, match="lost its hold"):
        await store.put(response(), turn("resp_1", item("msg_1")))
    with pytest.raises(ServerError, match="lost its hold"):
        await store.conversations.end_turn(turn("resp_1", item("msg_1")))
    assert await store.get("ada", "resp_1") is None
    await store.conversations.end_turn(turn("resp_2", item("msg_2")))
    assert await ids(store) == ["msg_2"]


async def test_many_turns_at_once_are_all_added_each_to_its_own_conversation(store: Store) -> None:
    async def converse(number: int) -> None:
        id = f"conv_{number}"
        await store.conversations.create(replace(CONVERSATION, id=id), [])
        for count in range(5):
            response_id = f"resp_{number}_{count}"
            assert await store.conversations.lock("ada", id, response_id)
            await store.put(response(response_id), replace(turn(response_id, item(f"msg_{count}")), conversation_id=id))

    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(converse(number))
    for number in range(30):
        assert await ids(store, f"conv_{number}") == [f"msg_{count}" for count in range(5)]


async def test_conversations_are_listed_for_their_tenant_in_both_orders(store: Store) -> None:
    conversations = [replace(CONVERSATION, id=f"conv_{number}") for number in range(3)]
    for each in (*conversations, replace(CONVERSATION, id="conv_9", tenant="eve")):
        await store.conversations.create(each, ())
    everything = await store.conversations.all("ada", after=None, limit=9, order="desc")
    assert (list(everything.conversations), everything.has_more) == (conversations[::-1], False)
    first = await store.conversations.all("ada", after=None, limit=2, order="asc")
    assert (list(first.conversations), first.has_more) == (conversations[:2], True)
    rest = await store.conversations.all("ada", after="conv_1", limit=2, order="asc")
    assert (list(rest.conversations), rest.has_more) == (conversations[2:], False)
    for cursor in ("conv_9", "conv_8", "\0"):
        with pytest.raises(UnknownCursor):
            await store.conversations.all("ada", after=cursor, limit=2, order="asc")
