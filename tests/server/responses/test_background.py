"""Background responses over a real socket: made without a connection, streamed again from anywhere, and cancelled."""

import asyncio
import concurrent.futures
import json
import random
import time
import urllib.error
import urllib.request

import openai
import pytest
from openai.types.responses import ResponseStreamEvent

from antiphon.server.processes.run import background_server
from support.server.own_process import serving
from support.server.raw_http import POLL_S
from support.server.responses_peer import connected
from support.server.scripted_server import configured
from support.wire.adapters import adapter

PATIENCE_S = 20
QUIET = {"logging.level": "warning"}


def get(url, path):
    """Status and body of a GET."""
    try:
        with urllib.request.urlopen(url + path, timeout=PATIENCE_S) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def error_of(url, path):
    status, body = get(url, path)
    return status, json.loads(body)["error"]


def events_of(body):
    """The events of a stream, each as the official types have it."""
    events = [json.loads(record.partition("\ndata: ")[2]) for record in body.decode().split("\n\n") if record.startswith("event: ")]
    for event in events:
        adapter(ResponseStreamEvent).validate_python(event)
    return events


def replay(url, response_id, query=""):
    status, body = get(url, f"/v1/responses/{response_id}?stream=true{query}")
    assert status == 200, body
    return events_of(body)


def ended(client, response_id):
    """The response when it has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    return response


def started(client, model="endless", **fields):
    """The id of a streamed response whose client has left after the first text."""
    with client.responses.create(model=model, input="Sing.", background=True, stream=True, **fields) as stream:
        for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                return response_id


def client_of(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of two processes that are one server."""
    with serving(tmp_path_factory.mktemp("home"), processes=2, **QUIET) as (_, url):
        yield url


@pytest.fixture(scope="module")
def official(url):
    with client_of(url) as client:
        yield client


@pytest.fixture
def limited(tmp_path):
    """The address of a server with room for one background response, and for two that wait."""
    song = [{"lines": [{"text": "la ", "repeat": 100000}]}]
    models = {"endless": {"engine": "scripted", "pace_ms": 10, "answers": song}, "parrot": {"engine": "scripted"}}
    with background_server(configured(tmp_path, models, background={"running": 1, "waiting": 2}, **{"server.drain_s": 0})) as url:
        yield url


def test_a_response_is_queued_at_once_and_made_without_a_connection(official):
    queued = official.responses.create(model="short", input="Sing.", background=True)
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    done = ended(official, queued.id)
    assert (done.status, done.output_text, done.created_at) == ("completed", "la " * 60, queued.created_at)
    assert done.completed_at is not None and done.usage is not None
    items = official.responses.input_items.list(queued.id).data
    assert [item.content[0].text for item in items] == ["Sing."]


def test_a_conversation_goes_on_from_a_background_response(official):
    first = ended(official, official.responses.create(model="parrot", input="One.", background=True).id)
    second = official.responses.create(model="parrot", input="Two.", previous_response_id=first.id)
    assert second.status == "completed"


def test_a_streamed_one_begins_queued_and_counts_without_a_gap(official):
    events = list(official.responses.create(model="short", input="Sing.", background=True, stream=True))
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events[0].response.status == events[1].response.status == "queued"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "la " * 60
    assert official.responses.retrieve(events[0].response.id).status == "completed"


def test_it_goes_on_when_its_client_leaves_and_is_read_again_as_it_was_sent(official, url):
    response_id = started(official, "short")
    live = [event.model_dump(exclude_unset=True) for event in official.responses.retrieve(response_id, stream=True)]
    assert live[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in live] == list(range(len(live)))
    assert replay(url, response_id) == events_of(get(url, f"/v1/responses/{response_id}?stream=true")[1]) == live


def test_a_stream_that_is_cut_again_and_again_has_no_gap_and_no_duplicate(official, url):
    random.seed(7)
    response_id, numbers, type = started(official, "short"), [], ""
    while type != "response.completed":
        with client_of(url) as client:  # a new connection, to either of the processes
            after = {"starting_after": numbers[-1]} if numbers else {}
            with client.responses.retrieve(response_id, stream=True, **after) as stream:
                for event, _ in zip(stream, range(random.randrange(1, 20)), strict=False):
                    numbers.append(event.sequence_number)
                    type = event.type
    assert numbers == list(range(len(numbers)))


def test_many_read_one_response_at_once(official, url):
    response_id = started(official, "short")
    with concurrent.futures.ThreadPoolExecutor(8) as readers:
        replays = list(readers.map(lambda _: replay(url, response_id), range(8)))
    assert all(each == replays[0] for each in replays) and replays[0][-1]["type"] == "response.completed"


def test_starting_after_the_last_event_is_an_empty_stream(official, url):
    events = list(official.responses.create(model="parrot", input="Hi", background=True, stream=True))
    id, last = events[0].response.id, events[-1].sequence_number
    assert [event["sequence_number"] for event in replay(url, id, f"&starting_after={last - 1}")] == [last]
    assert replay(url, id, f"&starting_after={last}") == []
    assert replay(url, id, f"&starting_after={2**70}") == []


@pytest.mark.parametrize(("value", "code"), [("-1", "integer_below_min_value"), ("soon", "invalid_type"), ("1.5", "invalid_type")])
def test_a_wrong_start_is_refused_by_name(official, url, value, code):
    response_id = started(official, "short")
    status, error = error_of(url, f"/v1/responses/{response_id}?stream=true&starting_after={value}")
    assert (status, error["code"], error["param"]) == (400, code, "starting_after")


def test_an_unknown_id_is_404_before_anything_else(url):
    assert error_of(url, "/v1/responses/resp_none?stream=perhaps&starting_after=x")[0] == 404


def test_only_what_was_created_as_a_background_stream_can_be_streamed(official, url):
    for fields in ({}, {"background": True}):
        response = official.responses.create(model="parrot", input="Hi", **fields)
        status, error = error_of(url, f"/v1/responses/{response.id}?stream=true")
        assert (status, error["param"]) == (400, "stream") and "can't be streamed" in error["message"]


def test_padding_can_be_left_out_and_put_in(official, url):
    def padded(events):
        return [event for event in events if "obfuscation" in event]

    response_id = started(official, "short")
    ended(official, response_id)
    deltas = [event for event in replay(url, response_id) if event["type"].endswith(".delta")]
    assert len(padded(deltas)) == len(deltas)
    without = replay(url, response_id, "&include_obfuscation=false")
    assert not padded(without) and len(without) == len(replay(url, response_id))
    plain_id = started(official, "short", stream_options={"include_obfuscation": False})
    ended(official, plain_id)
    assert not padded(replay(url, plain_id))
    assert len(padded(replay(url, plain_id, "&include_obfuscation=true"))) == len(deltas)


def test_cancelling_ends_it_wherever_it_is_made_and_twice_is_the_same(official, url):
    response_id = started(official)
    with client_of(url) as other:
        cancelled = other.responses.cancel(response_id)
    assert (cancelled.status, cancelled.error, cancelled.completed_at) == ("cancelled", None, None)
    assert official.responses.cancel(response_id) == cancelled == official.responses.retrieve(response_id)
    events = replay(url, response_id)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "cancelled")
    assert sum(event["type"] == "response.failed" for event in events) == 1
    sung = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert [event["type"] for event in events[-4:-1]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    [message] = cancelled.output
    assert (message.status, message.content[0].text) == ("incomplete", sung)
    assert events[-2]["item"] == events[-1]["response"]["output"][0] == message.model_dump(exclude_unset=True)
    after = official.responses.input_items.list(response_id).data
    assert [item.role for item in after] == ["user"]


def test_a_response_is_continued_only_after_its_end(official):
    response_id = started(official)
    with pytest.raises(openai.BadRequestError) as refusal:
        official.responses.create(model="parrot", input="And?", previous_response_id=response_id)
    assert (refusal.value.code, refusal.value.param) == ("previous_response_not_ready", "previous_response_id")
    [sung] = official.responses.cancel(response_id).output
    reply = official.responses.create(model="parrot", input=[{"type": "item_reference", "id": sung.id}, {"role": "user", "content": "Hi"}])
    assert reply.status == "completed"
    assert official.responses.create(model="parrot", input="Hi", previous_response_id=response_id).output_text == "Hi"


def test_one_without_a_stream_is_cancelled_without_output(official):
    response_id = official.responses.create(model="endless", input="Sing.", background=True).id
    cancelled = official.responses.cancel(response_id)
    assert (cancelled.status, cancelled.output) == ("cancelled", [])


def test_who_follows_a_response_sees_it_cancelled(official, url):
    response_id = started(official)
    with concurrent.futures.ThreadPoolExecutor(4) as readers:
        replays = [readers.submit(replay, url, response_id) for _ in range(4)]
        official.responses.cancel(response_id)
        assert all(each.result()[-1]["response"]["status"] == "cancelled" for each in replays)


def test_one_that_has_ended_is_returned_as_it_is(official):
    done = ended(official, official.responses.create(model="parrot", input="Hi", background=True).id)
    assert official.responses.cancel(done.id) == done


def test_what_breaks_off_ends_as_failed_with_its_events(tmp_path):
    broken = [{"lines": [{"text": "So far"}, {"wait_ms": 1}, {"failure": {"message": "The model broke."}}]}]
    with background_server(configured(tmp_path, {"m": {"engine": "scripted", "answers": broken}})) as url, client_of(url) as client:
        queued = client.responses.create(model="m", input="Hi", background=True)
        failed = ended(client, queued.id)
        assert (failed.status, failed.error.message) == ("failed", "The model broke.")
        with pytest.raises(openai.APIError, match="The model broke"):
            list(client.responses.create(model="m", input="Hi", background=True, stream=True))


def test_what_waits_is_counted_as_an_unfinished_request_with_all_of_its_prompt(tmp_path):
    song = [{"lines": [{"text": "la ", "repeat": 100000}]}]
    prompt = {"id": "pmpt_often", "messages": [{"role": "user", "content": "{{text}}"}] * 9}
    settings = {"background.running": 1, "server.bodies_per_key_mib": 32, "prompts": [prompt]}
    models = {"endless": {"engine": "scripted", "pace_ms": 10, "answers": song}}
    with background_server(configured(tmp_path, models, **settings)) as url, client_of(url) as client:
        running = started(client)
        large = {"input": [{"role": "user", "content": "x" * 10_000_000}]}
        often = {"prompt": {"id": "pmpt_often", "variables": {"text": "x" * 1_000_000}}}
        for fields in (large, often):  # 10 and 11 MB
            waiting = [client.responses.create(model="endless", background=True, **fields).id for _ in range(3)]
            with pytest.raises(openai.RateLimitError, match="bodies of your unfinished requests"):
                client.responses.create(model="endless", background=True, **fields)
            for response_id in waiting:
                client.responses.cancel(response_id)
        client.responses.cancel(running)


def test_the_next_one_waits_until_there_is_room_and_the_one_after_it_is_refused(limited):
    with client_of(limited) as client:
        first = started(client)
        second, _ = [client.responses.create(model="endless", input="Sing.", background=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as refusal:
            client.responses.create(model="endless", input="Sing.", background=True)
        assert "background.waiting" in refusal.value.body["message"]
        assert refusal.value.response.headers["retry-after"] == "1"
        assert client.responses.create(model="parrot", input="Hi").status == "completed"
        assert client.responses.retrieve(second.id).status == "queued"
        client.responses.cancel(first)
        deadline = time.monotonic() + PATIENCE_S
        while client.responses.retrieve(second.id).status != "in_progress":
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
        client.responses.cancel(second.id)


def test_one_that_waits_is_cancelled_and_leaves_its_room(limited):
    with client_of(limited) as client:
        started(client)
        waiting = client.responses.create(model="endless", input="Sing.", background=True)
        assert client.responses.cancel(waiting.id).status == "cancelled"
        assert client.responses.create(model="endless", input="Sing.", background=True).status == "queued"
        assert client.responses.retrieve(waiting.id).status == "cancelled"


def test_deleting_a_running_one_stops_it(limited):
    with client_of(limited) as client:
        first = started(client)
        client.responses.delete(first)
        assert error_of(limited, f"/v1/responses/{first}?stream=true")[0] == 404
        done = ended(client, client.responses.create(model="parrot", input="Hi", background=True).id)  # there is room again
        assert done.status == "completed"


def test_the_shorter_completion_window_is_made_first(limited):
    with client_of(limited) as client:
        first = started(client)
        slow = {"background_options": {"completion_window": "24h", "continuation_id": "c"}}
        late = client.responses.create(model="endless", input="Hi", background=True, extra_body=slow)
        soon = client.responses.create(model="endless", input="Hi", background=True)
        client.responses.cancel(first)
        deadline = time.monotonic() + PATIENCE_S
        while client.responses.retrieve(soon.id).status != "in_progress":
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
        assert client.responses.retrieve(late.id).status == "queued"


def test_a_stream_whose_response_is_deleted_ends_wherever_it_is_made(url):
    for _ in range(3):  # each connection is to either of the processes
        with (
            client_of(url) as client,
            client_of(url) as other,
            client.responses.create(model="endless", input="Sing.", stream=True) as stream,
        ):
            response_id = next(iter(stream)).response.id
            other.responses.delete(response_id)
            with pytest.raises(openai.APIError) as failure:
                list(stream)
            assert failure.value.code == "response_deleted"
            with pytest.raises(openai.NotFoundError):
                other.responses.retrieve(response_id)
            with pytest.raises(openai.NotFoundError):
                other.responses.input_items.list(response_id)


def test_a_deleted_response_gives_its_conversation_back_and_adds_nothing(official, url):
    conversation = official.conversations.create()
    with official.responses.create(model="endless", input="Sing.", stream=True, conversation=conversation.id) as stream:
        official.responses.delete(next(iter(stream)).response.id)
        with pytest.raises(openai.APIError):
            list(stream)
    assert official.responses.create(model="parrot", input="Hi", conversation=conversation.id).status == "completed"
    assert len(list(official.conversations.items.list(conversation.id))) == 2


def test_a_turn_of_a_websocket_whose_response_is_deleted_ends(official, url):
    async def talk():
        async with connected(url) as peer:
            await peer.say(model="endless", input="Sing.")
            created = await peer.hear()
            await asyncio.to_thread(official.responses.delete, created["response"]["id"])
            failed = (await peer.until("response.failed"))[-1]["response"]
            assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_prompt")
            assert (await peer.ask("Hi", model="parrot"))["status"] == "completed"

    asyncio.run(talk())
