"""Beta events translate to today's events, and today's events to the beta's."""

import json
from typing import Any

import pytest
from msgspec import UNSET
from openai.types.beta.realtime.realtime_client_event_param import RealtimeClientEventParam

from antiphon.errors import ClientError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime import client_events as ga_client, server_events as ga
from antiphon.wire.realtime.beta_events import decode_client, decode_server, encode_client, encode_server
from antiphon.wire.realtime.items import FunctionCallItem, InputAudio, InputMessage, ItemReference, MessageItem, OutputAudio, OutputText
from antiphon.wire.realtime.response import Response, ResponseAudio, ResponseAudioOutput, ResponseParams
from antiphon.wire.realtime.session import (
    Audio,
    AudioInput,
    AudioOutput,
    PcmaFormat,
    PcmFormat,
    PcmuFormat,
    RetentionRatio,
    ServerVad,
    Session,
    ToolChoiceFunction,
    Transcription,
    TranscriptionSession,
    VoiceId,
)
from support.wire.openai_samples import samples


def said(type: str, **fields: Any) -> Any:
    return decode_client(json.dumps({"type": type, **fields}).encode())


def told(event: ga.ServerEvent) -> Any:
    written = encode_server(event)
    assert written is not None
    return json.loads(written)


PLACE = {"event_id": "event_1", "response_id": "resp_1", "item_id": "item_1", "output_index": 0, "content_index": 0}
CALL = {"event_id": "event_1", "response_id": "resp_1", "item_id": "item_1", "output_index": 0, "call_id": "call_1"}


# Sessions


def test_a_flat_session_is_taken_apart():
    event = said(
        "session.update",
        event_id="e",
        session={
            "modalities": ["text", "audio"],
            "instructions": "Be brief.",
            "voice": "sage",
            "speed": 1.5,
            "input_audio_format": "g711_ulaw",
            "output_audio_format": "g711_alaw",
            "input_audio_transcription": {"model": "whisper-1"},
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 200},
            "tools": [],
            "tool_choice": {"type": "function", "name": "feed"},
            "temperature": 0.7,
            "max_response_output_tokens": 200,
        },
    )
    assert event == ga_client.SessionUpdate(
        event_id="e",
        session=Session(
            output_modalities=["audio"],
            instructions="Be brief.",
            tools=[],
            tool_choice=ToolChoiceFunction(name="feed"),
            temperature=0.7,
            max_output_tokens=200,
            audio=Audio(
                input=AudioInput(
                    format=PcmuFormat(), transcription=Transcription(model="whisper-1"), turn_detection=ServerVad(silence_duration_ms=200)
                ),
                output=AudioOutput(format=PcmaFormat(), voice="sage", speed=1.5),
            ),
        ),
    )
    assert decode_client(encode_client(event)) == event


def test_what_a_flat_session_does_not_have_is_kept():
    assert said("session.update", session={}) == ga_client.SessionUpdate(session=Session())


def test_a_null_in_a_flat_session_clears():
    session = said("session.update", session={"turn_detection": None, "input_audio_transcription": None, "instructions": None}).session
    assert session == Session(instructions=None, audio=Audio(input=AudioInput(transcription=None, turn_detection=None)))


def test_pcm_is_the_one_of_24_khz():
    assert said("session.update", session={"input_audio_format": "pcm16"}).session.audio.input.format == PcmFormat(rate=24000)


@pytest.mark.parametrize("flat, nested", [(["text"], ["text"]), (["audio", "text"], ["audio"]), (["audio"], ["audio"])])
def test_sound_comes_with_its_words(flat, nested):
    assert said("session.update", session={"modalities": flat}).session.output_modalities == nested
    assert said("response.create", response={"modalities": flat}).response.output_modalities == nested


@pytest.mark.parametrize("modalities", [[], ["text", "text"]])
def test_no_other_modalities_can_be_had(modalities):
    with pytest.raises(ClientError, match=r"Supported combinations are: \['text'\] and \['audio', 'text'\]\.") as caught:
        said("session.update", session={"modalities": modalities})
    assert (caught.value.code, caught.value.param) == ("invalid_value", "session.modalities")


def test_todays_fields_in_a_flat_session_are_not_taken_and_not_told_twice():
    event = said("session.update", session={"type": "realtime", "audio": {"output": {"voice": "v"}}, "voice": "sage", "wake_word": "hey"})
    assert event.session.audio == Audio(output=AudioOutput(voice="sage"))
    assert dict(event.session.extra) == {"wake_word": "hey"}


def test_a_field_that_neither_dialect_knows_is_kept():
    event = said("session.update", session={}, wake_word="hey")
    assert dict(event.extra) == {"wake_word": "hey"}
    assert json.loads(encode_client(event))["wake_word"] == "hey"


def test_a_mistake_is_told_where_the_beta_has_it():
    with pytest.raises(ClientError) as caught:
        said("session.update", session={"turn_detection": {"type": "server_vad", "threshold": 2}})
    assert caught.value.param == "session.turn_detection.threshold"


def test_a_mistake_that_is_found_later_is_told_where_the_beta_has_it():
    mistake = ga.RealtimeError(type="invalid_request_error", message="No 'session.audio.output.voice'.", param="session.audio.output.voice")
    error = told(ga.ErrorEvent(event_id="event_1", error=mistake))["error"]
    assert (error["param"], error["message"]) == ("session.voice", "No 'session.voice'.")


def test_an_error_about_what_the_model_says_has_the_old_names():
    message = "Invalid value: 'output_text'. Supported values are: 'output_text' and 'output_audio'."
    error = ga.RealtimeError(type="invalid_request_error", code="invalid_value", message=message, param="item.content[0].type")
    assert told(ga.ErrorEvent(event_id="event_1", error=error))["error"]["message"] == (
        "Invalid value: 'text'. Supported values are: 'text' and 'audio'."
    )


def test_an_error_about_nothing_in_particular_is_told_as_it_is():
    mistake = ga.RealtimeError(type="server_error", message="Gone.")
    assert told(ga.ErrorEvent(event_id="event_1", error=mistake))["error"]["message"] == "Gone."


def test_a_session_is_told_flat_and_without_what_came_later():
    detection = ServerVad(threshold=0.5, idle_timeout_ms=5000)
    session = Session(
        object="realtime.session",
        id="sess_1",
        model="m",
        output_modalities=["audio"],
        truncation=RetentionRatio(retention_ratio=0.5),
        audio=Audio(
            input=AudioInput(format=PcmFormat(rate=24000), transcription=None, turn_detection=detection),
            output=AudioOutput(format=PcmuFormat(), voice=VoiceId(id="voice_1"), speed=1.0),
        ),
    )
    event = told(ga.SessionCreated(event_id="event_1", session=session))
    assert event == {
        "type": "session.created",
        "event_id": "event_1",
        "session": {
            "object": "realtime.session",
            "id": "sess_1",
            "model": "m",
            "modalities": ["text", "audio"],
            "voice": "voice_1",
            "speed": 1.0,
            "input_audio_format": "pcm16",
            "output_audio_format": "g711_ulaw",
            "input_audio_transcription": None,
            "turn_detection": {"type": "server_vad", "threshold": 0.5},
        },
    }


def test_a_transcription_session_has_an_event_of_its_own():
    event = said(
        "transcription_session.update", session={"input_audio_format": "pcm16", "include": ["item.input_audio_transcription.logprobs"]}
    )
    assert isinstance(event.session, TranscriptionSession)
    assert json.loads(encode_client(event))["type"] == "transcription_session.update"
    update = ga.SessionUpdated(event_id="event_1", session=event.session)
    assert told(update)["type"] == "transcription_session.updated"
    assert decode_server(encode_server(update) or b"") == update


def test_a_transcription_session_is_created_as_any_other():
    created = ga.SessionCreated(event_id="event_1", session=TranscriptionSession(object="realtime.transcription_session", id="sess_1"))
    assert told(created)["type"] == "session.created"
    assert decode_server(encode_server(created) or b"") == created


def test_some_servers_say_that_a_transcription_session_was_created():
    event = decode_server(b'{"type":"transcription_session.created","event_id":"e","session":{"id":"sess_1"}}')
    assert event == ga.SessionCreated(event_id="e", session=TranscriptionSession(id="sess_1"))


# Responses


def test_what_is_asked_of_a_response_is_taken_apart():
    event = said(
        "response.create",
        response={
            "modalities": ["text"],
            "voice": "sage",
            "output_audio_format": "pcm16",
            "max_response_output_tokens": "inf",
            "temperature": 0.8,
            "conversation": "none",
            "metadata": {"a": "b"},
            "input": [
                {"type": "item_reference", "id": "item_1"},
                {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
            ],
        },
    )
    assert event.response == ResponseParams(
        conversation="none",
        input=[ItemReference(id="item_1"), InputMessage(role="assistant", content=[OutputText(text="Hello")])],
        output_modalities=["text"],
        audio=ResponseAudio(output=ResponseAudioOutput(format=PcmFormat(rate=24000), voice="sage")),
        max_output_tokens="inf",
        temperature=0.8,
        metadata={"a": "b"},
    )
    assert decode_client(encode_client(event)) == event


def test_a_response_may_be_asked_for_without_a_word():
    for event in (said("response.create"), said("response.create", response=None)):
        assert event == ga_client.ResponseCreate()
        assert encode_client(event) == b'{"type":"response.create"}'


def test_the_old_name_of_the_token_limit_is_taken():
    assert said("response.create", response={"max_output_tokens": 7}).response.max_output_tokens == 7
    assert said("response.create", response={"max_output_tokens": 7, "max_response_output_tokens": 8}).response.max_output_tokens == 8


def test_a_response_is_told_flat():
    response = Response(
        id="resp_1",
        status="completed",
        output=[MessageItem(id="item_1", role="assistant", content=[OutputAudio(transcript="Hello")])],
        conversation_id="conv_1",
        output_modalities=["audio"],
        max_output_tokens="inf",
        temperature=0.8,
        audio=ResponseAudio(output=ResponseAudioOutput(format=PcmFormat(rate=24000), voice="sage")),
        metadata={"a": "b"},
    )
    done = ga.ResponseDone(event_id="event_1", response=response)
    assert told(done)["response"] == {
        "object": "realtime.response",
        "id": "resp_1",
        "status": "completed",
        "status_details": None,
        "output": [{"type": "message", "id": "item_1", "role": "assistant", "content": [{"type": "audio", "transcript": "Hello"}]}],
        "conversation_id": "conv_1",
        "modalities": ["text", "audio"],
        "voice": "sage",
        "output_audio_format": "pcm16",
        "temperature": 0.8,
        "max_output_tokens": "inf",
        "usage": None,
        "metadata": {"a": "b"},
    }
    assert decode_server(encode_server(done) or b"") == done


def test_a_response_that_tells_nothing_of_its_sound_has_none():
    event = decode_server(b'{"type":"response.created","event_id":"e","response":{"id":"resp_1","status":"in_progress"}}')
    assert event == ga.ResponseCreated(event_id="e", response=Response(id="resp_1", status="in_progress"))


# Events


RENAMED = {
    "response.text.delta": ga.ResponseOutputTextDelta(**PLACE, delta="Hi"),
    "response.text.done": ga.ResponseOutputTextDone(**PLACE, text="Hi"),
    "response.audio.delta": ga.ResponseOutputAudioDelta(**PLACE, delta=b"\x00\x01"),
    "response.audio.done": ga.ResponseOutputAudioDone(**PLACE),
    "response.audio_transcript.delta": ga.ResponseOutputAudioTranscriptDelta(**PLACE, delta="Hi"),
    "response.audio_transcript.done": ga.ResponseOutputAudioTranscriptDone(**PLACE, transcript="Hi"),
}


@pytest.mark.parametrize("name", RENAMED)
def test_an_event_has_its_old_name(name):
    written = encode_server(RENAMED[name])
    assert written is not None
    assert json.loads(written)["type"] == name
    assert decode_server(written) == RENAMED[name]


def test_an_item_is_created_when_it_is_added_and_not_again_when_it_is_done():
    item = MessageItem(id="item_1", role="user", content=[InputAudio(transcript=None)])
    added = ga.ConversationItemAdded(event_id="event_1", previous_item_id=None, item=item)
    assert told(added)["type"] == "conversation.item.created"
    assert decode_server(encode_server(added) or b"") == added
    assert encode_server(ga.ConversationItemDone(event_id="event_2", item=item)) is None


def test_a_call_is_done_without_its_name():
    done = ga.ResponseFunctionCallArgumentsDone(**CALL, name="feed", arguments="{}")
    assert "name" not in told(done)
    assert decode_server(encode_server(done) or b"") == ga.ResponseFunctionCallArgumentsDone(**CALL, arguments="{}")


@pytest.mark.parametrize("kind", [ga.ConversationItemAdded, ga.ConversationItemCreated, ga.ConversationItemRetrieved])
def test_what_the_model_said_has_its_old_types_in_items(kind):
    item = MessageItem(id="item_1", role="assistant", content=[OutputText(text="Hi"), OutputAudio(transcript="Hi", audio=b"\x00\x01")])
    content = told(kind(event_id="event_1", item=item))["item"]["content"]
    assert content == [{"type": "text", "text": "Hi"}, {"type": "audio", "transcript": "Hi", "audio": "AAE="}]


def test_a_call_stays_as_it_is_in_items():
    event = ga.ResponseOutputItemAdded(event_id="e", response_id="r", output_index=0, item=FunctionCallItem(name="feed", arguments=""))
    assert told(event)["item"] == {"type": "function_call", "name": "feed", "arguments": ""}


@pytest.mark.parametrize(
    "event",
    [
        ga.InputAudioBufferTimeoutTriggered(event_id="e", audio_start_ms=0, audio_end_ms=1, item_id="i"),
        ga.InputAudioTranscriptionSegment(event_id="e", item_id="i", content_index=0, text="", id="s", speaker="a", start=0, end=1),
        ga.InputAudioBufferDtmfEventReceived(event="9", received_at=1),
        ga.McpListToolsCompleted(event_id="e", item_id="i"),
        ga.ResponseMcpCallFailed(event_id="e", item_id="i", output_index=0),
    ],
    ids=lambda event: event.type,
)
def test_what_the_beta_has_no_event_for_is_not_told(event):
    assert encode_server(event) is None


def test_the_languages_of_a_transcript_are_not_told():
    event = ga.InputAudioTranscriptionCompleted(
        event_id="e", item_id="i", content_index=0, transcript="Hi", usage=ga.DurationUsage(seconds=1), languages=[ga.Language(code="en")]
    )
    assert "languages" not in told(event)
    assert event.languages is not UNSET


def test_an_event_of_today_is_unknown_to_the_beta():
    event = decode_server(b'{"type":"response.output_text.delta","delta":"Hi"}')
    assert isinstance(event, Unknown)
    assert event.type == "response.output_text.delta"


# What the types of openai-python can say

STRICTER = {
    "turn_detection": {"type": "server_vad"},
    "temperature": 0.8,
    "tool_choice": "auto",
    "modalities": ["text", "audio"],
    "include": [],
}


@pytest.mark.parametrize("sample", list(samples(RealtimeClientEventParam, False)), ids=lambda each: each["type"])
def test_what_openai_python_can_say_is_read(sample):
    for group in ("session", "response"):
        if group in sample:
            sample = sample | {group: {name: STRICTER.get(name, value) for name, value in sample[group].items()}}
    read_or_incomplete(sample)


def read_or_incomplete(sample: dict[str, Any]) -> None:
    """The types make everything in an item optional; what an item needs is missed by name."""
    try:
        event = decode_client(json.dumps(sample).encode())
    except ClientError as mistake:
        assert mistake.code in ("missing_required_parameter", "invalid_value")
        assert mistake.param and mistake.param.startswith(("item", "response.input"))
    else:
        assert decode_client(encode_client(event)) == event
