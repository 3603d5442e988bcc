"""WebSocket mode from outside: each rule of it as a dialogue."""

import json

import aiohttp
import pytest
from openai.types.responses.responses_server_event import ResponsesServerEvent

from antiphon.server.processes.run import background_server
from support.server.key_server import MODELS, KeyServer, counted, numbers
from support.server.plain_http import events_in, post
from support.server.raw_http import connect, exchange, request, statuses, until
from support.server.responses_peer import LAST, connected, said
from support.server.scripted_server import configured
from support.wire.adapters import adapter

pytestmark = pytest.mark.anyio

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
FORMER = {"type": "function_call_output", "call_id": "call_w1", "output": "rain"}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def opened(tmp_path, models=MODELS, **settings):
    return background_server(configured(tmp_path, models, **{"logging.level": "error", **settings}), is_persistent=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server that needs no key."""
    with opened(tmp_path_factory.mktemp("open")) as address:
        yield address


def without_ids(value):
    """A value with all that differs between two responses left out."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        changing = {"id", "item_id", "created_at", "completed_at", "obfuscation"}
        return {key: without_ids(each) for key, each in value.items() if key not in changing}
    return value


# Events


@pytest.mark.parametrize("question", ["Hi", "think", "two tools", "patch", "refuse", "json", "too long"])
async def test_a_response_has_the_events_of_a_stream_over_http(url, question):
    _, _, body = post(url, {"model": "parrot", "input": question, "store": False, "stream": True})
    async with connected(url) as peer:
        await peer.create(question)
        heard = await peer.until(*LAST)
    assert without_ids(heard) == without_ids(events_in(body))
    assert [event["sequence_number"] for event in heard] == list(range(len(heard)))


async def test_every_event_is_one_of_the_official_types_and_names_its_lane(url):
    theirs = adapter(ResponsesServerEvent)
    async with connected(url) as peer:
        for question in ("Hi", "think", "two tools", "break midway"):
            await peer.create(question, stream_id="main.1-a_B")
            for event in await peer.until(*LAST):
                assert theirs.validate_python(event).stream_id == "main.1-a_B"


async def test_an_error_within_a_response_has_the_shape_of_a_websocket_and_the_failure_follows(url):
    async with connected(url) as peer:
        await peer.create("break midway")
        *_, error, failure = await peer.until(*LAST)
        assert failure["type"] == "response.failed" and failure["response"]["error"]["message"] == "The model broke."
        assert error["type"] == "error" and error["status"] == 500 and error["sequence_number"] == failure["sequence_number"] - 1
        assert set(error["error"]) >= {"type", "code", "message", "param"} and "message" not in error
        assert said(await peer.ask("still there?")) == "You said: still there?"


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"stream": None}, {"background": False}])
async def test_what_concerns_http_only_is_taken(url, fields):
    async with connected(url) as peer:
        assert said(await peer.ask("Hi", **fields)) == "You said: Hi"


async def test_background_is_refused(url):
    async with connected(url) as peer:
        event = await peer.refused("Hi", background=True, store=True)
        assert (event["status"], event["error"]["code"], event["error"]["param"]) == (400, "unsupported_parameter", "background")


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("nonsense", "invalid_json", None),
        ('{"type":', "invalid_json", None),
        ("[1]", "invalid_event", None),
        ("{}", "missing_required_parameter", "type"),
        ('{"type":7}', "invalid_value", "type"),
        ('{"type":"response.cancel"}', "invalid_value", "type"),
        ('{"type":"response.create","input":7}', "invalid_type", "input"),
        ('{"type":"response.create","input":"Hi","model":"none"}', "model_not_found", "model"),
        ('{"type":"response.create","model":"parrot"}', "missing_required_parameter", "input"),
        ('{"type":"response.create","input":"Hi","stream_id":""}', "invalid_stream_id", "stream_id"),
        ('{"type":"response.create","input":"Hi","stream_id":7}', "invalid_stream_id", "stream_id"),
        ('{"type":"response.create","input":"Hi","stream_id":"a b"}', "invalid_stream_id", "stream_id"),
        (f'{{"type":"response.create","input":"Hi","stream_id":"{"x" * 257}"}}', "invalid_stream_id", "stream_id"),
        ('{"type":"response.create","input":' + "[" * 100 + "]" * 100 + "}", "invalid_json", None),
        ('{"type":"response.create","input":[' + "{}," * 100_001 + "{}]}", "request_too_large", None),
        ('{"type":"response.steer","input":"Hi"}', "missing_required_parameter", "previous_response_id"),
    ],
)
async def test_a_bad_message_is_an_error_event_and_the_connection_goes_on(url, message, code, param):
    async with connected(url) as peer:
        await peer.socket.send_str(message)
        event = await peer.hear()
        assert event["type"] == "error" and event["error"]["type"] == "invalid_request_error" and event["status"] in (400, 404, 413)
        assert (event["error"]["code"], event["error"]["param"]) == (code, param)
        assert said(await peer.ask("Hi")) == "You said: Hi"


async def test_bytes_and_messages_that_are_too_large_end_the_connection(url):
    async with connected(url) as peer:
        await peer.socket.send_bytes(b"{}")
        assert (await peer.end())[0] == 1003
    async with connected(url) as peer:
        await peer.socket.send_str(" " * ((16 << 20) + 1))
        assert (await peer.end())[0] == 1009


async def test_a_message_may_come_in_fragments_and_be_large(url):
    async with connected(url) as peer:
        call = await peer.ask("word " * 2_000_000 + "weather", tools=[WEATHER])
        assert said(await peer.ask(previous_response_id=call["id"], input=[FORMER])) == "The tool says rain"
    message = json.dumps({"type": "response.create", "model": "parrot", "input": "Hi", "store": False}).encode()
    with connect(url) as connection:
        connection.sendall(request(path="/v1/responses", **HANDSHAKE))
        until(connection, b"\r\n\r\n")
        for index, byte in enumerate(message):
            opcode = (0x01 if index == 0 else 0) | (0x80 if index == len(message) - 1 else 0)
            connection.sendall(bytes([opcode, 0x81, 0, 0, 0, 0, byte]))  # masked with zeros
        assert b"You said: Hi" in until(connection, b"response.completed")


# Continuation


async def test_a_tool_loop_sends_only_what_is_new_and_nothing_is_stored(url):
    async with connected(url) as peer:
        call = await peer.ask("weather", tools=[WEATHER])
        answer = await peer.ask(previous_response_id=call["id"], input=[FORMER], tools=[WEATHER])
        assert said(answer) == "The tool says rain" and answer["previous_response_id"] == call["id"]
        again = await peer.ask("And now?", previous_response_id=answer["id"])
        assert said(again) == "You said: And now?"
    for response in (call, answer, again):
        assert statuses(exchange(url, request(path=f"/v1/responses/{response['id']}", connection="close"))) == [404]


async def test_another_connection_does_not_know_a_response_that_is_not_stored(url):
    async with connected(url) as first, connected(url) as second:
        response = await first.ask("Hi")
        event = await second.refused("And?", previous_response_id=response["id"])
        assert event["status"] == 400 and event["error"]["param"] == "previous_response_id"
        assert event["error"]["code"] == "previous_response_not_found" and response["id"] in event["error"]["message"]
        assert (await first.ask("And?", previous_response_id=response["id"]))["status"] == "completed"


async def test_a_stored_response_is_continued_on_any_connection_and_over_http(url):
    async with connected(url) as first:
        older = await first.ask("weather", store=True, tools=[WEATHER])
        newer = await first.ask(previous_response_id=older["id"], input=[FORMER], store=True)
    async with connected(url) as second:
        assert said(await second.ask(previous_response_id=older["id"], input=[FORMER])) == "The tool says rain"
        assert (await second.ask("And?", previous_response_id=newer["id"]))["status"] == "completed"
    status, _, body = post(url, {"model": "parrot", "input": "And?", "previous_response_id": newer["id"]})
    assert status == 200 and json.loads(body)["previous_response_id"] == newer["id"]


async def test_only_the_latest_response_of_a_lane_is_remembered(url):
    async with connected(url) as peer:
        older = await peer.ask("one")
        await peer.ask("two", previous_response_id=older["id"])
        assert (await peer.refused("again", previous_response_id=older["id"]))["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    "failing", [{"input": 7}, {"input": "Hi", "temperature": "hot"}, {"input": "break at once"}, {"input": "break midway"}]
)
async def test_a_continuation_that_fails_makes_its_lane_forget_the_response(url, failing):
    async with connected(url) as peer:
        response = await peer.ask("one", stream_id="a")
        await peer.create(previous_response_id=response["id"], stream_id="a", **failing)
        heard = await peer.until("error")
        if heard[0]["type"] != "error":
            await peer.until("response.failed")
        event = await peer.refused("two", previous_response_id=response["id"], stream_id="a")
        assert event["error"]["code"] == "previous_response_not_found" and event["stream_id"] == "a"


async def test_another_lane_may_fork_a_response_and_fail_without_harm_to_its_own(url):
    async with connected(url) as peer:
        parent = await peer.ask("weather", stream_id="a", tools=[WEATHER])
        fork = await peer.ask(input=[FORMER], previous_response_id=parent["id"], stream_id="b")
        assert said(fork) == "The tool says rain"
        assert (await peer.refused(previous_response_id=parent["id"], input=7, stream_id="c"))["stream_id"] == "c"
        assert said(await peer.ask(input=[FORMER], previous_response_id=parent["id"], stream_id="a")) == "The tool says rain"
        assert (await peer.ask("And?", previous_response_id=fork["id"], stream_id="b"))["status"] == "completed"


async def test_a_warm_up_has_no_output_and_is_continued(url):
    async with connected(url) as peer:
        await peer.create("weather", generate=False, tools=[WEATHER], instructions="Be brief.")
        heard = await peer.until(*LAST)
        assert [event["type"] for event in heard] == ["response.created", "response.in_progress", "response.completed"]
        warm = heard[-1]["response"]
        assert warm["output"] == [] and warm["usage"]["total_tokens"] == 0
        call = await peer.ask(input=[], previous_response_id=warm["id"], tools=[WEATHER])
        assert call["output"][0]["call_id"] == "call_w1"


async def test_a_warm_up_that_is_invalid_is_refused(url):
    async with connected(url) as peer:
        assert (await peer.refused("Hi", generate=False, model="none"))["status"] == 404
        assert (await peer.refused("Hi", generate="no"))["error"]["param"] == "generate"


async def test_output_of_compaction_and_items_of_every_kind_are_input(url):
    async with connected(url) as peer:
        response = await peer.ask("think")
        window = [{"role": "user", "content": "think"}, *response["output"], {"role": "user", "content": "Hi"}]
        assert said(await peer.ask(input=window)) == "You said: Hi"


# Lanes


async def test_a_lane_answers_in_order_and_lanes_side_by_side(url):
    async with connected(url) as peer:
        await peer.create(model="endless", text="forever", stream_id="slow")
        for number in range(3):
            await peer.create(f"q{number}", stream_id="quick")
        await peer.create("unnamed")
        texts, unnamed = [], []
        while len(texts) < 3 or not unnamed:
            event = await peer.hear()
            if event["type"] == "response.completed":
                (texts if event.get("stream_id") == "quick" else unnamed).append(said(event["response"]))
        assert texts == ["You said: q0", "You said: q1", "You said: q2"] and unnamed == ["You said: unnamed"]


async def test_an_invalid_request_waits_for_its_turn(url):
    async with connected(url) as peer:
        await peer.create("one")
        await peer.create(input=7)
        await peer.create("two")
        kinds = [event["type"] for event in [*await peer.until(*LAST), await peer.hear(), *await peer.until(*LAST)]]
        assert kinds.count("error") == 1 and kinds.index("error") == kinds.index("response.completed") + 1


async def test_sixteen_run_at_once_and_the_rest_wait(url):
    async with connected(url) as peer:
        for number in range(17):
            await peer.create("x", model="endless", stream_id=f"lane{number}")
        created = set()
        while len(created) < 16:
            event = await peer.hear()
            if event["type"] == "response.created":
                created.add(event["stream_id"])
        for _ in range(100):
            event = await peer.hear()
            assert event["stream_id"] != "lane16"


async def test_a_connection_has_at_most_thirty_two_named_lanes(url):
    async with connected(url) as peer:
        for number in range(32):
            await peer.ask("Hi", stream_id=f"lane{number}")
        event = await peer.refused("Hi", stream_id="another")
        assert (event["status"], event["error"]["code"]) == (400, "websocket_stream_limit_reached") and event["stream_id"] == "another"
        assert said(await peer.ask("Hi", stream_id="lane0")) == said(await peer.ask("Hi")) == "You said: Hi"


async def test_only_so_many_requests_wait(url):
    async with connected(url) as peer:
        for _ in range(66):
            await peer.create("x", model="endless")
        event = (await peer.until("error"))[-1]
        assert (event["status"], event["error"]["code"]) == (429, "rate_limit_exceeded") and "64" in event["error"]["message"]


# Ends


async def test_a_client_that_leaves_cancels_what_runs_and_what_waits(tmp_path):
    with opened(tmp_path) as url:
        async with connected(url) as peer:
            for lane in ("a", "b"):
                await peer.create("x", model="endless", stream_id=lane, store=True)
                await peer.create("y", model="endless", stream_id=lane)
            ids = set()
            while len(ids) < 2:
                event = await peer.hear()
                if event["type"] == "response.created":
                    ids.add(event["response"]["id"])
            peer.socket.get_extra_info("socket").shutdown(2)
        for response_id in ids:
            while (status := status_of(url, response_id)) == "in_progress":
                pass
            assert status == "cancelled"


def status_of(url, response_id):
    answer = exchange(url, request(path=f"/v1/responses/{response_id}", connection="close"))
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])["status"]


async def test_a_connection_has_its_time(tmp_path):
    with opened(tmp_path, **{"responses.websocket_minutes": 0.02}) as url:
        async with connected(url) as idle, connected(url) as busy:
            await busy.create("x", model="endless")
            event = (await idle.until("error"))[-1]
            assert (event["status"], event["error"]["code"]) == (400, "websocket_connection_limit_reached")
            assert (await idle.end())[0] == 1001
            *_, error, failure, last = [*await busy.until("response.failed"), await busy.hear()]
            assert error["error"]["code"] == last["error"]["code"] == "websocket_connection_limit_reached"
            assert failure["response"]["status"] == "failed" and (await busy.end())[0] == 1001


# The handshake


def test_a_request_that_is_no_handshake_gets_the_list(url):
    answer = exchange(url, request(path="/v1/responses", connection="close"))
    assert statuses(answer) == [200] and json.loads(answer.rpartition(b"\r\n\r\n")[2])["object"] == "list"


async def test_a_key_opens_a_connection_and_needs_the_scope(tmp_path):
    server = KeyServer(tmp_path)
    key, reader = await server.key(), await server.key(scopes=("responses:read",))
    with server.serving() as url:
        async with connected(url, key=key) as peer:
            assert said(await peer.ask("Hi")) == "You said: Hi"
        async with connected(url, protocols=(f"openai-insecure-api-key.{key}",)) as peer:
            assert said(await peer.ask("Hi")) == "You said: Hi"
        for wrong, status in ((None, 401), ("ak-nonsense", 401), (reader, 403)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                async with connected(url, key=wrong):
                    pass
            assert refusal.value.status == status


async def test_each_response_is_one_request_of_its_key(tmp_path):
    server = KeyServer(tmp_path)
    key = await server.key(requests_per_minute=2, tokens_per_minute=1000)
    with server.serving() as url:
        async with connected(url, key=key) as peer:
            await peer.ask("word " * 300)  # so many tokens that a slow machine does not have all of them back meanwhile
            await peer.ask("two")
            event = await peer.refused("three")
            assert (event["status"], event["error"]["code"]) == (429, "rate_limit_exceeded")
            headers = event["error"]["headers"]
            assert headers["x-ratelimit-remaining-requests"] == "0" and headers["retry-after"]
            assert int(headers["x-ratelimit-remaining-tokens"]) < 1000


async def test_a_response_is_one_of_its_keys_streams(tmp_path):
    server = KeyServer(tmp_path)
    key = await server.key(streams=1)
    with server.serving() as url:
        async with connected(url, key=key) as peer:
            await peer.create("x", model="endless", stream_id="a")
            await peer.until("response.output_text.delta")
            await peer.create("y", stream_id="b")
            event = (await peer.until("error"))[-1]
            assert event["status"] == 429 and event["stream_id"] == "b"


async def test_the_connection_of_a_key_that_is_revoked_ends(tmp_path):
    server = KeyServer(tmp_path)
    key, record = await server.create_key()
    with server.serving() as url:
        async with connected(url, key=key) as peer:
            await peer.ask("Hi")
            await server.with_store(lambda store: store.keys.revoke(record.id, 2))
            event = (await peer.until("error"))[-1]
            assert (event["status"], event["error"]["code"]) == (401, "invalid_api_key")
            assert (await peer.end())[0] == 3000


async def test_another_tenants_response_is_unknown(tmp_path):
    server = KeyServer(tmp_path)
    ours, theirs = await server.key(tenant="a"), await server.key(tenant="b")
    with server.serving() as url:
        async with connected(url, key=theirs) as peer:
            stored = await peer.ask("secret", store=True)
        async with connected(url, key=ours) as peer:
            event = await peer.refused("Hi", previous_response_id=stored["id"])
            assert event["error"]["code"] == "previous_response_not_found"


# What is counted and logged


async def test_each_response_is_counted_and_logged_as_a_request(tmp_path, capfd):
    with opened(tmp_path, **{"logging.level": "info", "logging.format": "json"}) as url:
        async with connected(url) as peer:
            usage = (await peer.ask("Hi"))["usage"]
            await peer.refused("Hi", model="none")
        counted(url, ("antiphon_tokens_total", "parrot", "output"), usage["output_tokens"])
        counts = numbers(url)
    assert counts["antiphon_tokens_total", "parrot", "input"] == usage["input_tokens"]
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    turns = [line for line in lines if line.get("method") == "WEBSOCKET"]
    assert [turn["status"] for turn in turns] == [200, 404] and turns[0]["path"] == "/v1/responses"
    assert turns[0]["request_id"] != turns[1]["request_id"] and turns[0]["request_id"].startswith("req_")
