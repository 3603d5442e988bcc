"""What a reader of a background response's events gets when the events have no end."""

import json

import pytest

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.routing import RouteDecision
from antiphon.protocols.responses.ending import fail_interrupted_record
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.records import BackgroundRecord
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
