"""Realtime client events are decoded, tolerated or refused, and an error names the position."""

import base64
import json
from typing import Any

import pytest
from msgspec import UNSET
from openai.types.realtime import RealtimeClientEventParam

from antiphon.errors import ClientError
from antiphon.wire.realtime.client_events import (
    ConversationItemCreate,
    InputAudioBufferAppend,
    ResponseCreate,
    SessionUpdate,
    encode_client,
    find_event_id,
)
from antiphon.wire.realtime.dialects import DIALECTS
from antiphon.wire.realtime.items import FunctionCallOutputItem, ItemReference, MessageItem, OutputAudio, OutputText
from antiphon.wire.realtime.session import Audio, AudioInput, SemanticVad, Session
from support.wire.openai_samples import samples

each_dialect = pytest.mark.parametrize("decode", [each.decode_client for each in DIALECTS.values()], ids=list(DIALECTS))
decode_client = DIALECTS["ga"].decode_client


def frame(type: str, **fields: Any) -> bytes:
    return json.dumps({"type": type, **fields}).encode()


def update(**session: Any) -> bytes:
    return frame("session.update", session={"type": "realtime", **session})


def create(**item: Any) -> bytes:
    return frame("conversation.item.create", item=item)


def answer(**params: Any) -> bytes:
    return frame("response.create", response=params)


def turns(**detection: Any) -> bytes:
    return update(audio={"input": {"turn_detection": {"type": "server_vad", **detection}}})


def mistake(body: bytes) -> tuple[str | None, str | None, str]:
    with pytest.raises(ClientError) as caught:
        decode_client(body)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value.code, caught.value.param, caught.value.message


# What the types of openai-python can say


LIMITS = {"idle_timeout_ms": 5000, "output_modalities": ["audio"]}


def fitted(value: Any, name: str = "") -> Any:
    """A sample as the original would take it, where it is stricter than its types: limits, and tags that are not optional."""
    if name in LIMITS:
        return LIMITS[name]
    if isinstance(value, list):
        return [fitted(each) for each in value]
    if not isinstance(value, dict):
        return value
    required = {"type": "audio/pcm"} if name == "format" else {}
    return required | {key: fitted(each, key) for key, each in value.items()}


def test_what_openai_python_can_say_is_read():
    said = [fitted(each) for each in samples(RealtimeClientEventParam, False)]
    assert len(said) > 150
    for sample in said:
        assert decode_client(json.dumps(sample).encode()).type == sample["type"], sample


# Events as such


@each_dialect
def test_sound_comes_as_bytes(decode):
    event = decode(frame("input_audio_buffer.append", audio=base64.b64encode(bytes(range(256))).decode(), event_id="e1"))
    assert event == InputAudioBufferAppend(audio=bytes(range(256)), event_id="e1")


@each_dialect
def test_sound_may_have_its_slashes_escaped(decode):
    assert decode(rb'{"type": "input_audio_buffer.append", "audio": "\/\/\/\/"}') == InputAudioBufferAppend(audio=b"\xff" * 3)


@each_dialect
@pytest.mark.parametrize("audio", ["AAA", "AA=A", "AAAA====", "A===", "AA AA", "AAAA\n", "AA-_", "$$$$"])
def test_sound_that_is_not_whole_base64_is_refused(decode, audio):
    with pytest.raises(ClientError) as caught:
        decode(frame("input_audio_buffer.append", audio=audio))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "audio")
    assert caught.value.message == "Invalid 'audio'. Expected base64-encoded audio bytes but got invalid bytes."


def test_sound_that_is_no_string_is_refused():
    assert mistake(frame("input_audio_buffer.append", audio=[1])) == (
        "invalid_type",
        "audio",
        "Invalid type for 'audio': expected a string, but got an array instead.",
    )


@each_dialect
def test_a_frame_without_a_type_is_no_event(decode):
    with pytest.raises(ClientError, match=r"^The 'type' field is missing\.$") as caught:
        decode(b'{"event_id": "event_567"}')
    assert (caught.value.code, caught.value.param) == ("invalid_event", None)


@each_dialect
@pytest.mark.parametrize("body", [b"[]", b'"session.update"', b"1", b"null"])
def test_a_frame_that_is_no_object_is_no_event(decode, body):
    with pytest.raises(ClientError) as caught:
        decode(body)
    assert caught.value.code == "invalid_event"


@each_dialect
@pytest.mark.parametrize("body", [b"", b"{", b'{"type": "response.create"', b'{"type": "a", "b": tru}', b'{"type": "\xff"}', b"\x00" * 9])
def test_a_frame_that_is_no_json_is_refused_as_such(decode, body):
    with pytest.raises(ClientError, match=r"^Invalid JSON: ") as caught:
        decode(body)
    assert (caught.value.code, caught.value.param) == ("invalid_json", None)


def test_an_unknown_type_is_refused_with_the_known_ones():
    code, param, message = mistake(frame("session.close"))
    assert (code, param) == ("invalid_value", "type")
    assert message.startswith("Invalid value: 'session.close'. Supported values are: 'session.update', 'input_audio_buffer.append', ")


def test_the_beta_has_an_event_of_its_own():
    beta = DIALECTS["beta"].decode_client
    assert isinstance(beta(frame("transcription_session.update", session={})), SessionUpdate)
    assert mistake(frame("transcription_session.update", session={}))[:2] == ("invalid_value", "type")


@each_dialect
def test_a_frame_that_is_nested_too_deep_is_refused(decode):
    deep: Any = {}
    for _ in range(64):
        deep = {"a": deep}
    tool = {"type": "function", "name": "f", "parameters": deep}
    for body in (update(tools=[tool]), frame("response.cancel", more=deep)):
        with pytest.raises(ClientError, match="nested more than 64 levels deep"):
            decode(body)


# The id for errors


def test_the_id_of_an_event_is_found_in_a_frame_that_is_refused():
    assert find_event_id(frame("nothing.known", event_id="event_7")) == "event_7"


@pytest.mark.parametrize("body", [b"{}", b"[]", b"{", b'{"event_id": 7}', b'{"event_id": null}', frame("x", event_id="e" * 513)])
def test_where_no_id_can_be_told_back_there_is_none(body):
    assert find_event_id(body) is None


def test_an_id_that_is_too_long_is_refused():
    assert mistake(frame("response.cancel", event_id="e" * 513))[:2] == ("string_above_max_length", "event_id")


# Leniency


@each_dialect
def test_null_stands_for_absent_where_it_says_no_more(decode):
    event = decode(frame("response.create", response=None, event_id=None))
    assert event == ResponseCreate()
    assert (
        decode(frame("conversation.item.create", previous_item_id=None, item={"type": "mcp_approval_response"} | APPROVAL)).extra is UNSET
    )


APPROVAL = {"approval_request_id": "mcpr_1", "approve": True, "id": None}


def test_no_null_of_an_item_is_told_back():
    item = {"type": "message", "role": "user", "id": None, "status": None, "content": [], "call_id": None, "vendor": 1}
    assert decode_client(create(**item)).item == MessageItem(role="user", content=[], extra=decode_client(create(**item)).item.extra)
    assert dict(decode_client(create(**item)).item.extra) == {"vendor": 1}


def test_null_clears_what_can_be_cleared():
    event = decode_client(update(instructions=None, audio={"input": {"turn_detection": None, "transcription": None}}, voice=None))
    assert event.session == Session(instructions=None, audio=Audio(input=AudioInput(turn_detection=None, transcription=None)))


@each_dialect
def test_unknown_fields_are_kept_and_no_mistake(decode):
    event = decode(update(wake_word="hey", audio={"input": {"gain": 2}}))
    assert event.session.extra["wake_word"] == "hey"
    assert json.loads(encode_client(event))["session"]["wake_word"] == "hey"


@each_dialect
def test_the_betas_parts_of_an_assistant_are_taken_for_todays(decode):
    parts = [{"type": "text", "text": "Hello"}, {"type": "audio", "transcript": "Hello"}]
    event = decode(create(type="message", role="assistant", content=parts))
    assert event.item.content == [OutputText(text="Hello"), OutputAudio(transcript="Hello")]
    assert [part["type"] for part in json.loads(encode_client(event))["item"]["content"]] == ["output_text", "output_audio"]


def test_an_output_needs_no_more_than_a_call_and_a_text():
    event = decode_client(create(type="function_call_output", call_id="call_1", output=""))
    assert event == ConversationItemCreate(item=FunctionCallOutputItem(call_id="call_1", output=""))


# Mistakes in sessions


def test_a_session_must_say_which_kind_it_is():
    assert mistake(frame("session.update", session={"instructions": "Be brief."})) == (
        "missing_required_parameter",
        "session.type",
        "Missing required parameter: 'session.type'.",
    )


def test_a_session_of_no_kind_is_refused():
    assert mistake(frame("session.update", session={"type": "translation"})) == (
        "invalid_value",
        "session.type",
        "Invalid value: 'translation'. Supported values are: 'realtime' and 'transcription'.",
    )


VAD = "session.audio.input.turn_detection"
RATIO = "session.truncation.retention_ratio"


@pytest.mark.parametrize(
    "body, code, param",
    [
        (turns(threshold=1.5), "decimal_above_max_value", f"{VAD}.threshold"),
        (turns(threshold="high"), "invalid_type", f"{VAD}.threshold"),
        (turns(idle_timeout_ms=4999), "integer_below_min_value", f"{VAD}.idle_timeout_ms"),
        (turns(idle_timeout_ms=30_001), "integer_above_max_value", f"{VAD}.idle_timeout_ms"),
        (turns(silence_duration_ms=-1), "integer_below_min_value", f"{VAD}.silence_duration_ms"),
        (update(audio={"input": {"turn_detection": {"threshold": 1}}}), "missing_required_parameter", f"{VAD}.type"),
        (update(audio={"input": {"turn_detection": {"type": "none"}}}), "invalid_value", f"{VAD}.type"),
        (update(audio={"input": {"format": {"type": "audio/opus"}}}), "invalid_value", "session.audio.input.format.type"),
        (
            update(audio={"input": {"format": {"type": "audio/pcm", "rate": 16000}}}),
            "integer_below_min_value",
            "session.audio.input.format.rate",
        ),
        (update(audio={"input": {"noise_reduction": {"type": "gate"}}}), "invalid_value", "session.audio.input.noise_reduction.type"),
        (update(audio={"output": {"speed": 2}}), "decimal_above_max_value", "session.audio.output.speed"),
        (update(audio={"output": {"speed": 0.2}}), "decimal_below_min_value", "session.audio.output.speed"),
        (update(audio={"output": {"voice": 1}}), "invalid_type", "session.audio.output.voice"),
        (update(max_output_tokens=4097), "integer_above_max_value", "session.max_output_tokens"),
        (update(max_output_tokens="much"), "invalid_value", "session.max_output_tokens"),
        (
            update(truncation={"type": "retention_ratio", "retention_ratio": 2}),
            "decimal_above_max_value",
            RATIO,
        ),
        (update(truncation={"type": "retention_ratio"}), "missing_required_parameter", RATIO),
        (update(truncation="often"), "invalid_value", "session.truncation"),
        (update(tracing="on"), "invalid_value", "session.tracing"),
        (update(tool_choice="any"), "invalid_value", "session.tool_choice"),
        (update(tools=[{"type": "function"}]), "missing_required_parameter", "session.tools[0].name"),
        (update(tools=[{"name": "feed"}]), "missing_required_parameter", "session.tools[0].type"),
        (update(include=["everything"]), "invalid_value", "session.include[0]"),
        (answer(metadata={"k": "v" * 513}), "string_above_max_length", "response.metadata.k"),
        (
            answer(metadata={str(n): "" for n in range(17)}),
            "object_above_max_properties",
            "response.metadata",
        ),
        (
            answer(metadata={"k" * 65: ""}),
            "property_name_above_max_length",
            f"response.metadata.{'k' * 65}",
        ),
        (answer(conversation="both"), "invalid_value", "response.conversation"),
        (answer(reasoning={"effort": "some"}), "invalid_value", "response.reasoning.effort"),
        (frame("conversation.item.truncate", item_id="i", content_index=0), "missing_required_parameter", "audio_end_ms"),
        (frame("conversation.item.truncate", item_id="i", content_index=0, audio_end_ms=-1), "integer_below_min_value", "audio_end_ms"),
        (frame("conversation.item.delete"), "missing_required_parameter", "item_id"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_where_it_stands(body, code, param):
    assert mistake(body)[:2] == (code, param)


def test_a_rate_is_refused_in_the_originals_words():
    assert mistake(update(audio={"input": {"format": {"type": "audio/pcm", "rate": 16000}}}))[2] == (
        "Invalid 'session.audio.input.format.rate': integer below minimum value. Expected a value >= 24000, but got 16000 instead."
    )


@pytest.mark.parametrize("modalities", [["text", "audio"], [], ["audio", "audio"]])
def test_an_answer_is_in_writing_or_aloud(modalities):
    told = f"Invalid modalities: {modalities}. Supported combinations are: ['text'] and ['audio']."
    assert mistake(update(output_modalities=modalities)) == ("invalid_value", "session.output_modalities", told)
    response = answer(output_modalities=modalities)
    assert mistake(response) == ("invalid_value", "response.output_modalities", told)


def test_a_turn_can_be_detected_by_its_meaning():
    event = decode_client(update(audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}}))
    assert event.session.audio.input.turn_detection == SemanticVad(eagerness="low")


# Mistakes in items


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


@pytest.mark.parametrize(
    "item, code, param",
    [
        ({"type": "message", "role": "user"}, "missing_required_parameter", "item.content"),
        ({"type": "message", "role": "developer", "content": []}, "invalid_value", "item.role"),
        (said("user", [{"type": "input_text"}]), "missing_required_parameter", "item.content[0].text"),
        (said("user", [{"type": "input_audio"}]), "missing_required_parameter", "item.content[0].audio"),
        (said("user", [{"type": "input_audio", "audio": "A"}]), "invalid_value", "item.content[0].audio"),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_image"}]},
            "missing_required_parameter",
            "item.content[0].image_url",
        ),
        (said("user", [{"type": "input_image", "image_url": "zzz"}]), "invalid_url", "item.content[0].image_url"),
        (said("user", [{"type": "input_image", "image_url": ""}]), "invalid_url", "item.content[0].image_url"),
        (said("user", [{"type": "output_text", "text": ""}]), "invalid_value", "item.content[0].type"),
        (
            {"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": ""}]},
            "invalid_value",
            "item.content[0].type",
        ),
        (said("system", [{"type": "input_audio", "audio": ""}]), "invalid_value", "item.content[0].type"),
        ({"type": "message", "role": "user", "content": "Hello"}, "invalid_type", "item.content"),
        ({"type": "function_call_output", "output": ""}, "missing_required_parameter", "item.call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": {}}, "invalid_type", "item.output"),
        ({"type": "item_reference", "id": "i"}, "invalid_value", "item.type"),
        ({"id": "i"}, "missing_required_parameter", "item.type"),
    ],
)
def test_an_item_that_can_not_be_is_refused_where_the_mistake_is(item, code, param):
    assert mistake(create(**item))[:2] == (code, param)


PARTS_BY_ROLE = {
    "user": "'input_text', 'input_audio', and 'input_image'",
    "assistant": "'output_text' and 'output_audio'",
    "system": "'input_text'",
}


@pytest.mark.parametrize("part", [{"type": "text", "text": "x"}, {"type": "text"}, {"type": "audio"}, {"type": "zzz"}])
@pytest.mark.parametrize("role", ["user", "system"])
def test_a_part_is_named_as_it_was_written_with_those_that_its_role_may_have(role, part):
    code, param, message = mistake(create(type="message", role=role, content=[{"type": "input_text", "text": "x"}, part]))
    assert (code, param) == ("invalid_value", "item.content[1].type")
    assert message == f"Invalid value: '{part['type']}'. Supported values are: {PARTS_BY_ROLE[role]}."
    item = {"type": "message", "role": role, "content": [part]}
    assert mistake(answer(input=[{"type": "item_reference", "id": "x"}, item]))[1] == "response.input[1].content[0].type"


def test_an_unknown_part_of_the_models_is_told_what_the_model_says():
    message = mistake(create(type="message", role="assistant", content=[{"type": "zzz"}]))[2]
    assert message == f"Invalid value: 'zzz'. Supported values are: {PARTS_BY_ROLE['assistant']}."
    assert mistake(create(type="message", role="assistant", content=[{"type": "text"}]))[1] == "item.content[0].text"


def test_the_input_of_a_response_is_looked_at_as_items_are():
    item = {"type": "message", "role": "user", "content": [{"type": "output_text", "text": ""}]}
    assert mistake(answer(input=[item]))[1] == "response.input[0].content[0].type"
    assert decode_client(answer(input=[{"type": "item_reference", "id": "item_1"}]))


def test_a_part_of_the_input_of_a_response_may_be_a_reference_and_no_part_of_an_item():
    reference = {"type": "item_reference", "id": "item_1"}
    for role in ("user", "assistant", "system"):
        item = {"type": "message", "role": role, "content": [reference]}
        assert decode_client(answer(input=[item])).response.input[0].content == [ItemReference(id="item_1")]
        assert mistake(create(**item))[:2] == ("invalid_value", "item.content[0].type")
    item = {"type": "message", "role": "system", "content": [{"type": "item_reference"}]}
    assert mistake(answer(input=[item]))[:2] == ("missing_required_parameter", "response.input[0].content[0].id")
    item["content"] = [{"type": "zzz"}]
    assert mistake(answer(input=[item]))[2] == "Invalid value: 'zzz'. Supported values are: 'input_text' and 'item_reference'."


@pytest.mark.parametrize("number", [b"1e400", b"9" * 6000])
def test_a_number_out_of_range_is_called_that(number):
    with pytest.raises(ClientError, match=r"^A number in the event is out of range\.$"):
        DIALECTS["ga"].decode_client(b'{"type": "response.create", "response": {"max_output_tokens": ' + number + b"}}")
