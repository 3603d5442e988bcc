"""What a client does to the items of its conversation."""

import pytest

from antiphon.engine_api import events, history as engine_history
from support.protocols.realtime_dialogues import ANY, MISSING, OMNI, TEXT, base64_of, error, event, responds, silence

BOTH = pytest.mark.parametrize("dialect", ["ga", "beta"])


def wrote(text, **fields):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


def create(item, **fields):
    return event("conversation.item.create", item=item, **fields)


def holding(talk_to, *ids, **options):
    session = talk_to(**options)
    for id in ids:
        session.skip() >> create(wrote(id, id=id))
    return session.skip()


def spoken(talk_to, ms=400, **options):
    """A session whose model has said something, as `item_1`."""
    return talk_to(**options).answer(
        events.AudioTranscriptDelta("resp_1", "Once "),
        events.AudioDelta("resp_1", silence(ms)),
        events.AudioTranscriptDelta("resp_1", "more"),
    )


def truncate(item_id, ms, index=0, **fields):
    return event("conversation.item.truncate", item_id=item_id, content_index=index, audio_end_ms=ms, **fields)


# Creating


def test_an_item_goes_last_and_is_added_and_done(talk_to):
    session = talk_to() >> create(wrote("a"))
    item = {"id": "item_1", "object": "realtime.item", "status": "completed", "content": [{"type": "input_text", "text": "a"}]}
    session << event("conversation.item.added", previous_item_id=None, item=item)
    session << event("conversation.item.done", previous_item_id=None, item=item)
    session >> create(wrote("b", id="mine")) << event("conversation.item.added", previous_item_id="item_1", item={"id": "mine"})
    session << event("conversation.item.done", previous_item_id="item_1")


def test_the_beta_tells_of_an_item_once(talk_to):
    talk_to(dialect="beta") >> create(wrote("a")) << event("conversation.item.created", previous_item_id=None, item={"id": "item_1"})


@pytest.mark.parametrize(("previous", "told"), [("root", None), ("a", "a"), ("b", "b"), (None, "b")])
def test_an_item_goes_where_it_is_put(talk_to, previous, told):
    session = holding(talk_to, "a", "b") >> create(wrote("c", id="c"), **({"previous_item_id": previous} if previous else {}))
    session << event("conversation.item.added", previous_item_id=told) << event("conversation.item.done", previous_item_id=told)


def test_a_place_of_null_is_the_last(talk_to):
    session = holding(talk_to, "a") >> create(wrote("c"), previous_item_id=None)
    session << event("conversation.item.added", previous_item_id="a") << "conversation.item.done"


def test_the_model_reads_items_in_their_order(talk_to):
    session = holding(talk_to, "a", "b", capabilities=TEXT) >> create(wrote("c"), previous_item_id="root")
    history = tuple(engine_history.Message("user", (engine_history.TextPart(text),)) for text in "cab")
    session.skip() >> event("response.create") << "response.created" << responds(history=history)


def test_an_item_behind_none_that_there_is_is_not_added(talk_to):
    message = "Error adding item: the previous item with id 'nowhere' does not exist."
    session = holding(talk_to, "a") >> create(wrote("b", id="b"), previous_item_id="nowhere", event_id="mine")
    session << error("item_create_invalid_previous_item_id", "mine", message=message)
    session >> create(wrote("b", id="b")) << event("conversation.item.added", previous_item_id="a") << "conversation.item.done"


def test_an_id_that_there_is_already_is_refused(talk_to):
    message = "Error adding item: an item with id 'a' already exists."
    session = holding(talk_to, "a") >> create(wrote("b", id="a"), event_id="mine")
    session << error("item_create_duplicate_item_id", "mine", message=message)


@BOTH
def test_whatever_a_client_may_say_is_an_item(talk_to, dialect):
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text" if dialect == "ga" else "text", "text": "Yes"}]}
    told = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be kind."}]}
    session = talk_to(dialect=dialect)
    for item in (call, {"type": "function_call_output", "call_id": "c", "output": "4"}, said, told):
        session >> create(item)
        assert session.log[-1]["item"].items() >= item.items()
        session.skip()
    history = (
        engine_history.ToolCall("c", "f", "{}"),
        engine_history.ToolResult("c", (engine_history.TextPart("4"),)),
        engine_history.Message("assistant", (engine_history.TextPart("Yes"),)),
        engine_history.Message("system", (engine_history.TextPart("Be kind."),)),
    )
    session >> event("response.create") << "response.created" << responds(history=history)
    session.skip()


def test_sound_in_an_item_is_kept_and_not_sent_back(talk_to):
    part = {"type": "input_audio", "audio": base64_of(silence(50)), "transcript": "Hm"}
    session = talk_to() >> create({"type": "message", "role": "user", "content": [part]})
    shown = [{"type": "input_audio", "audio": MISSING, "transcript": "Hm"}]
    session << event("conversation.item.added", item={"content": shown}) << event("conversation.item.done", item={"content": shown})
    said = engine_history.SpeechPart(silence(50), 24_000, None, "Hm")
    session >> event("response.create") << "response.created" << responds(history=(engine_history.Message("user", (said,)),))
    session >> event("conversation.item.retrieve", item_id="item_1") << event("conversation.item.retrieved", item={"content": [part]})


def test_sound_in_an_item_is_refused_where_nobody_hears(talk_to):
    part = {"type": "input_audio", "audio": "AAAA"}
    session = talk_to(capabilities=TEXT) >> create({"type": "message", "role": "user", "content": [part]})
    session << error("unsupported_content_type", message="Unsupported content type: audio input is not supported with the 'parrot' model.")


@pytest.mark.parametrize(("capabilities", "is_taken"), [(OMNI, True), (TEXT, False)])
def test_pictures_are_for_engines_that_see(talk_to, capabilities, is_taken):
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    session = talk_to(capabilities=capabilities) >> create({"type": "message", "role": "user", "content": [picture]})
    if not is_taken:
        session << error("unsupported_parameter", param="item.content[0].image_url")
        return
    session << event("conversation.item.added", item={"content": [picture]}) << "conversation.item.done" >> event("response.create")
    seen = engine_history.ImagePart(url="data:image/png;base64,AA==", detail="low")
    session << "response.created" << responds(history=(engine_history.Message("user", (seen,)),))


def test_a_large_picture_is_not_sent_back(talk_to):
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * (3 << 20)}
    session = talk_to() >> create({"type": "message", "role": "user", "content": [picture]})
    shown = {"content": [{"type": "input_image", "image_url": MISSING}]}
    session << event("conversation.item.added", item=shown) << event("conversation.item.done", item=shown)
    session >> event("conversation.item.retrieve", item_id="item_1") << event("conversation.item.retrieved", item=shown)
    session >> event("response.create") << "response.created"
    assert session.pending.pop().history[0].parts[0].url == picture["image_url"]


def test_words_that_could_not_be_sent_back_are_refused(talk_to):
    talk_to() >> create(wrote("a" * 2_000_000)) << error("string_above_max_length", param="item")


def test_the_voice_of_the_model_can_not_be_made_up(talk_to):
    spoken = {"type": "message", "role": "assistant", "content": [{"type": "output_audio", "transcript": "I never said that"}]}
    talk_to() >> create(spoken, event_id="mine") << error("invalid_value", "mine", param="item.content[0].type")


def test_the_result_of_a_call_that_never_was_is_refused(talk_to):
    (
        talk_to()
        >> create({"type": "function_call_output", "call_id": "c", "output": "4"})
        << error("invalid_tool_call_id", param="item.call_id")
    )


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ({"type": "message", "role": "user"}, "missing_required_parameter", "item.content"),
        ({"type": "message", "role": "user", "content": [{"type": "input_text"}]}, "missing_required_parameter", "item.content[0].text"),
        ({"type": "message", "role": "user", "content": [{"type": "output_text", "text": ""}]}, "invalid_value", "item.content[0].type"),
        ({"type": "message", "role": "narrator", "content": []}, "invalid_value", "item.role"),
        ({"type": "poem"}, "invalid_value", "item.type"),
        ({"type": "function_call", "name": "f"}, "missing_required_parameter", "item.arguments"),
    ],
)
@BOTH
def test_what_is_no_item_is_refused_by_name(talk_to, dialect, item, code, param):
    session = talk_to(dialect=dialect) >> create(item, event_id="mine") << error(code, "mine", param=param, type="invalid_request_error")
    session >> create(wrote("a"))
    assert [each["previous_item_id"] for each in session.events()] == [None] * (2 if dialect == "ga" else 1)


# Deleting and retrieving


def test_a_deleted_item_is_gone(talk_to):
    session = holding(talk_to, "a", "b", "c", capabilities=TEXT) >> event("conversation.item.delete", item_id="b")
    session << event("conversation.item.deleted", item_id="b")
    history = tuple(engine_history.Message("user", (engine_history.TextPart(text),)) for text in "ac")
    session >> event("response.create") << "response.created" << responds(history=history)


@pytest.mark.parametrize(("action", "doing"), [("delete", "deleting"), ("retrieve", "retrieving")])
def test_what_is_not_there_can_not_be_had(talk_to, action, doing):
    message = f"Error {doing} item: the item with id 'X' does not exist."
    session = talk_to() >> event(f"conversation.item.{action}", item_id="X")
    session << error(f"item_{action}_invalid_item_id", message=message, param=None)


def test_an_answer_whose_item_is_deleted_goes_on_without_it(talk_to):
    session = talk_to(capabilities=TEXT) >> event("response.create") << "response.created" << responds()
    session >> events.TextDelta("resp_1", "a")
    session.skip() >> event("conversation.item.delete", item_id="item_1") << "conversation.item.deleted"
    session >> create(wrote("b", id="item_1")) << "conversation.item.added conversation.item.done"
    session >> (events.TextDelta("resp_1", "b"), events.ResponseEnded("resp_1")) << "response.output_text.delta response.output_text.done"
    session << "response.content_part.done response.output_item.done response.done rate_limits.updated"


def test_an_answer_can_be_looked_at_while_it_is_said(talk_to):
    session = talk_to() >> event("response.create") << "response.created" << responds() >> events.AudioDelta("resp_1", silence(20))
    session.skip() >> event("conversation.item.retrieve", item_id="item_1")
    session << event("conversation.item.retrieved", item={"id": "item_1", "status": "in_progress"})


def test_only_what_is_retrieved_comes_with_its_sound(talk_to):
    session = spoken(talk_to) >> event("conversation.item.retrieve", item_id="item_1")
    content = [{"type": "output_audio", "transcript": "Once more", "audio": base64_of(silence(400))}]
    session << event("conversation.item.retrieved", item={"content": content})


def test_sound_is_retrieved_in_the_code_of_whoever_spoke(talk_to):
    session = talk_to().update(audio={"input": {"format": {"type": "audio/pcmu"}}})
    session.turn("t1", 0) >> events.AudioDelta("resp_1", silence(20))
    session.skip() >> events.ResponseEnded("resp_1")
    session.skip() >> event("conversation.item.retrieve", item_id="item_2")
    session << event("conversation.item.retrieved", item={"content": [{"type": "output_audio", "audio": base64_of(silence(20))}]})


def test_long_sound_is_retrieved_whole(talk_to):
    session = spoken(talk_to, ms=240_000) >> event("conversation.item.retrieve", item_id="item_1")
    content = [{"transcript": "Once more", "audio": base64_of(silence(240_000))}]
    session << event("conversation.item.retrieved", item={"content": content})


def test_sound_too_long_for_one_event_is_an_error_that_names_the_limit(talk_to):
    session = spoken(talk_to, ms=250_000) >> event("conversation.item.retrieve", item_id="item_1", event_id="mine")
    message = "The item has 12000000 bytes of audio, too many for one event. The maximum is 11796480 bytes."
    session << error("event_too_large", "mine", message=message, param="item_id")


def test_sound_too_long_to_be_kept_is_an_error_too(talk_to):
    session = talk_to().update(audio={"input": {"turn_detection": None}})
    four_minutes = silence(240_000)
    for _ in range(5):
        session.skip() >> event("input_audio_buffer.append", audio=base64_of(four_minutes))
    session.skip() >> event("input_audio_buffer.commit")
    session.skip() >> event("conversation.item.retrieve", item_id="item_1")
    message = "The item has 57600000 bytes of audio, too many for one event. The maximum is 11796480 bytes."
    session << error("event_too_large", message=message, param="item_id")


# Truncating


def test_what_was_not_heard_is_not_known_to_the_model(talk_to):
    session = spoken(talk_to) >> truncate("item_1", 150)
    session << event("conversation.item.truncated", item_id="item_1", content_index=0, audio_end_ms=150)
    session >> event("response.create") << "response.created"
    (said,) = session.pending.pop().history
    assert said.parts == (engine_history.TextPart("Once "),)


@pytest.mark.parametrize(("ms", "is_taken"), [(0, True), (400, True), (401, False), (6_185, False)])
def test_sound_can_be_cut_only_where_there_is_sound(talk_to, ms, is_taken):
    session = spoken(talk_to) >> truncate("item_1", ms, event_id="mine")
    if is_taken:
        session << event("conversation.item.truncated", audio_end_ms=ms)
    else:
        session << error("invalid_value", "mine", message=f"Audio content of 400ms is already shorter than {ms}ms")
        session >> event("conversation.item.retrieve", item_id="item_1")
        session << event("conversation.item.retrieved", item={"content": [{"transcript": "Once more", "audio": ANY}]})


def test_two_that_both_cut_are_both_right_and_the_earlier_cut_holds(talk_to):
    session = spoken(talk_to) >> truncate("item_1", 150) << event("conversation.item.truncated", audio_end_ms=150)
    session >> truncate("item_1", 150) << event("conversation.item.truncated", audio_end_ms=150)
    session >> truncate("item_1", 300) << event("conversation.item.truncated", audio_end_ms=150)
    session >> truncate("item_1", 100) << event("conversation.item.truncated", audio_end_ms=100)


def test_an_answer_can_be_cut_while_it_is_said(talk_to):
    session = talk_to() >> event("response.create") << "response.created" << responds()
    session >> (events.AudioTranscriptDelta("resp_1", "Once "), events.AudioDelta("resp_1", silence(400)))
    session.skip() >> truncate("item_1", 200) << event("conversation.item.truncated", audio_end_ms=200)
    session >> (events.AudioTranscriptDelta("resp_1", "more"), events.AudioDelta("resp_1", silence(400)), events.ResponseEnded("resp_1"))
    session.skip() >> event("conversation.item.retrieve", item_id="item_1")
    content = [{"type": "output_audio", "transcript": MISSING, "audio": base64_of(silence(200))}]
    session << event("conversation.item.retrieved", item={"content": content})


def test_a_truncation_that_comes_before_any_sound_is_refused(talk_to):
    session = talk_to() >> event("response.create") << "response.created" << responds() >> events.AudioTranscriptDelta("resp_1", "Once")
    session.skip() >> truncate("item_1", 0)
    session << error("unsupported_content_type", message="Only model output audio messages can be truncated")
    session >> events.AudioDelta("resp_1", silence(20)) << "response.output_audio.delta"


def test_only_sound_of_the_model_can_be_cut(talk_to):
    refused = error("unsupported_content_type", message="Only model output audio messages can be truncated", type="invalid_request_error")
    session = talk_to().turn("t1").skip() >> truncate("item_1", 10) << refused
    session >> (events.TextDelta("resp_1", "Hi"), events.ResponseEnded("resp_1"))
    session.skip() >> truncate("item_2", 0) << refused
    session >> truncate("item_2", 0, index=7) << refused


def test_what_is_not_there_can_not_be_cut(talk_to):
    message = "Error truncating item: the item with id 'X' does not exist."
    talk_to() >> truncate("X", 10) << error("item_truncate_invalid_item_id", message=message)


def test_the_server_has_nothing_to_play_and_says_so(talk_to):
    talk_to() >> event("output_audio_buffer.clear", event_id="mine") << error("invalid_value", "mine")
