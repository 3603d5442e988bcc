"""Vector stores, with the official client."""

import openai
import pytest
from openai.types import VectorStore, VectorStoreDeleted
from openai.types.vector_stores import VectorStoreFile, VectorStoreFileBatch, VectorStoreFileDeleted

OWLS = "Owls hunt at night. Their feathers make no sound."
BELLS = "Church bells are cast in bronze. The founder pours it in one go."
TIDES = "The moon pulls the sea. Twice a day the tide comes in."


def is_strict(model):
    """Whether what came is exactly what the official client expects."""
    type(model).model_validate(model.model_dump(), strict=True)
    return not model.model_extra


@pytest.fixture
def store(client):
    store = client.vector_stores.create(name="Notes")
    yield store
    client.vector_stores.delete(store.id)


def test_a_store_is_created_changed_listed_and_deleted(client):
    store = client.vector_stores.create(
        name="Eulen ☽", description="of the night", metadata={"a": "b"}, expires_after={"anchor": "last_active_at", "days": 7}
    )
    assert isinstance(store, VectorStore) and is_strict(store) and store.id.startswith("vs_")
    assert (store.name, store.metadata, store.status, store.usage_bytes) == ("Eulen ☽", {"a": "b"}, "completed", 0)
    assert store.last_active_at == store.created_at and store.expires_at == store.created_at + 7 * 86_400
    assert store.file_counts.total == 0 and store.expires_after.days == 7
    assert client.vector_stores.retrieve(store.id) == store
    changed = client.vector_stores.update(store.id, name="Owls", metadata={"c": "d"})
    assert (changed.name, changed.metadata, changed.expires_at) == ("Owls", {"c": "d"}, store.expires_at)
    cleared = client.vector_stores.update(store.id, name=None, metadata=None, expires_after=None)
    assert (cleared.name, cleared.metadata, cleared.expires_after, cleared.expires_at) == ("", {}, None, None)
    assert client.vector_stores.list().data[0] == cleared
    assert client.vector_stores.delete(store.id) == VectorStoreDeleted(id=store.id, deleted=True, object="vector_store.deleted")
    for call in (client.vector_stores.retrieve, client.vector_stores.delete, client.vector_stores.update):
        with pytest.raises(openai.NotFoundError) as refusal:
            call(store.id)
        assert refusal.value.body["message"] == f"Vector store with id '{store.id}' not found."


def test_pages_go_both_ways(client):
    ids = [client.vector_stores.create(name=str(number)).id for number in range(4)]
    assert [store.id for store in client.vector_stores.list(limit=2)][:4] == ids[::-1]  # the client follows the pages
    page = client.vector_stores.list(order="asc", after=ids[0], limit=2)
    assert [store.id for store in page.data] == ids[1:3] and page.has_more
    page = client.vector_stores.list(before=ids[0], limit=2)
    assert [store.id for store in page.data] == [ids[2], ids[1]] and page.has_more
    for param, value in (("after", "vs_0"), ("before", "vs_0"), ("limit", 101), ("limit", 0), ("order", "up")):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.vector_stores.list(**{param: value})
        assert refusal.value.param == param
    for id in ids:
        client.vector_stores.delete(id)


def test_a_file_is_indexed_found_read_and_taken_out(client, store, upload):
    file_id = upload(OWLS, "owls.md")
    file = client.vector_stores.files.create_and_poll(file_id, vector_store_id=store.id, attributes={"year": 1843, "wild": True})
    assert isinstance(file, VectorStoreFile) and is_strict(file)
    assert (file.id, file.status, file.last_error, file.vector_store_id) == (file_id, "completed", None, store.id)
    assert file.usage_bytes > 0 and file.attributes == {"year": 1843, "wild": True}
    assert (file.chunking_strategy.static.max_chunk_size_tokens, file.chunking_strategy.static.chunk_overlap_tokens) == (800, 400)
    counts = client.vector_stores.retrieve(store.id)
    assert (counts.file_counts.completed, counts.file_counts.total, counts.usage_bytes) == (1, 1, file.usage_bytes)
    page = client.vector_stores.search(store.id, query="hunting feathers")
    assert page.object == "vector_store.search_results.page" and page.model_extra["search_query"] == ["hunting feathers"]
    result = page.data[0]
    assert is_strict(result) and (result.file_id, result.filename) == (file_id, "owls.md")
    assert [content.text for content in result.content] == [OWLS] and 0 < result.score <= 1
    assert [content.text for content in client.vector_stores.files.content(file_id, vector_store_id=store.id)] == [OWLS]
    changed = client.vector_stores.files.update(file_id, vector_store_id=store.id, attributes={"year": 1844})
    assert changed.attributes == {"year": 1844}
    assert client.vector_stores.search(store.id, query="owls").data[0].attributes == {"year": 1844}
    gone = client.vector_stores.files.delete(file_id, vector_store_id=store.id)
    assert gone == VectorStoreFileDeleted(id=file_id, deleted=True, object="vector_store.file.deleted")
    assert client.vector_stores.search(store.id, query="owls").data == []
    assert client.files.retrieve(file_id).id == file_id
    for call in (client.vector_stores.files.retrieve, client.vector_stores.files.delete, client.vector_stores.files.content):
        with pytest.raises(openai.NotFoundError) as refusal:
            call(file_id, vector_store_id=store.id)
        assert refusal.value.param == "file_id"


def test_a_store_begins_with_files_and_chunks_of_a_chosen_size(client, upload):
    words = " ".join(f"word{number}" for number in range(1500))
    ids = [upload(words), upload(TIDES)]
    sizes = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20}
    store = client.vector_stores.create(file_ids=ids, chunking_strategy={"type": "static", "static": sizes})
    assert (store.status, store.file_counts.total) == ("in_progress", 2)
    for id in ids:
        file = client.vector_stores.files.poll(id, vector_store_id=store.id)
        assert file.status == "completed" and file.chunking_strategy.static.max_chunk_size_tokens == 100
    assert client.vector_stores.retrieve(store.id).status == "completed"
    pieces = client.vector_stores.files.content(ids[0], vector_store_id=store.id).data
    assert len(pieces) > 1 and "".join(piece.text for piece in pieces) == words
    results = client.vector_stores.search(store.id, query="word1402", max_num_results=1).data
    assert len(results) == 1 and "word1402" in results[0].content[0].text and len(results[0].content[0].text) < 1000
    client.vector_stores.delete(store.id)


def test_filters_choose_among_files(client, store, upload):
    for text, attributes in ((OWLS, {"kind": "bird", "year": 2001}), (BELLS, {"kind": "craft", "year": 1990}), (TIDES, {})):
        file_id = upload(text, f"{text[:4]}.txt")
        client.vector_stores.files.create_and_poll(file_id, vector_store_id=store.id, attributes=attributes)

    def find(filters):
        return {result.filename for result in client.vector_stores.search(store.id, query="the night bells sea", filters=filters)}

    assert find({"type": "eq", "key": "kind", "value": "bird"}) == {"Owls.txt"}
    assert find({"type": "lt", "key": "year", "value": 2000}) == {"Chur.txt"}
    either = [{"type": "gte", "key": "year", "value": 2001}, {"type": "in", "key": "kind", "value": ["craft"]}]
    assert find({"type": "or", "filters": either}) == {"Owls.txt", "Chur.txt"}
    assert find({"type": "and", "filters": either}) == set()
    with pytest.raises(openai.BadRequestError) as refusal:
        find({"type": "eq", "key": "kind", "value": ["a"]})
    assert refusal.value.param.startswith("filters")


def test_a_batch_is_indexed_together(client, store, upload):
    ids = [upload(text) for text in (OWLS, BELLS, TIDES)]
    batch = client.vector_stores.file_batches.create_and_poll(store.id, file_ids=ids, attributes={"set": "a"})
    assert isinstance(batch, VectorStoreFileBatch) and is_strict(batch) and batch.id.startswith("vsfb_")
    assert (batch.status, batch.file_counts.completed, batch.file_counts.total) == ("completed", 3, 3)
    files = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id, order="asc", limit=2)
    assert [file.id for file in files] == ids and all(file.attributes == {"set": "a"} for file in files.data)
    assert [file.id for file in client.vector_stores.files.list(store.id, filter="completed")] == ids[::-1]
    assert client.vector_stores.files.list(store.id, filter="failed").data == []
    assert client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id) == batch  # there is nothing to cancel
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.file_batches.retrieve("vsfb_0", vector_store_id=store.id)
    sizes = {"type": "static", "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 0}}
    files = [{"file_id": ids[0], "attributes": {"n": 1.5}, "chunking_strategy": sizes}, {"file_id": ids[1]}]
    second = client.vector_stores.file_batches.create_and_poll(store.id, files=files)
    assert second.file_counts.completed == 2
    first = client.vector_stores.files.retrieve(ids[0], vector_store_id=store.id)
    assert first.attributes == {"n": 1.5} and first.chunking_strategy.static.max_chunk_size_tokens == 200
    assert client.vector_stores.retrieve(store.id).file_counts.total == 3


def test_files_are_uploaded_and_indexed_in_one_call(client, store):
    file = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("bells.txt", BELLS.encode()))
    assert file.status == "completed"
    texts = [("owls.txt", OWLS.encode()), ("tides.txt", TIDES.encode())]
    batch = client.vector_stores.file_batches.upload_and_poll(store.id, files=texts)
    assert batch.file_counts.completed == 2
    results = client.vector_stores.search(store.id, query=["bronze", "moon"], ranking_options={"ranker": "default-2024-11-15"}).data
    assert {result.filename for result in results[:2]} == {"bells.txt", "tides.txt"}


@pytest.mark.parametrize(
    ("content", "name", "code"), [(b"\x00\x01\xff\xfe\x07" * 50, "a.bin", "unsupported_file"), (b" \n ", "a.txt", "invalid_file")]
)
def test_a_file_that_can_not_be_indexed_says_why(client, store, content, name, code):
    file = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=(name, content))
    assert (file.status, file.last_error.code, file.usage_bytes) == ("failed", code, 0) and file.last_error.message
    assert is_strict(file)
    store = client.vector_stores.retrieve(store.id)
    assert (store.status, store.file_counts.failed) == ("completed", 1)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.vector_stores.files.content(file.id, vector_store_id=store.id)
    assert refusal.value.code == "file_not_indexed"


def test_deleting_a_file_takes_it_out_of_its_stores(client, store, upload):
    file_id = upload(OWLS)
    client.vector_stores.files.create_and_poll(file_id, vector_store_id=store.id)
    client.files.delete(file_id)
    assert client.vector_stores.files.list(store.id).data == []
    assert client.vector_stores.search(store.id, query="owls").data == []


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"expires_after": {"anchor": "created_at", "days": 1}}, "invalid_value", "expires_after.anchor"),
        ({"expires_after": {"anchor": "last_active_at", "days": 0}}, "integer_below_min_value", "expires_after.days"),
        ({"expires_after": {"anchor": "last_active_at", "days": 366}}, "integer_above_max_value", "expires_after.days"),
        ({"name": "a\0b"}, "invalid_value", "name"),
        ({"name": "a" * 513}, "string_above_max_length", "name"),
        ({"metadata": {str(number): "" for number in range(17)}}, "object_above_max_properties", "metadata"),
        ({"chunking_strategy": {"type": "semantic"}}, "invalid_value", "chunking_strategy.type"),
        (
            {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 99, "chunk_overlap_tokens": 0}}},
            "integer_below_min_value",
            "chunking_strategy.static.max_chunk_size_tokens",
        ),
        (
            {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51}}},
            "invalid_value",
            "chunking_strategy.static.chunk_overlap_tokens",
        ),
        ({"file_ids": ["file-none"]}, None, "file_ids[0]"),
        ({"file_ids": "file-none"}, "invalid_type", "file_ids"),
    ],
)
def test_what_is_wrong_with_a_new_store_is_named(client, fields, code, param):
    with pytest.raises(openai.APIStatusError) as refusal:
        client.vector_stores.create(**fields)
    assert (refusal.value.code, refusal.value.param) == (code, param)
    assert refusal.value.status_code == (404 if code is None else 400)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"query": ""}, "empty_string", "query"),
        ({"query": []}, "empty_array", "query"),
        ({"query": ["a"] * 17}, "array_above_max_length", "query"),
        ({"query": "a" * 4097}, "string_above_max_length", "query"),
        ({"query": "a", "max_num_results": 0}, "integer_below_min_value", "max_num_results"),
        ({"query": "a", "max_num_results": 51}, "integer_above_max_value", "max_num_results"),
        ({"query": "a", "ranking_options": {"ranker": "best"}}, "invalid_value", "ranking_options.ranker"),
        ({"query": "a", "ranking_options": {"score_threshold": 2}}, "decimal_above_max_value", "ranking_options.score_threshold"),
        (
            {"query": "a", "ranking_options": {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}},
            "invalid_value",
            "ranking_options.hybrid_search",
        ),
        ({"query": "a", "filters": {"type": "like", "key": "a", "value": "b"}}, "invalid_value", "filters.type"),
    ],
)
def test_what_is_wrong_with_a_search_is_named(client, store, fields, code, param):
    with pytest.raises(openai.BadRequestError) as refusal:
        client.vector_stores.search(store.id, **fields)
    assert (refusal.value.code, refusal.value.param) == (code, param)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"attributes": {"a": ["b"]}}, "invalid_type", "attributes.a"),
        ({"attributes": {"a": "b" * 513}}, "string_above_max_length", "attributes.a"),
        ({"attributes": {"a" * 65: "b"}}, "property_name_above_max_length", f"attributes.{'a' * 65}"),
        ({"attributes": {str(number): number for number in range(17)}}, "object_above_max_properties", "attributes"),
        ({"file_id": "file-\0"}, None, "file_id"),
        ({"file_id": 7}, "invalid_type", "file_id"),
    ],
)
def test_what_is_wrong_with_a_new_file_is_named(client, store, upload, fields, code, param):
    with pytest.raises(openai.APIStatusError) as refusal:
        client.vector_stores.files.create(**{"file_id": upload(OWLS), "vector_store_id": store.id, **fields})
    assert (refusal.value.code, refusal.value.param) == (code, param)


def test_a_batch_has_its_files_in_one_way_and_has_room(client, store, upload):
    file_id = upload(OWLS)
    calls = [
        ({}, "missing_required_parameter", "file_ids"),
        ({"file_ids": []}, "missing_required_parameter", "file_ids"),
        ({"file_ids": [file_id], "files": [{"file_id": file_id}]}, "invalid_value", "files"),
        ({"file_ids": [file_id, "file-none"]}, None, "file_ids[1]"),
        ({"files": [{"file_id": "file-none"}]}, None, "files[0].file_id"),
        ({"files": [{"attributes": {}}]}, "missing_required_parameter", "files[0].file_id"),
        ({"file_ids": [file_id] * 2001}, "array_above_max_length", "file_ids"),
        ({"file_ids": [upload(OWLS) for _ in range(7)]}, "vector_store_full", "file_ids[0]"),  # the server's limit is 6
    ]
    for fields, code, param in calls:
        with pytest.raises(openai.APIStatusError) as refusal:
            client.vector_stores.file_batches.create(store.id, **fields)
        assert (refusal.value.code, refusal.value.param) == (code, param)
    assert client.vector_stores.files.list(store.id).data == []
    with pytest.raises(openai.BadRequestError) as refusal:
        client.vector_stores.files.list(store.id, filter="done")
    assert refusal.value.param == "filter"


def test_a_client_is_told_when_to_ask_again(client, store, upload):
    file_id = upload("word " * 30_000)
    client.vector_stores.files.create(store.id, file_id=file_id)
    reply = client.vector_stores.files.with_raw_response.retrieve(file_id, vector_store_id=store.id)
    assert reply.parse().status == "in_progress" and reply.headers["openai-poll-after-ms"] == "300"
    client.vector_stores.files.delete(file_id, vector_store_id=store.id)


def test_an_unknown_field_of_a_newer_client_does_no_harm(client):
    store = client.vector_stores.create(name="a", extra_body={"shape": "round"})
    assert is_strict(store)
    client.vector_stores.delete(store.id)
