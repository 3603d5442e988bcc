"""Responses: in text, spoken, as calls; cancelled, refused, out of band; and their usage."""

import pytest

from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.options import Sampling, Voice
from antiphon.errors import ServerError
from antiphon.protocols.session import Hangup, Shutdown
from antiphon.wire.realtime.server_events import RateLimit
from support.protocols.realtime_dialogues import LIMITS, MISSING, OMNI, TEXT, Closes, base64_of, error, event, responds, silence, sound

WRITTEN = {"output_modalities": ["text"]}
PLACE = {"response_id": "resp_1", "item_id": "item_1", "output_index": 0}
OPENED = "response.output_item.added conversation.item.added response.content_part.added"
DONE = "response.content_part.done conversation.item.done response.output_item.done response.done rate_limits.updated"


def asked(talk_to, capabilities=OMNI, **response):
    return talk_to(capabilities=capabilities) >> event("response.create", response=response) << "response.created" << responds()


def test_the_first_event_tells_the_session(talk_to):
    session = talk_to(capabilities=TEXT, is_new=True)
    created = {"id": "sess_1", "type": "realtime", "object": "realtime.session", "model": "parrot", "expires_at": 4_600}
    session << event("session.created", session=created) >> event("response.create") << "response.created" << responds()


def test_the_beta_tells_of_its_conversation_as_well(talk_to):
    (
        talk_to(capabilities=TEXT, dialect="beta", is_new=True)
        << "session.created"
        << event("conversation.created", conversation={"id": "conv_1"})
    )


def test_an_answer_in_writing(talk_to):
    session = asked(talk_to, capabilities=TEXT) >> events.TextDelta("resp_1", "Hi")
    item = {"id": "item_1", "object": "realtime.item", "type": "message", "role": "assistant"}
    session << event(
        "response.output_item.added", response_id="resp_1", output_index=0, item={**item, "status": "in_progress", "content": []}
    )
    session << event("conversation.item.added", previous_item_id=None, item={**item, "status": "in_progress", "content": []})
    session << event("response.content_part.added", **PLACE, content_index=0, part={"type": "text", "text": ""})
    session << event("response.output_text.delta", **PLACE, content_index=0, delta="Hi")
    session >> (
        events.TextDelta("resp_1", " you"),
        events.Usage(id="resp_1", input_tokens=5, output_tokens=2),
        events.ResponseEnded("resp_1"),
    )
    (
        session
        << event("response.output_text.delta", delta=" you")
        << event("response.output_text.done", **PLACE, content_index=0, text="Hi you")
    )
    session << event("response.content_part.done", **PLACE, content_index=0, part={"type": "text", "text": "Hi you"})
    whole = {**item, "status": "completed", "content": [{"type": "output_text", "text": "Hi you"}]}
    session << event("conversation.item.done", previous_item_id=None, item=whole)
    session << event("response.output_item.done", response_id="resp_1", output_index=0, item=whole)
    usage = {"total_tokens": 7, "input_tokens": 5, "output_tokens": 2}
    session << event(
        "response.done", response={"id": "resp_1", "status": "completed", "status_details": None, "output": [whole], "usage": usage}
    )
    session << event("rate_limits.updated", rate_limits=[{"name": "requests", "limit": 10, "remaining": 9, "reset_seconds": 6.0}])


def test_an_answer_in_writing_in_the_beta(talk_to):
    session = talk_to(capabilities=TEXT, dialect="beta") >> event("response.create") << "response.created" << responds()
    session << "rate_limits.updated" >> (events.TextDelta("resp_1", "Hi"), events.ResponseEnded("resp_1"))
    session << "response.output_item.added conversation.item.created response.content_part.added response.text.delta response.text.done"
    session << "response.content_part.done"
    content = [{"type": "text", "text": "Hi"}]
    (
        session
        << event("response.output_item.done", item={"content": content})
        << event("response.done", response={"output": [{"content": content}]})
    )


def test_an_answer_aloud_has_words_and_sound_in_one_part(talk_to):
    session = asked(talk_to) >> (events.AudioTranscriptDelta("resp_1", "Hi"), events.AudioDelta("resp_1", silence(100)))
    session << event("response.output_item.added") << "conversation.item.added"
    session << event("response.content_part.added", **PLACE, content_index=0, part={"type": "audio", "transcript": ""})
    session << event("response.output_audio_transcript.delta", **PLACE, content_index=0, delta="Hi")
    session << event("response.output_audio.delta", **PLACE, content_index=0, delta=base64_of(silence(100)))
    session >> events.ResponseEnded("resp_1") << event("response.output_audio.done", **PLACE, content_index=0)
    session << event("response.output_audio_transcript.done", **PLACE, content_index=0, transcript="Hi")
    session << event("response.content_part.done", part={"type": "audio", "transcript": "Hi"})
    done = {"status": "completed", "content": [{"type": "output_audio", "transcript": "Hi", "audio": MISSING}]}
    session << event("conversation.item.done", item=done) << "response.output_item.done response.done rate_limits.updated"


def test_long_sound_is_told_in_pieces_of_a_fifth_of_a_second(talk_to):
    session = asked(talk_to) >> events.AudioDelta("resp_1", silence(60_000))
    deltas = session.events()[3:]
    assert [each["delta"] for each in deltas] == [base64_of(silence(200))] * 300


@pytest.mark.parametrize(("format", "code"), [("audio/pcmu", b"\xff"), ("audio/pcma", b"\xd5")])
def test_sound_for_the_telephone_is_asked_for_at_its_rate_and_sent_in_its_code(talk_to, format, code):
    session = talk_to().update(audio={"output": {"format": {"type": format}}}) >> event("response.create") << "response.created"
    session << responds(voice=Voice("alloy", 8_000, 1.0)) >> events.AudioDelta("resp_1", silence(20, 8_000)) << OPENED
    session << event("response.output_audio.delta", delta=base64_of(code * 160))


def test_what_is_said_aloud_is_text_to_a_client_that_reads(talk_to):
    session = asked(talk_to, **WRITTEN) >> (events.AudioTranscriptDelta("resp_1", "Hi"), events.AudioDelta("resp_1", silence(20)))
    session << OPENED << event("response.output_text.delta", delta="Hi")


def test_what_is_written_in_an_answer_aloud_is_a_part_of_its_own(talk_to):
    session = asked(talk_to) >> (
        events.TextDelta("resp_1", "a"),
        events.AudioTranscriptDelta("resp_1", "b"),
        events.ResponseEnded("resp_1"),
    )
    session << OPENED << "response.output_text.delta response.output_text.done response.content_part.done"
    session << event("response.content_part.added", content_index=1, part={"type": "audio"})
    session << "response.output_audio_transcript.delta response.output_audio.done response.output_audio_transcript.done"
    session << "response.content_part.done"
    session << event("conversation.item.done", item={"content": [{"type": "output_text"}, {"type": "output_audio"}]})
    session << "response.output_item.done response.done rate_limits.updated"


def test_reasoning_has_no_place_and_a_refusal_is_text(talk_to):
    session = (
        asked(talk_to, capabilities=TEXT)
        >> (events.ReasoningDelta("resp_1", "Hm."), events.EncryptedReasoning("resp_1", "x"))
        >> events.RefusalDelta("resp_1", "No.")
    )
    session << OPENED << event("response.output_text.delta", delta="No.")


def test_an_engines_names_of_items_are_not_the_conversations(talk_to):
    wrote = {"type": "message", "role": "user", "id": "a", "content": [{"type": "input_text", "text": "Hi"}]}
    session = talk_to(capabilities=TEXT) >> event("conversation.item.create", item=wrote)
    session.skip() >> event("response.create") << "response.created" << responds()
    said = (
        events.ItemBoundary("resp_1", "a"),
        events.TextDelta("resp_1", "x"),
        events.ItemBoundary("resp_1", "a"),
        events.TextDelta("resp_1", "y"),
    )
    session >> (*said, events.ResponseEnded("resp_1"))
    assert [each["item"]["id"] for each in session.events() if each["type"] == "conversation.item.done"] == ["item_1", "item_2"]


def test_an_answer_of_no_words_has_no_items(talk_to):
    session = asked(talk_to) >> events.ResponseEnded("resp_1") << event("response.done", response={"status": "completed", "output": []})
    session << "rate_limits.updated"


# Calls


def called(talk_to, **options):
    words = (
        events.ToolCallStarted("resp_1", "call_1", "add"),
        events.ToolArgumentsDelta("resp_1", "call_1", '{"a":'),
        events.ToolArgumentsDelta("resp_1", "call_1", "1}"),
    )
    session = talk_to(capabilities=TEXT, **options) >> event("response.create")
    return session.skip() >> words


def test_a_call_is_told_with_its_arguments_and_no_part(talk_to):
    session = called(talk_to)
    item = {"type": "function_call", "id": "item_1", "name": "add", "call_id": "call_1"}
    session << event("response.output_item.added", output_index=0, item={**item, "arguments": "", "status": "in_progress"})
    session << event("conversation.item.added", item={**item, "arguments": "", "status": "in_progress"})
    session << event("response.function_call_arguments.delta", **PLACE, call_id="call_1", delta='{"a":')
    session << event("response.function_call_arguments.delta", delta="1}")
    session >> events.ResponseEnded("resp_1")
    session << event("response.function_call_arguments.done", **PLACE, call_id="call_1", name="add", arguments='{"a":1}')
    whole = {**item, "arguments": '{"a":1}', "status": "completed"}
    session << event("conversation.item.done", item=whole) << event("response.output_item.done", item=whole)
    session << event("response.done", response={"status": "completed", "output": [whole]}) << "rate_limits.updated"


def test_a_call_in_the_beta(talk_to):
    session = called(talk_to, dialect="beta") << "response.output_item.added conversation.item.created"
    session << "response.function_call_arguments.delta response.function_call_arguments.delta" >> events.ResponseEnded("resp_1")
    session << event("response.function_call_arguments.done", call_id="call_1", name=MISSING, arguments='{"a":1}')
    session << "response.output_item.done response.done"


def test_a_call_is_told_to_be_complete_together_with_what_follows_so_that_the_next_answer_may_be_asked_for_at_once(talk_to):
    session = (
        called(talk_to).skip() >> events.ToolCallDone("resp_1", "call_1") >> events.Usage(id="resp_1", input_tokens=1, output_tokens=1)
    )
    session >> events.ToolCallStarted("resp_1", "call_2", "add")
    session << "response.function_call_arguments.done conversation.item.done response.output_item.done"
    (
        session
        << "response.output_item.added conversation.item.added"
        >> events.ToolCallDone("resp_1", "call_2")
        >> events.ResponseEnded("resp_1")
    )
    session << "response.function_call_arguments.done conversation.item.done response.output_item.done response.done rate_limits.updated"


def test_a_complete_call_is_told_of_when_its_answer_is_cancelled(talk_to):
    session = called(talk_to).skip() >> events.ToolCallDone("resp_1", "call_1") >> event("response.cancel") << commands.Cancel("resp_1")
    session << "response.function_call_arguments.done conversation.item.done"
    session << event("response.output_item.done", item={"status": "completed"})
    session << event("response.done", response={"status": "cancelled"}) << "rate_limits.updated"


def test_the_model_goes_on_only_when_asked_and_then_finds_what_the_call_gave(talk_to):
    session = called(talk_to).skip() >> events.ResponseEnded("resp_1")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
    session.skip() >> event("conversation.item.create", item=output)
    session << event("conversation.item.added", previous_item_id="item_1", item=output) << "conversation.item.done"
    history = engine_history.ToolCall("call_1", "add", '{"a":1}'), engine_history.ToolResult("call_1", (engine_history.TextPart("2"),))
    session >> event("response.create") << "response.created" << responds("resp_2", history=history)


def test_a_message_and_parallel_calls_are_items_one_after_the_other(talk_to):
    session = asked(talk_to, capabilities=TEXT) >> events.TextDelta("resp_1", "Wait.") << OPENED << "response.output_text.delta"
    session >> (
        events.ToolCallStarted("resp_1", "a", "f"),
        events.ToolCallStarted("resp_1", "b", "g"),
        events.ToolArgumentsDelta("resp_1", "b", "{}"),
    )
    session << "response.output_text.done response.content_part.done conversation.item.done response.output_item.done"
    session << event("response.output_item.added", output_index=1, item={"call_id": "a"}) << "conversation.item.added"
    session >> events.ResponseEnded("resp_1") << event("response.function_call_arguments.done", call_id="a", arguments="")
    session << "conversation.item.done response.output_item.done"
    session << event("response.output_item.added", output_index=2, item={"call_id": "b"})
    (
        session
        << event("conversation.item.added", previous_item_id="item_2")
        << event("response.function_call_arguments.delta", output_index=2)
    )
    session << "response.function_call_arguments.done conversation.item.done response.output_item.done"
    session << event("response.done", response={"output": [{"id": "item_1"}, {"id": "item_2"}, {"id": "item_3"}]}) << "rate_limits.updated"


# Cancelling, and asking twice


def test_a_cancelled_answer_is_closed_and_stays_in_the_conversation(talk_to):
    session = asked(talk_to, capabilities=TEXT) >> events.TextDelta("resp_1", "Once") << OPENED << "response.output_text.delta"
    session >> event("response.cancel") << commands.Cancel("resp_1") << "response.output_text.done response.content_part.done"
    session << event("conversation.item.done", item={"status": "incomplete"}) << "response.output_item.done"
    details = {"type": "cancelled", "reason": "client_cancelled"}
    session << event("response.done", response={"status": "cancelled", "status_details": details}) << "rate_limits.updated"
    session >> (events.TextDelta("resp_1", " upon"), events.ResponseEnded("resp_1", "cancelled"))
    said = engine_history.Message("assistant", (engine_history.TextPart("Once"),))
    session >> event("response.create") << "response.created" << responds("resp_2", history=(said,))


def test_a_cancel_of_nothing_is_an_error_and_no_more(talk_to):
    missing = {"message": "Cancellation failed: no active response found", "type": "invalid_request_error"}
    session = talk_to() >> event("response.cancel", event_id="mine") << error("response_cancel_not_active", "mine", **missing)
    session >> event("response.cancel", response_id="resp_9") << error("response_cancel_not_active", **missing)
    session >> event("response.create") << "response.created" << responds()


def test_a_cancel_that_comes_after_the_end_is_an_error_and_no_more(talk_to):
    session = asked(talk_to) >> events.ResponseEnded("resp_1")
    session.skip() >> event("response.cancel", response_id="resp_1") << error("response_cancel_not_active")
    session >> event("response.create") << "response.created" << responds("resp_2")


def test_an_engine_that_never_ends_a_cancelled_answer_holds_nobody_up(talk_to):
    session = asked(talk_to) >> event("response.cancel")
    session.skip() >> event("response.create") << "response.created" << responds("resp_2")
    (
        session
        >> events.TextDelta("resp_1", "still")
        >> events.ResponseEnded("resp_2")
        << "response.done rate_limits.updated"
        >> events.ResponseEnded("resp_1")
    )


def test_a_second_answer_at_once_is_refused_and_nothing_is_told_of_it(talk_to):
    session = asked(talk_to) >> event("response.create", event_id="mine")
    message = (
        "Conversation already has an active response in progress: resp_1. Wait until the response is finished before creating a new one."
    )
    session << error("conversation_already_has_active_response", "mine", message=message)
    session >> events.ResponseEnded("resp_1") << "response.done rate_limits.updated"


def test_answers_out_of_band_run_beside_and_leave_nothing_behind(talk_to):
    session = asked(talk_to, **WRITTEN) >> event("response.create", response={"conversation": "none", "metadata": {"for": "me"}, **WRITTEN})
    aside = {"id": "resp_2", "conversation_id": None, "metadata": {"for": "me"}}
    session << event("response.created", response=aside) << responds("resp_2", out_of_band=True)
    session >> (events.TextDelta("resp_2", "psst"), events.ResponseEnded("resp_2"))
    session << event("response.output_item.added", response_id="resp_2") << "response.content_part.added response.output_text.delta"
    session << "response.output_text.done response.content_part.done response.output_item.done"
    session << event("response.done", response={**aside, "output": [{"content": [{"text": "psst"}]}]}) << "rate_limits.updated"
    session >> event("conversation.item.retrieve", item_id="item_1") << error("item_retrieve_invalid_item_id")
    session >> events.ResponseEnded("resp_1") << event("response.done", response={"conversation_id": "conv_1"}) << "rate_limits.updated"


def test_an_answer_out_of_band_is_cancelled_by_its_id(talk_to):
    session = asked(talk_to) >> event("response.create", response={"conversation": "none"}) << "response.created" << responds("resp_2")
    (
        session
        >> event("response.cancel", response_id="resp_2")
        << commands.Cancel("resp_2")
        << event("response.done", response={"id": "resp_2"})
    )
    session << "rate_limits.updated" >> event("response.cancel") << commands.Cancel("resp_1") << "response.done rate_limits.updated"


def test_there_is_an_end_to_answers_out_of_band(talk_to):
    session = talk_to()
    for _ in range(16):
        session.skip() >> event("response.create", response={"conversation": "none"})
    (
        session.skip()
        >> event("response.create", response={"conversation": "none"}, event_id="mine")
        << error("too_many_active_responses", "mine")
    )
    session >> event("response.create") << "response.created" << responds("resp_17")


# What an answer reads


def wrote(text, **fields):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


def test_input_stands_in_for_the_conversation(talk_to):
    session = talk_to(capabilities=TEXT) >> event("conversation.item.create", item=wrote("a", id="mine"))
    session.skip() >> event("response.create", response={"input": [wrote("b"), {"type": "item_reference", "id": "mine"}]})
    history = tuple(engine_history.Message("user", (engine_history.TextPart(text),)) for text in "ba")
    session << "response.created" << responds(history=history) >> events.ResponseEnded("resp_1")
    session.skip() >> event("response.create", response={"input": []}) << "response.created" << responds("resp_2", history=())


@pytest.mark.parametrize("dialect", ["ga", "beta"])
def test_a_reference_among_the_parts_of_a_message_is_read_where_it_stands(talk_to, dialect):
    said = {
        "type": "message",
        "id": "mine",
        "role": "assistant",
        "content": [{"type": "output_text" if dialect == "ga" else "text", "text": "a"}],
    }
    session = talk_to(capabilities=TEXT, dialect=dialect) >> event("conversation.item.create", item=said)
    before, after = wrote("b")["content"], wrote("c")["content"]
    message = wrote("") | {"content": [*before, {"type": "item_reference", "id": "mine"}, *after]}
    session.skip() >> event("response.create", response={"conversation": "none", "input": [message]})
    read = [("user", "b"), ("assistant", "a"), ("user", "c")]
    session << "response.created"
    session << responds(history=tuple(engine_history.Message(role, (engine_history.TextPart(text),)) for role, text in read))
    session.skip()


def test_parts_around_a_reference_are_refused_at_their_own_place(talk_to):
    reference, picture = {"type": "item_reference", "id": "mine"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    session = talk_to(capabilities=TEXT)
    message = wrote("") | {"content": [reference]}
    session >> event("response.create", response={"input": [message]}) << error("item_not_found", param="response.input[0].content[0].id")
    session >> event("conversation.item.create", item=wrote("a", id="mine"))
    message = wrote("") | {"content": [reference, *wrote("b")["content"], picture]}
    session.skip() >> event("response.create", response={"input": [message]})
    session << error("unsupported_parameter", param="response.input[0].content[2].image_url")


def test_a_reference_to_no_item_is_refused(talk_to):
    asks = {"input": [{"type": "item_reference", "id": "nothing"}]}
    session = talk_to() >> event("response.create", response=asks) << error("item_not_found", param="response.input[0].id")
    session >> event("response.create") << "response.created" << responds()


def test_an_answer_reads_no_result_of_a_call_that_never_was(talk_to):
    call = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "4"}
    session = talk_to() >> event("response.create", response={"input": [result]}, event_id="mine")
    session << error("invalid_tool_call_id", "mine", param="response.input[0].call_id")
    read = (engine_history.ToolCall("call_1", "add", "{}"), engine_history.ToolResult("call_1", (engine_history.TextPart("4"),)))
    session >> event("response.create", response={"input": [call, result]}) << "response.created" << responds(history=read)
    session >> events.ResponseEnded("resp_1")
    session.skip() >> event("conversation.item.create", item=call) << "conversation.item.added conversation.item.done"
    session >> event("response.create", response={"input": [result]}) << "response.created" << responds("resp_2")


def test_what_is_asked_of_one_answer_holds_for_it_alone(talk_to):
    session = talk_to().update(instructions="Be kind.", max_output_tokens=100)
    session >> event("response.create", response={"instructions": "Be brief.", "max_output_tokens": 7, "output_modalities": ["text"]})
    session << event("response.created", response={"max_output_tokens": 7, "output_modalities": ["text"]})
    session << responds(instructions="Be brief.", sampling=Sampling(max_tokens=7), voice=None) >> events.ResponseEnded("resp_1")
    (
        session.skip()
        >> event("response.create")
        << event("response.created", response={"max_output_tokens": 100, "output_modalities": ["audio"]})
    )
    session << responds("resp_2", instructions="Be kind.", sampling=Sampling(max_tokens=100), voice=Voice("alloy", 24_000, 1.0))


def test_a_response_says_all_that_it_is_from_the_beginning(talk_to):
    session = talk_to() >> event("response.create", response={"metadata": {"client_event_id": "7"}})
    output = {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "alloy"}
    told = {"conversation_id": "conv_1", "output_modalities": ["audio"], "max_output_tokens": "inf", "audio": {"output": output}}
    told |= {"metadata": {"client_event_id": "7"}, "status_details": None}
    session << event("response.created", response=told) << responds() >> events.ResponseEnded("resp_1")
    session << event("response.done", response=told) << "rate_limits.updated"


def test_the_beta_is_told_what_an_answer_is_sampled_with(talk_to):
    session = talk_to(dialect="beta") >> event("response.create", response={"temperature": 1.1})
    session << event("response.created", response={"temperature": 1.1}) << responds() << "rate_limits.updated"
    session >> events.ResponseEnded("resp_1") << event("response.done", response={"temperature": 1.1})
    session >> event("response.create") << event("response.created", response={"temperature": 0.8})
    session.skip()
    talk_to() >> event("response.create") << event("response.created", response={"temperature": MISSING}) << responds()


# How answers end


def test_an_answer_for_which_no_tokens_are_left_fails_before_the_engine_hears_of_it(talk_to):
    spent = (RateLimit(name="tokens", limit=100, remaining=0, reset_seconds=6.0),)
    session = talk_to(rate_limits=lambda: spent) >> event("response.create") << "response.created"
    details = {"type": "failed", "error": {"type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    session << event("response.done", response={"status": "failed", "status_details": details})
    session << event("rate_limits.updated", rate_limits=[{"name": "tokens", "remaining": 0}])
    session >> event("response.create") << "response.created response.done rate_limits.updated"


def test_what_is_left_is_told_without_what_the_answer_took(talk_to):
    # The tokens of an answer are counted where it is told, and that is after the session has said what is left.
    left = (*LIMITS, RateLimit(name="tokens", limit=60, remaining=50, reset_seconds=10.0))
    session = talk_to(capabilities=TEXT, rate_limits=lambda: left) >> event("response.create") << "response.created" << responds()
    session >> (events.Usage(id="resp_1", input_tokens=20, output_tokens=10), events.ResponseEnded("resp_1")) << "response.done"
    session << event("rate_limits.updated", rate_limits=[{"remaining": 9, "reset_seconds": 6.0}, {"remaining": 20, "reset_seconds": 40.0}])
    session >> event("response.create") << "response.created" << responds("resp_2")
    session >> (events.Usage(id="resp_2", input_tokens=40, output_tokens=40), events.ResponseEnded("resp_2"))
    session << "response.done" << event("rate_limits.updated", rate_limits=[{}, {"remaining": 0, "reset_seconds": 90.0}])


def test_who_has_used_too_much_is_told_when_there_is_something_again(talk_to):
    # Ten tokens are owed, of 60 a minute: one is there again in eleven seconds, all of them in seventy.
    owed = (RateLimit(name="tokens", limit=60, remaining=0, reset_seconds=70.0),)
    session = talk_to(rate_limits=lambda: owed) >> event("response.create") << "response.created"
    message = "Rate limit reached: your limit is 60 tokens per minute. Please try again in 11.000s."
    session << event("response.done", response={"status_details": {"error": {"message": message}}}) << "rate_limits.updated"


@pytest.mark.parametrize(("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_cut_short_says_why(talk_to, reason, told):
    session = asked(talk_to, capabilities=TEXT) >> (events.TextDelta("resp_1", "On"), events.ResponseEnded("resp_1", reason)) << OPENED
    session << "response.output_text.delta response.output_text.done response.content_part.done"
    session << event("conversation.item.done", item={"status": "incomplete"}) << "response.output_item.done"
    details = {"type": "incomplete", "reason": told}
    session << event("response.done", response={"status": "incomplete", "status_details": details}) << "rate_limits.updated"


def test_an_engine_that_breaks_in_the_middle_of_sound_fails_the_answer_alone(talk_to):
    session = asked(talk_to) >> (
        events.AudioDelta("resp_1", silence(20)),
        events.ResponseFailed(id="resp_1", message="gone", code="server_is_overloaded"),
    )
    session << OPENED << "response.output_audio.delta response.output_audio.done response.output_audio_transcript.done"
    session << "response.content_part.done" << event("conversation.item.done", item={"status": "incomplete"}) << "response.output_item.done"
    details = {"type": "failed", "error": {"type": "server_error", "code": "server_is_overloaded", "message": "gone"}}
    session << event("response.done", response={"status": "failed", "status_details": details}) << "rate_limits.updated"
    session >> event("response.create") << "response.created" << responds("resp_2")


def test_trouble_that_is_no_answers_is_an_error_and_the_session_goes_on(talk_to):
    session = asked(talk_to) >> events.EngineError(message="The ears are full.", code="server_is_overloaded")
    session << error("server_is_overloaded", type="server_error", message="The ears are full.") >> events.ResponseEnded("resp_1")
    session << "response.done rate_limits.updated"


def test_an_answer_too_long_to_be_told_ends_at_its_limit(talk_to):
    session = asked(talk_to, capabilities=TEXT) >> events.TextDelta("resp_1", "é" * 200_000)
    session.skip() >> events.TextDelta("resp_1", "x" * 2_000_000)
    came = session.pending
    assert came.pop(0) == commands.Cancel("resp_1")
    assert came[-2]["response"]["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    session.skip() >> events.ResponseEnded("resp_1", "cancelled")


def test_a_call_too_long_to_be_told_ends_at_its_limit(talk_to):
    session = asked(talk_to, capabilities=TEXT) >> (
        events.ToolCallStarted("resp_1", "c", "f"),
        events.ToolArgumentsDelta("resp_1", "c", "x" * 2_000_000),
    )
    assert [each["type"] for each in session.events()][-2:] == ["response.done", "rate_limits.updated"]


def test_tokens_are_told_by_kind(talk_to):
    used = events.Usage(
        id="resp_1", input_tokens=50, output_tokens=20, cached_tokens=12, input_audio_tokens=30, input_image_tokens=5,
        output_audio_tokens=15, cached_audio_tokens=4,
    )  # fmt: skip
    session = asked(talk_to) >> (used, events.ResponseEnded("resp_1"))
    cached = {"text_tokens": 8, "audio_tokens": 4, "image_tokens": 0}
    read = {"text_tokens": 15, "audio_tokens": 30, "image_tokens": 5, "cached_tokens": 12, "cached_tokens_details": cached}
    usage = {"total_tokens": 70, "input_token_details": read, "output_token_details": {"text_tokens": 5, "audio_tokens": 15}}
    session << event("response.done", response={"usage": usage}) << "rate_limits.updated"


def test_a_server_that_stops_closes_what_is_open(talk_to):
    session = asked(talk_to) >> events.AudioTranscriptDelta("resp_1", "Hi")
    session.skip() >> Shutdown(ServerError("The server stops.", code="server_shutting_down"), session.at) << commands.Cancel("resp_1")
    session << "response.output_audio.done response.output_audio_transcript.done response.content_part.done conversation.item.done"
    session << "response.output_item.done" << event("response.done", response={"status": "failed"}) << Closes("server_shutting_down")


def test_a_client_that_is_gone_is_told_nothing_and_its_answers_are_cancelled(talk_to):
    session = asked(talk_to) >> Hangup(1.0) << commands.Cancel("resp_1") << Closes() >> events.ResponseEnded("resp_1") >> sound(b"")
    assert session.session.end_reason == "client_left"


# What answers cost

SAYS = f"{OPENED} response.output_text.delta"
CLOSES = f"response.output_text.done {DONE.removesuffix(' rate_limits.updated')}"


def said(talk_to, **fields):
    """An answer under way: 8 bytes were asked, and 40 said."""
    session = talk_to(capabilities=TEXT, **fields) >> event("response.create", response=WRITTEN | {"instructions": "Be brief"})
    return session << "response.created" << responds() >> events.TextDelta("resp_1", "x" * 40) << SAYS


def test_the_tokens_of_an_answer_are_spent_as_it_ends(talk_to):
    session = said(talk_to) >> (events.Usage(id="resp_1", input_tokens=20, output_tokens=10), events.ResponseEnded("resp_1"))
    session << CLOSES << "rate_limits.updated"
    assert session.spent == [30]


def test_an_answer_that_is_cancelled_is_spent_though_no_usage_is_told(talk_to):
    left = (RateLimit(name="tokens", limit=60, remaining=50, reset_seconds=10.0),)
    session = said(talk_to, rate_limits=lambda: left) >> event("response.cancel") << commands.Cancel("resp_1")
    session << CLOSES.removesuffix("response.done") << event("response.done", response={"status": "cancelled", "usage": None})
    session << event("rate_limits.updated", rate_limits=[{"remaining": 50 - 12}])
    assert session.spent == [12]


def test_an_answer_under_way_when_its_client_leaves_is_spent(talk_to):
    session = said(talk_to) >> Hangup(1_001.0) << commands.Cancel("resp_1") << Closes()
    assert session.spent == [12]


def test_an_answer_under_way_when_the_server_stops_is_spent(talk_to):
    fault = ServerError("The server stops.", code="server_shutting_down")
    session = said(talk_to) >> Shutdown(fault, 1_001.0) << commands.Cancel("resp_1") << CLOSES << Closes(fault.code)
    assert session.spent == [12]


def test_an_answer_that_nothing_came_of_is_not_spent(talk_to):
    session = asked(talk_to, capabilities=TEXT, **WRITTEN) >> events.ResponseFailed(id="resp_1", message="boom")
    session << "response.done rate_limits.updated"
    assert session.spent == []
