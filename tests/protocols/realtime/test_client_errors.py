"""Client errors: reported once, with a code and the client's event id; the session goes on unchanged."""

import pytest

from antiphon.engine_api import commands, events
from support.protocols.realtime_dialogues import MISSING, OMNI, TEXT, Tells, error, event, responds, silence, sound

WRITE = event("conversation.item.create", item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]})


@pytest.mark.parametrize("dialect", ["ga", "beta"])
@pytest.mark.parametrize(
    ("frame", "code", "event_id", "param"),
    [
        (b"", "invalid_json", None, None),
        (b"{", "invalid_json", None, None),
        (b'{"type":"response.create"', "invalid_json", None, None),
        (b"\xff\xfe", "invalid_json", None, None),
        (b"[]", "invalid_event", None, None),
        (b'"response.create"', "invalid_event", None, None),
        (b'{"event_id":"mine"}', "invalid_event", "mine", None),
        (b'{"event_id":"mine","type":null}', "invalid_event", "mine", None),
        (b'{"event_id":"mine","type":"poem"}', "invalid_value", "mine", "type"),
        (b'{"event_id":"mine","type":7}', "invalid_type", "mine", "type"),
        (b'{"event_id":"mine","type":"conversation.item.delete"}', "missing_required_parameter", "mine", "item_id"),
        (b'{"event_id":"mine","type":"response.create","response":7}', "invalid_type", "mine", "response"),
        (b'{"event_id":"mine","type":"input_audio_buffer.append"}', "missing_required_parameter", "mine", "audio"),
        (b'{"event_id":"mine","type":"input_audio_buffer.append","audio":"AAA"}', "invalid_value", "mine", "audio"),
        (b'{"event_id":"mine","type":"input_audio_buffer.append","audio":"A?=="}', "invalid_value", "mine", "audio"),
        (b'{"event_id":"mine","type":"response.create","response":' + b"[" * 70 + b"]" * 70 + b"}", MISSING, "mine", MISSING),
        (b'{"event_id":"' + b"m" * 513 + b'","type":"response.cancel"}', "string_above_max_length", None, "event_id"),
    ],
)
def test_what_is_no_event_is_an_error_and_the_session_goes_on(talk_to, dialect, frame, code, event_id, param):
    session = talk_to(dialect=dialect) >> frame
    (told,) = session.events()
    assert told["type"] == "error"
    assert told["error"]["event_id"] == event_id
    assert told["error"]["type"] == "invalid_request_error"
    if code is not MISSING:
        assert (told["error"]["code"], told["error"]["param"]) == (code, param)
    session >> WRITE
    assert session.events()[0]["item"]["content"] == WRITE["item"]["content"]


def test_half_a_group_of_base64_adds_nothing_to_the_sound(talk_to):
    message = "Invalid 'audio'. Expected base64-encoded audio bytes but got invalid bytes."
    session = talk_to() >> event("input_audio_buffer.append", audio="AAA") << error("invalid_value", message=message, param="audio")
    session >> event("input_audio_buffer.commit") << error("input_audio_buffer_commit_empty")


def test_sound_cut_within_a_sample_is_heard_whole(talk_to):
    session = (
        talk_to()
        >> sound(b"\1\2\3")
        << commands.AppendAudio(b"\1\2")
        >> sound(b"\4")
        << commands.AppendAudio(b"\3\4")
        >> sound(b"\5")
        >> sound(b"")
    )
    assert session.session._input_audio.buffer.buffered_bytes == 4


def test_sound_that_is_too_much_for_one_event_is_not_taken(talk_to):
    session = talk_to() >> sound(bytes(12 << 20)) << error("invalid_value", param="audio")
    session >> sound(bytes(11 << 20)) << Tells(commands.AppendAudio)


def test_a_buffer_that_nobody_empties_is_full_at_last(talk_to):
    session = talk_to().update(audio={"input": {"turn_detection": None}})
    for _ in range(6):
        session.skip() >> sound(bytes(11 << 20))
    (
        session
        << error("input_audio_buffer_full")
        >> event("input_audio_buffer.clear")
        << commands.ClearAudio()
        << "input_audio_buffer.cleared"
    )
    session >> sound(bytes(11 << 20)) << Tells(commands.AppendAudio)


def test_sound_goes_on_in_the_middle_of_an_answer(talk_to):
    session = talk_to() >> event("response.create") << "response.created" << responds() >> events.AudioTranscriptDelta("resp_1", "Once")
    (
        session.skip()
        >> sound(silence(20))
        << Tells(commands.AppendAudio)
        >> events.AudioTranscriptDelta("resp_1", " upon")
        << "response.output_audio_transcript.delta"
    )


def test_a_session_that_writes_down_what_is_said_knows_no_answers(talk_to):
    session = talk_to(is_transcription=True) >> event("response.create", event_id="mine") << error("invalid_value", "mine")
    session >> event("response.cancel", event_id="mine") << error("response_cancel_not_active", "mine")


@pytest.mark.parametrize(
    ("response", "code", "param"),
    [
        ({"output_modalities": ["audio"]}, "unsupported_value", "response.output_modalities"),
        ({"output_modalities": ["text", "audio"]}, "invalid_value", "response.output_modalities"),
        ({"conversation": "other"}, "invalid_value", "response.conversation"),
        ({"metadata": {str(number): "" for number in range(17)}}, "object_above_max_properties", "response.metadata"),
        ({"metadata": {"k" * 65: ""}}, "property_name_above_max_length", "response.metadata." + "k" * 65),
        ({"metadata": {"k": "v" * 513}}, "string_above_max_length", "response.metadata.k"),
        ({"max_output_tokens": 0}, "integer_below_min_value", "response.max_output_tokens"),
        ({"input": [{"type": "message", "role": "user"}]}, "missing_required_parameter", "response.input[0].content"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "response.prompt"),
    ],
)
def test_an_answer_that_can_not_be_had_is_refused_by_name_and_not_begun(talk_to, response, code, param):
    session = talk_to(capabilities=TEXT) >> event("response.create", response=response, event_id="mine") << error(code, "mine", param=param)
    session >> event("response.create") << "response.created" << Tells(commands.Respond)


def test_a_client_that_asks_twice_and_cancels_twice_is_told_and_served(talk_to):
    session = talk_to(capabilities=OMNI) >> event("response.create") << "response.created" << responds()
    session >> event("response.create") << error("conversation_already_has_active_response")
    session >> event("response.cancel") << commands.Cancel("resp_1") << "response.done rate_limits.updated"
    session >> event("response.cancel") << error("response_cancel_not_active")
    session >> event("conversation.item.truncate", item_id="item_1", content_index=0, audio_end_ms=0)
    session << error("item_truncate_invalid_item_id") >> event("response.create") << "response.created" << responds("resp_2")


def test_an_engine_that_is_overrun_fails_the_answer_that_it_had_no_room_for(talk_to):
    session = talk_to() >> event("response.create") << "response.created" << responds()
    session >> events.ResponseFailed(id="resp_1", message="No room.", code="server_is_overloaded", status=503)
    session << event("response.done", response={"status": "failed", "status_details": {"error": {"code": "server_is_overloaded"}}})
    session << "rate_limits.updated"
