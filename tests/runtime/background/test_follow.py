"""What a reader of a background response's events gets when the events have no end."""

import json
from pathlib import Path

import pytest

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.routing import RouteDecision
from antiphon.protocols.responses.ending import fail_interrupted_record
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.records import BackgroundRecord, EventRun, ResponseRecord
from antiphon.runtime.background.follow import Follower
from antiphon.runtime.background.journal import encode_run
from antiphon.runtime.core.ids import new_id, new_response_id
from antiphon.stores.memory import MemoryStore
from antiphon.wire.responses.profiles import ENCODERS, PROFILES, EventEncoder
from antiphon.wire.responses.request import CreateRequest

pytestmark = pytest.mark.anyio


async def read(store, encoder, response_id, after):
    follower = Follower(store, encoder, {}, "ada", response_id, after=after, heartbeat_s=60)
    body = b"".join([page async for page in follower.pages()]).decode()
    return [
        json.loads(record.partition("\ndata: ")[2])
        for record in body.split("\n\n")
        if record.startswith("event: ") and "[DONE]" not in record
    ]


@pytest.mark.parametrize("profile", ["openai", "open-responses"])
async def test_a_response_that_was_written_off_without_events_ends_with_what_its_record_says(profile):
    request = ResolvedRequest(
        id="resp_1",
        tenant="ada",
        created_at=1,
        model="m",
        request=CreateRequest(input="Hi", background=True, stream=True),
        capabilities=Capabilities(),
        input_items=tuple(CreateRequest(input="Hi").input_items),
    )
    store, encoder = MemoryStore(), EventEncoder(PROFILES[profile])
    record, events = ResponsesSession(request, new_id).queue()
    await store.background.add(record, BackgroundRecord(key_id=None, request=None, is_streamed=True), encode_run(0, events))
    await store.open()  # as another server
    assert await store.write_off(fail_interrupted_record(record))
    for after, numbers in ((-1, [0, 1, 2]), (0, [1, 2]), (1, [2]), (2, []), (99, [])):
        got = await read(store, encoder, "resp_1", after)
        assert [event["sequence_number"] for event in got] == numbers
        if got:
            assert got[-1]["type"] == "response.failed" and got[-1]["response"]["status"] == "failed"
            assert got[-1]["response"]["error"]["code"] == "server_error"


async def test_a_route_is_told_to_readers_of_the_profile_that_shows_it():
    request = ResolvedRequest(
        id=new_response_id(),
        tenant="ada",
        created_at=1,
        model="m",
        request=CreateRequest(input="Hi", background=True, stream=True),
        capabilities=Capabilities(),
        input_items=tuple(CreateRequest(input="Hi").input_items),
    )
    store = MemoryStore()
    record, events = ResponsesSession(request, new_id, route=RouteDecision(model="m", reasoning="Short")).queue()
    await store.background.add(record, BackgroundRecord(key_id=None, request=None, is_streamed=True), encode_run(0, events))
    await store.open()  # as another server
    assert await store.write_off(fail_interrupted_record(record))
    told = {name: await read(store, encoder, record.id, -1) for name, encoder in ENCODERS.items()}
    originals = ["response.created", "response.queued", "response.failed"]
    assert [event["type"] for event in told["openai"]] == [event["type"] for event in told["open-responses"]] == originals
    assert [event["type"] for event in told["eugpt"]] == ["response.created", "response.routing.completed", "error"]
    assert [event["sequence_number"] for event in told["eugpt"]] == [0, 1, 2]
    assert [event["type"] for event in await read(store, ENCODERS["eugpt"], record.id, 0)] == ["response.routing.completed", "error"]
    follower = Follower(store, ENCODERS["openai"], {}, "ada", record.id, after=-1, heartbeat_s=60)
    assert not [page async for page in follower.pages() if b': {"type"' in page.replace(b"data: {", b"")]


async def test_the_journal_of_a_server_that_knew_no_profiles_is_read_under_all_of_them():
    body = Path(__file__).with_name("older_journal.sse").read_bytes()
    created, *_, end = (json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: "))
    id, response = end["response"]["id"], end["response"]
    record = ResponseRecord(
        id=id, tenant="ada", created_at=1, status="completed", model="m", previous_response_id=None, body=json.dumps(response).encode()
    )
    store = MemoryStore()
    await store.background.add(record, BackgroundRecord(key_id=None, request=None, is_streamed=True), EventRun(0, 8, body))
    assert [event["type"] for event in await read(store, ENCODERS["openai"], id, 5)] == [
        "response.output_item.done",
        "response.completed",
    ]
    assert len(await read(store, ENCODERS["open-responses"], id, -1)) == 8
    first, added, done, last = await read(store, ENCODERS["eugpt"], id, -1)
    assert first["response"]["id"] == last["response"]["id"] == id  # not made of a UUID
    assert first["response"]["created_at"] == 1000 * created["response"]["created_at"]
    assert done["item"] == added["item"] | {"status": "completed"}
    assert json.loads(ENCODERS["eugpt"].encode_body(record.body, record.notes))["tool_calls"] == last["response"]["tool_calls"]
