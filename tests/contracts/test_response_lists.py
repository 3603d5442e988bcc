"""What every store does with its responses as lists."""

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from antiphon.records import BackgroundRecord, ItemRecord, ResponseRecord
from antiphon.stores.base import Store, UnknownCursor
from antiphon.stores.response_list import MAX_SEARCH_BYTES, MAX_WORD_LENGTH, MAX_WORDS, ResponseQuery, search_words

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def response(id: str, after: str | None = None, *, tenant: str = "ada", text: str = "", **fields: str | None) -> ResponseRecord:
    items = (ItemRecord(id=f"msg_{id}", direction="input", body=text.encode()),)
    told = {"status": "completed", "model": "parrot", "key_id": None} | fields
    return ResponseRecord(id=id, tenant=tenant, created_at=1, previous_response_id=after, body=f'"{id}"'.encode(), items=items, **told)  # type: ignore[arg-type]


async def put(store: Store, *records: ResponseRecord) -> None:
    for record in records:
        await store.put(record)


async def index(store: Store, tenant: str | None = None) -> int:
    """Index what is to be indexed by the text of its items; returns how many those were."""
    found = await store.lists.to_index(tenant, 100)
    await store.lists.index({each.number: search_words(b" ".join((each.body, *each.items)).decode()) for each in found})
    return len(found)


async def ids(store: Store, tenant: str = "ada", **query: object) -> tuple[list[str], bool]:
    page = await store.lists.page(tenant, ResponseQuery(**{"limit": 10} | query))  # type: ignore[arg-type]
    return [row.id for row in page.rows], page.has_more


async def roots(store: Store, tenant: str = "ada", after: str | None = None, limit: int = 10, words: tuple[str, ...] = ()) -> object:
    page = await store.lists.roots(tenant, after=after, limit=limit, words=words)
    return [(row.id, row.latest.id, row.count, row.root is not None) for row in page.rows], page.has_more


TREE = (
    response("resp_1"),
    response("resp_2", "resp_1"),
    response("resp_3", "resp_1", model="other"),
    response("resp_4", "resp_2"),
    response("resp_5", status="failed"),
)


async def test_a_list_has_pages_in_both_orders(store: Store) -> None:
    await put(store, *TREE)
    assert await ids(store) == (["resp_5", "resp_4", "resp_3", "resp_2", "resp_1"], False)
    assert await ids(store, limit=2) == (["resp_5", "resp_4"], True)
    assert await ids(store, limit=2, after="resp_4") == (["resp_3", "resp_2"], True)
    assert await ids(store, limit=2, after="resp_2") == (["resp_1"], False)
    assert await ids(store, limit=2, order="asc", after="resp_1") == (["resp_2", "resp_3"], True)
    assert await ids(store, after="resp_1") == ([], False)


async def test_a_list_can_be_narrowed(store: Store) -> None:
    await put(store, *TREE)
    assert await ids(store, model="other") == (["resp_3"], False)
    assert await ids(store, status="failed") == (["resp_5"], False)
    assert await ids(store, root="resp_1") == (["resp_4", "resp_3", "resp_2", "resp_1"], False)
    assert await ids(store, root="resp_1", model="parrot", after="resp_4") == (["resp_2", "resp_1"], False)
    assert await ids(store, root="resp_2") == await ids(store, model="none") == await ids(store, model="\0") == ([], False)


async def test_a_row_says_what_is_stored(store: Store) -> None:
    await put(store, TREE[0], replace(TREE[1], key_id="key_1"))
    row = (await store.lists.page("ada", ResponseQuery(limit=1))).rows[0]
    assert (row.id, row.created_at, row.status, row.model) == ("resp_2", 1, "completed", "parrot")
    assert (row.previous_response_id, row.root_id, row.key_id, row.body) == ("resp_1", "resp_1", "key_1", b'"resp_2"')
    record = await store.get("ada", "resp_2")
    assert record is not None and record.key_id == "key_1"


@pytest.mark.parametrize("cursor", ["resp_0", "resp_9", "\0"])
async def test_a_cursor_that_is_no_response_of_the_tenant_is_refused(store: Store, cursor: str) -> None:
    await put(store, *TREE, response("resp_9", tenant="eve"))
    with pytest.raises(UnknownCursor):
        await ids(store, after=cursor)
    with pytest.raises(UnknownCursor):
        await roots(store, after=cursor)


async def test_another_tenants_responses_are_in_no_list(store: Store) -> None:
    await put(store, *TREE, response("resp_9", "resp_1", tenant="eve", text="secret"))
    await index(store)
    assert await ids(store, "eve") == (["resp_9"], False)
    assert await ids(store, "eve", root="resp_1") == (["resp_9"], False)  # it names what it does not reach
    assert await ids(store, words=("secret",)) == ([], False)
    assert "resp_9" not in (await ids(store))[0]
    assert await roots(store, "eve") == ([("resp_1", "resp_9", 1, False)], False)
    assert (await store.lists.roots("ada", after=None, limit=9)).rows[-1].count == 4
    assert not await store.lists.replace_body("eve", "resp_1", b"{}")
    assert [len(await store.lists.to_index(tenant, 9)) for tenant in ("ada", "eve", "mallory")] == [0, 0, 0]


async def test_trees_come_in_the_order_of_their_latest_responses(store: Store) -> None:
    await put(store, *TREE, response("resp_6", "resp_3"), response("resp_7"))
    expected = [("resp_7", "resp_7", 1, True), ("resp_1", "resp_6", 5, True), ("resp_5", "resp_5", 1, True)]
    assert await roots(store) == (expected, False)
    assert await roots(store, limit=1) == (expected[:1], True)
    assert await roots(store, limit=1, after="resp_7") == (expected[1:2], True)
    assert await roots(store, limit=1, after="resp_1") == (expected[2:], False)
    with pytest.raises(UnknownCursor):
        await roots(store, after="resp_4")  # within a tree


async def test_a_tree_stays_together_when_its_root_is_deleted(store: Store) -> None:
    await put(store, *TREE)
    await store.delete("ada", "resp_1")
    await store.delete("ada", "resp_5")
    assert await roots(store) == ([("resp_1", "resp_4", 3, False)], False)
    await put(store, response("resp_6", "resp_4"), response("resp_7", "resp_gone"), response("resp_8", "resp_gone"))
    assert await roots(store) == ([("resp_gone", "resp_8", 2, False), ("resp_1", "resp_6", 4, False)], False)


async def test_a_response_may_stand_in_a_tree_of_which_it_continues_nothing(store: Store) -> None:
    await put(store, *TREE, replace(response("resp_6"), branch_of="resp_4"), response("resp_7", "resp_6"))
    assert await ids(store, root="resp_1", limit=2) == (["resp_7", "resp_6"], True)
    assert await roots(store, limit=1) == ([("resp_1", "resp_7", 6, True)], True)
    await put(store, replace(response("resp_8", "resp_5"), branch_of="resp_1"))  # what it continues counts for more
    assert await ids(store, root="resp_5") == (["resp_8", "resp_5"], False)
    for number, other in enumerate(("resp_0", "resp_9", "\0", ""), start=10):
        await put(store, response("resp_9", tenant="eve"), replace(response(f"resp_{number}"), branch_of=other))
        assert await ids(store, root=f"resp_{number}") == ([f"resp_{number}"], False), other


async def test_only_some_can_be_asked_for(store: Store) -> None:
    await put(store, *TREE, response("resp_9", tenant="eve"))
    assert await ids(store, ids=("resp_4", "resp_1", "resp_9", "resp_0", "\0")) == (["resp_4", "resp_1"], False)
    assert await ids(store, ids=("resp_4", "resp_1"), order="asc", limit=1) == (["resp_1"], True)
    assert await ids(store, ids=("resp_4", "resp_5"), root="resp_1") == (["resp_4"], False)
    assert await ids(store, ids=("\0",)) == await ids(store, ids=()) == ([], False)


async def test_inputs_are_read_for_as_many_as_fit(store: Store) -> None:
    items = [
        ItemRecord(id=f"msg_{number}", direction=side, body=b"x" * number) for number, side in ((3, "input"), (5, "output"), (2, "input"))
    ]
    await put(
        store, replace(response("resp_1"), items=tuple(items)), response("resp_2", text="four"), replace(response("resp_3"), items=())
    )
    rows = (await store.lists.page("ada", ResponseQuery(limit=9, order="asc"))).rows
    body = len(rows[0].body)
    inputs = [[b"xxx", b"xx"], [b"four"], []]
    for max_bytes, count in ((0, 1), (2 * body + 8, 1), (2 * body + 9, 2), (3 * body + 8, 2), (3 * body + 9, 3)):
        assert [[*each] for each in await store.lists.inputs("ada", rows, max_bytes)] == inputs[:count], max_bytes
    assert await store.lists.inputs("ada", (), 9) == []
    await store.delete("ada", "resp_2")
    assert [[*each] for each in await store.lists.inputs("ada", rows, 99)] == [inputs[0], [], []]
    assert not any(await store.lists.inputs("eve", rows, 99))


async def test_responses_that_are_put_again_are_counted_once(store: Store) -> None:
    await put(store, *TREE, TREE[0])
    assert (await ids(store))[0][0] == "resp_1"
    assert await roots(store) == ([("resp_1", "resp_1", 4, True), ("resp_5", "resp_5", 1, True)], False)


async def test_words_are_found_wherever_they_begin_and_all_of_them(store: Store) -> None:
    await put(
        store,
        response("resp_1", text="The Fugue in G minor"),
        response("resp_2", "resp_1", text="Füge es ein, Straße 42"),
        response("resp_3", text="東京の天気"),
        response("resp_4", text="refuge"),
    )
    assert await index(store) == 4 and await index(store) == 0
    for words, expected in {
        ("fug",): ["resp_2", "resp_1"],
        ("fugu",): ["resp_1"],
        ("fugue", "min"): ["resp_1"],
        ("fugue", "strasse"): [],
        ("strasse", "4"): ["resp_2"],
        ("天", "東"): ["resp_3"],
        ("resp",): ["resp_4", "resp_3", "resp_2", "resp_1"],
        ("nothing",): [],
    }.items():
        assert await ids(store, words=words) == (expected, False), words
    assert await ids(store, words=("fug",), limit=1) == (["resp_2"], True)
    assert await ids(store, words=("fug",), after="resp_2", order="desc") == (["resp_1"], False)
    assert await roots(store, words=("fugue",)) == ([("resp_1", "resp_2", 2, True)], False)
    assert await roots(store, words=("strasse",)) == ([("resp_1", "resp_2", 2, True)], False)


async def test_what_has_not_ended_is_not_indexed_and_what_is_gone_not_found(store: Store) -> None:
    running = response("resp_1", status="in_progress", text="fugue")
    await put(store, running, response("resp_2", text="fugue"))
    (waiting,) = await store.lists.to_index("ada", 9)
    await store.delete("ada", "resp_2")
    await store.lists.index({waiting.number: ["fugue"]})
    assert await ids(store, words=("fugue",)) == ([], False)
    await store.finish(replace(running, status="completed"))
    assert await index(store) == 1
    assert await ids(store, words=("fugue",)) == (["resp_1"], False)
    await store.delete("ada", "resp_1")
    await put(store, response("resp_3", text="canon"))
    await index(store)
    assert await ids(store, words=("fugue",)) == ([], False)


async def test_what_replaces_a_body_is_indexed_again(store: Store) -> None:
    running = response("resp_2", status="in_progress")
    await put(store, response("resp_1", text="fugue"), running)
    await index(store)
    assert await store.lists.replace_body("ada", "resp_1", b'"canon"')
    for id in ("resp_2", "resp_0", "\0"):
        assert not await store.lists.replace_body("ada", id, b"{}")
    assert await index(store) == 1
    assert (await ids(store, words=("canon", "fugue")))[0] == ["resp_1"]
    assert (await ids(store, words=("resp",)))[0] == []
    record = await store.get("ada", "resp_1")
    assert record is not None and record.body == b'"canon"'


async def test_what_replaces_a_body_while_it_is_indexed_is_found(store: Store) -> None:
    """By another server, or between two steps of this one: the words are of what was read before."""
    await put(store, response("resp_1", text="fugue"), response("resp_2", text="fugue"))
    waiting = await store.lists.to_index("ada", 9)
    assert await store.lists.replace_body("ada", "resp_1", b'"canon"')
    await store.lists.index({each.number: ["fugue"] for each in waiting}, {each.number: each.body for each in waiting})
    assert await ids(store, words=("fugue",)) == (["resp_2"], False)
    assert await index(store) == 1
    assert await ids(store, words=("canon",)) == (["resp_1"], False)


async def test_large_items_are_not_read_for_their_words(store: Store) -> None:
    small = ItemRecord(id="msg_1", direction="input", body=b"x" * MAX_SEARCH_BYTES)
    large = ItemRecord(id="msg_2", direction="output", body=b"x" * (MAX_SEARCH_BYTES + 1))
    await put(store, replace(response("resp_1"), items=(small, large)))
    (waiting,) = await store.lists.to_index(None, 9)
    assert waiting.items == (small.body,)


async def test_the_newest_are_indexed_first_and_no_more_than_asked_for(store: Store) -> None:
    await put(store, *TREE)
    assert [each.body for each in await store.lists.to_index(None, 2)] == [b'"resp_5"', b'"resp_4"']
    await store.lists.index({})


async def test_a_background_response_is_listed_like_any(store: Store) -> None:
    record = replace(response("resp_2", "resp_1", status="queued"), key_id="key_1")
    await put(store, TREE[0])
    await store.background.add(record, BackgroundRecord(key_id="key_1", request=b"{}", is_streamed=False), None)
    row = (await store.lists.page("ada", ResponseQuery(limit=1, status="queued"))).rows[0]
    assert (row.id, row.root_id, row.key_id) == ("resp_2", "resp_1", "key_1")


@given(st.text(max_size=300))
def test_words_are_plain_and_their_own_words(text: str) -> None:
    words = search_words(text)
    assert len(words) == len({*words}) and all(word.isalnum() and len(word) <= MAX_WORD_LENGTH for word in words)
    assert search_words(" ".join(words)) == words or any(len(word) == MAX_WORD_LENGTH for word in words)


def test_a_text_has_no_end_of_words() -> None:
    assert len(search_words(" ".join(f"w{number}" for number in range(MAX_WORDS + 9)))) == MAX_WORDS
    assert search_words("") == search_words(" .,;'\"*()\0") == []


async def test_any_text_is_found_by_its_own_words(store: Store) -> None:
    texts = ['o\'clock "quoted" AND OR NOT near*', "1e5 3.14 a-b_c foo.bar@example.com", "ǅ ﬁ ½ ² Ⅻ ٣ ក្រុង  \u0000", "𝔘𝔫𝔦 😀 café CAFÉ"]
    await put(store, *(response(f"resp_{number}", text=text) for number, text in enumerate(texts)))
    await index(store)
    for number, text in enumerate(texts):
        for word in search_words(text):
            assert f"resp_{number}" in (await ids(store, words=(word,)))[0], (text, word)
