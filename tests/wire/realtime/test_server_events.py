"""Realtime server events are encoded as the original encodes them; those of other servers are decoded leniently."""

import json
from typing import Any

import pytest
from openai.types.realtime import RealtimeServerEvent

from antiphon.errors import ClientError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.items import AudioContent, FunctionCallItem, InputAudio, MessageItem
from antiphon.wire.realtime.response import Response, ResponseAudio, ResponseAudioOutput, StatusDetails, Usage
from antiphon.wire.realtime.server_events import (
    ConversationItemAdded,
    ErrorEvent,
    RealtimeError,
    ResponseContentPartAdded,
    ResponseCreated,
    ResponseDone,
    ResponseOutputAudioDelta,
    ServerEvent,
    SessionCreated,
    decode_server,
    encode_server,
)
from antiphon.wire.realtime.session import Audio, AudioInput, AudioOutput, PcmFormat, ServerVad, Session
from support.wire.openai_samples import samples


def written(event: ServerEvent) -> str:
    return encode_server(event).decode()


def test_an_audio_delta_is_written_as_the_original_writes_it():
    event = ResponseOutputAudioDelta(
        event_id="event_1", response_id="resp_1", item_id="item_1", output_index=0, content_index=0, delta=b"\x00\x01\xff"
    )
    assert written(event) == (
        '{"type":"response.output_audio.delta","event_id":"event_1","response_id":"resp_1","item_id":"item_1",'
        '"output_index":0,"content_index":0,"delta":"AAH/"}'
    )


def test_a_response_tells_as_null_what_it_has_no_value_for():
    event = ResponseCreated(event_id="event_1", response=Response(id="resp_1", status="in_progress"))
    assert json.loads(encode_server(event))["response"] == {
        "object": "realtime.response",
        "id": "resp_1",
        "status": "in_progress",
        "status_details": None,
        "output": [],
        "conversation_id": None,
        "output_modalities": None,
        "max_output_tokens": None,
        "audio": None,
        "usage": None,
        "metadata": None,
    }


def test_an_item_leaves_out_what_it_does_not_have():
    call = FunctionCallItem(id="item_2", object="realtime.item", status="in_progress", name="feed", call_id="call_1", arguments="")
    event = ConversationItemAdded(event_id="event_1", previous_item_id="item_1", item=call)
    assert written(event) == (
        '{"type":"conversation.item.added","event_id":"event_1","previous_item_id":"item_1","item":{"type":"function_call","id":"item_2",'
        '"object":"realtime.item","status":"in_progress","name":"feed","call_id":"call_1","arguments":""}}'
    )


def test_the_first_item_comes_after_null_and_its_transcript_may_be_null():
    said = MessageItem(id="item_1", role="user", content=[InputAudio(transcript=None)])
    assert written(ConversationItemAdded(event_id="event_1", item=said)) == (
        '{"type":"conversation.item.added","event_id":"event_1","previous_item_id":null,'
        '"item":{"type":"message","id":"item_1","role":"user","content":[{"type":"input_audio","transcript":null}]}}'
    )


def test_a_part_begins_with_the_words_that_are_none_yet():
    event = ResponseContentPartAdded(
        event_id="event_1", response_id="resp_1", item_id="item_1", output_index=0, content_index=0, part=AudioContent(transcript="")
    )
    assert written(event).endswith('"content_index":0,"part":{"type":"audio","transcript":""}}')


def test_an_error_tells_null_for_what_it_is_not_about():
    event = ErrorEvent(event_id="event_1", error=RealtimeError(type="invalid_request_error", message="No."))
    assert written(event) == (
        '{"type":"error","event_id":"event_1",'
        '"error":{"type":"invalid_request_error","code":null,"message":"No.","param":null,"event_id":null}}'
    )


def test_a_session_tells_as_null_what_is_switched_off():
    session = Session(
        object="realtime.session",
        id="sess_1",
        model="m",
        output_modalities=["audio"],
        instructions="",
        tools=[],
        tool_choice="auto",
        max_output_tokens="inf",
        tracing=None,
        truncation="auto",
        prompt=None,
        expires_at=1,
        audio=Audio(
            input=AudioInput(
                format=PcmFormat(rate=24000),
                transcription=None,
                noise_reduction=None,
                turn_detection=ServerVad(threshold=0.5, idle_timeout_ms=None),
            ),
            output=AudioOutput(format=PcmFormat(rate=24000), voice="marin", speed=1.0),
        ),
        include=None,
    )
    assert written(SessionCreated(event_id="event_1", session=session)) == (
        '{"type":"session.created","event_id":"event_1","session":{"type":"realtime","object":"realtime.session","id":"sess_1","model":"m",'
        '"output_modalities":["audio"],"instructions":"","tools":[],"tool_choice":"auto","max_output_tokens":"inf","tracing":null,'
        '"truncation":"auto","prompt":null,"expires_at":1,"audio":{"input":{"format":{"type":"audio/pcm","rate":24000},'
        '"transcription":null,"noise_reduction":null,"turn_detection":{"type":"server_vad","threshold":0.5,"idle_timeout_ms":null}},'
        '"output":{"format":{"type":"audio/pcm","rate":24000},"voice":"marin","speed":1.0}},"include":null}}'
    )


# What other servers say


# Whether an object is there at all is told by the type of the event, though the types have all that is in it as optional
OBJECTS = ("error", "part", "response")
EVENTS = [each for each in samples(RealtimeServerEvent, False) if each["type"] != "conversation.created"]
FULL = [each for each in EVENTS if {} not in [each.get(name) for name in OBJECTS]]


def test_what_openai_python_has_a_type_for_is_read():
    assert len(FULL) > 500
    for sample in FULL:
        event = decode_server(json.dumps(fitted(sample)).encode())
        assert event.type == sample["type"]
        assert not isinstance(event, Unknown), sample


def fitted(value: Any) -> Any:
    """A sample as the original would have it, where it is stricter than its types: formats have a type, timeouts a least value."""
    if isinstance(value, list):
        return [fitted(each) for each in value]
    if not isinstance(value, dict):
        return value
    fields = {name: fitted(each) for name, each in value.items() if each != {}}
    return fields | {"idle_timeout_ms": 5000} if "idle_timeout_ms" in fields else fields


def test_a_response_is_read_from_a_server_that_tells_little():
    event = decode_server(
        b'{"type":"response.done","event_id":"e","response":{"id":"resp_1","status":"completed","usage":{"total_tokens":3}}}'
    )
    assert isinstance(event, ResponseDone)
    assert event.response == Response(id="resp_1", status="completed", usage=Usage(total_tokens=3))


def test_nulls_of_other_servers_are_borne():
    response = {
        "id": "resp_1",
        "object": None,
        "status": "cancelled",
        "status_details": {"type": "cancelled", "reason": "hung_up", "error": None},
        "output": None,
        "audio": {"output": {"voice": "v", "format": None}},
        "usage": {"input_tokens": None, "input_token_details": {"cached_tokens_details": None}},
        "vendor": None,
    }
    event = decode_server(json.dumps({"type": "response.done", "event_id": "e", "response": response}).encode())
    assert isinstance(event, ResponseDone)
    assert event.response.status_details == StatusDetails(type="cancelled", reason="hung_up")
    assert event.response.audio == ResponseAudio(output=ResponseAudioOutput(voice="v"))
    assert (event.response.object, event.response.output) == ("realtime.response", [])


def test_an_event_of_an_unknown_type_is_unknown():
    event = decode_server(b'{"type":"response.vendor_thing","n":1}')
    assert isinstance(event, Unknown)
    assert (event.type, event.extra["n"]) == ("response.vendor_thing", 1)


def test_an_event_of_another_shape_is_unknown_and_whole():
    body = {"type": "session.updated", "event_id": "e", "session": {"type": "realtime", "audio": {"input": {"format": {"type": "pcm16"}}}}}
    event = decode_server(json.dumps(body).encode())
    assert isinstance(event, Unknown)
    assert dict(event.extra) == body


def test_an_item_of_an_unknown_type_is_unknown_and_its_event_is_not():
    event = decode_server(b'{"type":"conversation.item.added","event_id":"e","item":{"type":"vendor_item","id":"i"}}')
    assert isinstance(event, ConversationItemAdded)
    assert isinstance(event.item, Unknown)
    assert event.item.extra["id"] == "i"


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"type":1}', b'{"type":null}'])
def test_what_is_no_event_is_refused(body):
    with pytest.raises(ClientError):
        decode_server(body)
