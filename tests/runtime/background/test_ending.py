"""A response that is ended from outside has the output of all its events, also of those that come meanwhile."""

import json
from types import SimpleNamespace

import pytest

from antiphon.engine_api import events as engine
from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import shutting_down
from antiphon.protocols.session import Send
from antiphon.records import BackgroundRecord
from antiphon.runtime.background.ending import MAX_ATTEMPTS, cancel_response, fail_response
from antiphon.runtime.background.journal import encode_run
from antiphon.stores.memory import MemoryStore
from antiphon.wire.responses.profiles import ENCODERS, read_journal
from support.protocols.responses_dialogues import Dialogue, session_for
from support.protocols.words import ID

pytestmark = pytest.mark.anyio


class Hurried:
    """The background responses of a store, to which an event comes whenever all were read."""

    def __init__(self, store, record, runs):
        self._background = store.background
        self._record = record
        self._runs = runs
        self.end = store.background.end

    async def events(self, tenant, response_id, after, limit):
        page = await self._background.events(tenant, response_id, after, limit)
        if not page.runs and self._runs:
            assert await self._background.append(self._record, self._runs.pop(0))
        return page


async def cancelled(late_count):
    """The text of a response's output, and its events, if so many words come while it is cancelled."""
    session = session_for(background=True)
    record, opening = session.queue()
    dialogue = Dialogue(session).said(engine.TextDelta(ID, "One "))
    begun = [*opening, *(effect.event for effect in dialogue.effects if isinstance(effect, Send))]
    late = [encode_run(len(begun) + number, sent(dialogue, number)) for number in range(late_count)]
    store = MemoryStore()
    await store.background.add(record, BackgroundRecord(key_id=None, request=None, is_streamed=True), encode_run(0, begun))
    await cancel_response(SimpleNamespace(background=Hurried(store, record, late)), record)
    page = await store.background.events(record.tenant, ID, -1, 100)
    events = [json.loads(line[6:]) for run in page.runs for line in run.body.decode().splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    stored = json.loads((await store.get(record.tenant, ID)).body)
    assert stored == events[-1]["response"] and stored["status"] == "cancelled"
    return stored["output"][0]["content"][0]["text"], events


def sent(dialogue, number):
    count = len(dialogue.effects)
    dialogue.said(engine.TextDelta(ID, f"and {number} "))
    return [effect.event for effect in dialogue.effects[count:] if isinstance(effect, Send)]


@pytest.mark.parametrize("late_count", [0, 1, 3])
async def test_events_that_come_meanwhile_are_read_too(late_count):
    text, events = await cancelled(late_count)
    assert text == "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert [event["type"] for event in events[-2:]] == ["response.output_item.done", "response.failed"]


async def test_a_response_ends_even_if_its_events_come_faster_than_they_are_read():
    text, events = await cancelled(MAX_ATTEMPTS + 5)
    assert text.startswith("One ") and events[-1]["type"] == "response.failed"


async def test_one_that_the_server_stops_has_one_code_in_its_events_and_as_it_is_stored():
    record, opening = session_for(background=True, route=RouteDecision(model="m", reasoning="Short")).queue()
    store = MemoryStore()
    await store.background.add(record, BackgroundRecord(key_id=None, request=None, is_streamed=True), encode_run(0, opening))
    await fail_response(store, record, shutting_down())
    page = await store.background.events(record.tenant, ID, -1, 100)
    shown = bytearray()
    ENCODERS["eugpt"].stream().encode_sse_into(read_journal(b"".join(run.body for run in page.runs)), shown)
    failure = json.loads(shown.decode().split("data: ")[-1])
    ended = await store.get(record.tenant, ID)
    stored = json.loads(ENCODERS["eugpt"].encode_body(ended.body, ended.notes))
    assert failure["code"] == "overloaded" and stored["routing"]["model_id"] == "m"
    assert stored["error"] == {"code": failure["code"], "message": failure["message"]}
