"""The chat session: one dialogue per rule of the stream, and laws over whatever an engine may say."""

import base64

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events
from antiphon.errors import ServerError
from antiphon.protocols.chat.choice import MAX_AUDIO_BYTES
from antiphon.protocols.session import FromClient, Hangup, ReportRetry, Shutdown, Tick
from support.protocols.chat_dialogues import ALL, ChatDialogue, put_together
from support.protocols.words import ID, any_sound, any_word, ending

USED = events.Usage(id=ID, input_tokens=3, output_tokens=2, cached_tokens=1, reasoning_tokens=1)
DONE = events.ResponseEnded(ID)
ROLE = {"role": "assistant", "content": "", "refusal": None}


def text(words, id=ID):
    return events.TextDelta(id, words)


def call(call_id, name="f", custom=False, namespace=None):
    return events.ToolCallStarted(ID, call_id, name, custom, namespace)


# Streams


def test_a_stream_begins_with_the_role_and_ends_with_the_reason():
    dialogue = ChatDialogue(stream=True).hears(text("Hel"), text("lo"), DONE)
    assert [chunk["choices"][0]["delta"] for chunk in dialogue.chunks] == [ROLE, {"content": "Hel"}, {"content": "lo"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in dialogue.chunks] == [None, None, None, "stop"]
    assert {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in dialogue.chunks} == {
        ("chatcmpl-1", "chat.completion.chunk", 1000, "m")
    }
    assert dialogue.close.error is None


def test_the_role_is_sent_before_the_engine_says_anything():
    assert ChatDialogue(stream=True).deltas() == [ROLE]


def test_usage_is_never_sent_unasked():
    assert all("usage" not in chunk for chunk in ChatDialogue(stream=True).hears(text("a"), USED, DONE).chunks)


def test_the_usage_comes_last_without_choices_and_is_null_before():
    *chunks, last = ChatDialogue(stream=True, stream_options={"include_usage": True}).hears(text("a"), USED, DONE).chunks
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"], last["usage"]["total_tokens"]) == (3, 2, 5)
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1


def test_calls_are_numbered_and_only_their_first_chunk_has_a_name():
    dialogue = ChatDialogue(stream=True).hears(
        text("Well."),
        call("c1"),
        call("c2", "g"),
        events.ToolArgumentsDelta(ID, "c2", "{}"),
        events.ToolArgumentsDelta(ID, "c1", '{"a":'),
        events.ToolArgumentsDelta(ID, "c1", "1}"),
        DONE,
    )
    assert [delta["tool_calls"][0] for delta in dialogue.deltas() if "tool_calls" in delta] == [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert dialogue.chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_custom_tool_is_called_with_text():
    dialogue = ChatDialogue(stream=True).hears(call("c1", custom=True), events.ToolArgumentsDelta(ID, "c1", "free"), DONE)
    assert [delta["tool_calls"][0] for delta in dialogue.deltas() if "tool_calls" in delta] == [
        {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "f", "input": ""}},
        {"index": 0, "custom": {"input": "free"}},
    ]


def test_reasoning_has_a_field_of_its_own_and_its_parts_are_apart():
    dialogue = ChatDialogue(stream=True).hears(
        events.ReasoningDelta(ID, "Let "),
        events.ReasoningDelta(ID, "me."),
        events.ReasoningDelta(ID, "Done.", summary=True),
        text("So."),
        DONE,
    )
    assert dialogue.deltas()[1:-1] == [
        {"reasoning_content": "Let "},
        {"reasoning_content": "me."},
        {"reasoning_content": "\n\nDone."},
        {"content": "So."},
    ]


def test_a_refusal_is_streamed_as_one_and_ends_with_stop():
    dialogue = ChatDialogue(stream=True).hears(events.RefusalDelta(ID, "No."), DONE)
    assert dialogue.deltas()[1:] == [{"refusal": "No."}, {}]
    assert dialogue.chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_log_probabilities_stand_beside_their_own_tokens():
    token = events.TokenLogprob(events.TokenCandidate("Hi", -0.5, (72, 105)), (events.TokenCandidate("Ho", -1.5, (72, 111)),))
    dialogue = ChatDialogue(stream=True, logprobs=True, top_logprobs=1).hears(events.TextDelta(ID, "Hi", (token,)), DONE)
    assert dialogue.chunks[1]["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "Hi",
                "logprob": -0.5,
                "bytes": [72, 105],
                "top_logprobs": [{"token": "Ho", "logprob": -1.5, "bytes": [72, 111]}],
            }
        ],
        "refusal": None,
    }
    assert dialogue.chunks[2]["choices"][0]["logprobs"] is None


def test_only_citations_of_pages_are_annotations_here():
    page = {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t", "url": "u"}
    dialogue = ChatDialogue(stream=True).hears(
        text("a"), events.AnnotationAdded(ID, page), events.AnnotationAdded(ID, {"type": "file_path", "file_id": "f", "index": 0}), DONE
    )
    nested = {"type": "url_citation", "url_citation": {key: page[key] for key in ("start_index", "end_index", "title", "url")}}
    assert dialogue.deltas()[2:-1] == [{"annotations": [nested]}]


def test_audio_is_streamed_with_its_words_and_content_stays_empty():
    dialogue = ChatDialogue(stream=True, modalities=["text", "audio"], audio={"voice": "v", "format": "pcm16"}).hears(
        events.AudioTranscriptDelta(ID, "Hi"), events.AudioDelta(ID, b"\1\0"), DONE
    )
    assert dialogue.deltas()[1:] == [
        {"audio": {"id": "audio_1", "transcript": "Hi"}},
        {"audio": {"data": base64.b64encode(b"\1\0").decode()}},
        {"audio": {"expires_at": 1000}},
    ]


def test_the_items_of_hosted_tools_have_no_chunks():
    item = {"type": "web_search_call", "id": "ws_1"}
    dialogue = ChatDialogue(stream=True).hears(events.HostedToolStarted(ID, item), events.HostedToolDone(ID, item), text("a"), DONE)
    assert dialogue.deltas()[1:] == [{"content": "a"}, {}]


def test_an_error_is_told_without_a_reason_to_finish():
    dialogue = ChatDialogue(stream=True).hears(text("a"), events.ResponseFailed(id=ID, message="Oh.", code="c", param="input"))
    assert dialogue.chunks[-1] == {"error": {"message": "Oh.", "type": "server_error", "param": "messages", "code": "c"}}
    assert all(each["finish_reason"] is None for chunk in dialogue.chunks[:-1] for each in chunk["choices"])
    assert dialogue.close.error.message == "Oh."


def test_a_model_that_stops_by_itself_has_failed():
    dialogue = ChatDialogue(stream=True).hears(text("a"), events.ResponseEnded(ID, "cancelled"))
    assert dialogue.close.error is not None


# Whole


def test_a_whole_answer():
    completion = ChatDialogue().hears(text("Hel"), text("lo"), USED, DONE).completion
    assert completion["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert (completion["id"], completion["object"], completion["created"], completion["model"]) == (
        "chatcmpl-1",
        "chat.completion",
        1000,
        "m",
    )


def test_content_is_null_where_there_are_only_calls():
    message = (
        ChatDialogue()
        .hears(call("c1", namespace="ns"), events.ToolArgumentsDelta(ID, "c1", "{}"), DONE)
        .completion["choices"][0]["message"]
    )
    assert message["content"] is None
    assert message["tool_calls"] == [{"type": "function", "id": "c1", "function": {"name": "ns__f", "arguments": "{}"}}]


def test_an_answer_without_anything_is_an_empty_text():
    assert ChatDialogue().hears(DONE).completion["choices"][0]["message"]["content"] == ""


def test_usage_is_null_where_the_engine_reports_none():
    assert ChatDialogue().hears(text("a"), DONE).completion["usage"] is None


@pytest.mark.parametrize(("ended", "reason"), [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter")])
def test_every_end_has_its_reason(ended, reason):
    assert ChatDialogue().hears(text("a"), events.ResponseEnded(ID, ended)).completion["choices"][0]["finish_reason"] == reason


def test_a_call_that_is_cut_off_stays_and_the_reason_is_the_length():
    choice = (
        ChatDialogue()
        .hears(call("c1"), events.ToolArgumentsDelta(ID, "c1", '{"a'), events.ResponseEnded(ID, "length"))
        .completion["choices"][0]
    )
    assert (choice["finish_reason"], choice["message"]["tool_calls"][0]["function"]["arguments"]) == ("length", '{"a')


def test_functions_are_answered_in_their_own_form_with_one_call():
    functions = [{"name": "f", "parameters": {"type": "object"}}]
    words = (call("c1"), events.ToolArgumentsDelta(ID, "c1", "{}"), events.ToolCallDone(ID, "c1"), call("c2"), DONE)
    choice = ChatDialogue(functions=functions).hears(*words).completion["choices"][0]
    assert (choice["finish_reason"], choice["message"]["function_call"]) == ("function_call", {"name": "f", "arguments": "{}"})
    assert "tool_calls" not in choice["message"]
    streamed = ChatDialogue(functions=functions, stream=True).hears(*words)
    assert [delta["function_call"] for delta in streamed.deltas() if "function_call" in delta] == [
        {"name": "f", "arguments": ""},
        {"arguments": "{}"},
    ]


def test_a_whole_spoken_answer_has_its_samples_and_its_words():
    dialogue = ChatDialogue(modalities=["text", "audio"], audio={"voice": "v", "format": "wav"}).hears(
        events.AudioTranscriptDelta(ID, "Hi"), events.AudioDelta(ID, b"\1\0"), events.AudioDelta(ID, b"\2\0"), DONE
    )
    message = dialogue.completion["choices"][0]["message"]
    assert message["content"] is None
    assert message["audio"] == {"id": "audio_1", "data": base64.b64encode(b"\1\0\2\0").decode(), "expires_at": 1000, "transcript": "Hi"}


def test_a_spoken_answer_that_is_kept_until_its_end_has_a_limit():
    dialogue = ChatDialogue(modalities=["text", "audio"], audio={"voice": "v", "format": "wav"})
    dialogue.hears(*[events.AudioDelta(ID, bytes(1 << 20))] * (MAX_AUDIO_BYTES >> 20))
    assert dialogue.close is None
    dialogue.hears(events.AudioDelta(ID, bytes(2)))
    assert commands.Cancel(ID) in dialogue.commands
    assert dialogue.completion["choices"][0]["finish_reason"] == "length"


def test_the_tier_is_told_to_those_who_ask():
    assert ChatDialogue(service_tier="flex").hears(DONE).completion["service_tier"] == "default"
    assert "service_tier" not in ChatDialogue().hears(DONE).completion


# Several choices


def test_each_choice_is_a_response_of_its_own_and_the_prompt_counts_once():
    dialogue = ChatDialogue(n=2, seed=5)
    first, second = dialogue.commands
    assert [each.sampling.extra["seed"] for each in (first, second)] == [5, 6]
    assert (first.out_of_band, second.out_of_band, first.history) == (False, True, second.history)
    dialogue.hears(text("b", second.id), events.Usage(id=second.id, input_tokens=3, output_tokens=1), events.ResponseEnded(second.id))
    assert dialogue.close is None
    dialogue.hears(text("a"), USED, DONE)
    assert [choice["message"]["content"] for choice in dialogue.completion["choices"]] == ["a", "b"]
    usage = dialogue.completion["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 3, 6)
    assert dialogue.session.tokens == 6


def test_each_choice_has_a_role_and_an_end_in_the_stream():
    dialogue = ChatDialogue(n=2, stream=True)
    second = dialogue.commands[1].id
    dialogue.hears(text("b", second), text("a"), DONE, text("c", second), events.ResponseEnded(second))
    assert dialogue.deltas(0) == [ROLE, {"content": "a"}, {}]
    assert dialogue.deltas(1) == [ROLE, {"content": "b"}, {"content": "c"}, {}]


def test_one_that_fails_fails_all_and_stops_the_others():
    dialogue = ChatDialogue(n=2, stream=True)
    second = dialogue.commands[1].id
    dialogue.hears(text("a"), events.ResponseFailed(id=second, message="Oh."), text("b"))
    assert commands.Cancel(ID) in dialogue.commands and commands.Cancel(second) not in dialogue.commands
    assert dialogue.chunks[-1]["error"]["message"] == "Oh."
    assert dialogue.close.error is not None


# What else happens


def test_a_client_that_leaves_stops_the_engine_and_what_was_said_counts():
    dialogue = ChatDialogue(stream=True).hears(text("word " * 40)).does(Hangup(1002.0))
    assert dialogue.commands[-1] == commands.Cancel(ID)
    assert dialogue.close.error is None
    assert dialogue.session.outcome == "cancelled"
    assert dialogue.session.tokens >= 50
    assert dialogue.does(Hangup(1003.0)).hears(DONE).close is not None


def test_a_server_that_stops_says_so():
    dialogue = ChatDialogue(stream=True).hears(text("a")).does(Shutdown(ServerError("Bye.", code="bye"), 1002.0))
    assert dialogue.chunks[-1]["error"]["code"] == "bye"
    assert dialogue.commands[-1] == commands.Cancel(ID)


def test_retries_are_reported_and_other_news_of_the_engine_is_not():
    dialogue = ChatDialogue(stream=True).hears(
        events.RetryScheduled(ID), events.QueueUpdate(id="t", position=1, queue_length=1, wait_s=1.0)
    )
    assert [effect for effect in dialogue.effects if isinstance(effect, ReportRetry)] == [ReportRetry()]
    assert dialogue.deltas() == [ROLE]


@pytest.mark.parametrize(
    ("message", "window", "wanted"),
    [
        ("Too long.", 4096, "Too long. This model's maximum context length is 4096 tokens. (context_length_exceeded)"),
        ("Too long.", None, "Too long. This model's maximum context length is exceeded. (context_length_exceeded)"),
        (
            "This model's maximum context length is 9 tokens.",
            9,
            "This model's maximum context length is 9 tokens. (context_length_exceeded)",
        ),
    ],
)
def test_a_window_that_is_too_small_has_both_texts_that_clients_look_for(message, window, wanted):
    failure = events.ResponseFailed(id=ID, message=message, code="context_length_exceeded", status=400, param="input")
    dialogue = ChatDialogue(capabilities=ALL.__class__(context_window=window)).hears(failure)
    error = dialogue.close.error
    assert (error.message, error.status, error.code, error.param) == (wanted, 400, "context_length_exceeded", "messages")


# Laws


@given(words=st.lists(any_word, max_size=12), last=ending)
def test_whatever_an_engine_says_a_stream_can_be_put_together_and_is_the_whole_answer(words, last):
    streamed, whole = ChatDialogue(stream=True).hears(*words, last), ChatDialogue().hears(*words, last)
    assert streamed.close is not None and whole.close is not None
    assert (streamed.close.error is None) == (whole.close.error is None)
    chunks = [chunk for chunk in streamed.chunks if "error" not in chunk]
    choices = put_together(chunks)
    if whole.close.error is not None:
        assert choices[0]["finish_reason"] is None
        return
    (choice,) = whole.completion["choices"]
    message = choice["message"]
    assert choices[0]["finish_reason"] == choice["finish_reason"]
    assert choices[0].get("content", "") == (message["content"] or "")
    assert choices[0].get("refusal") == message["refusal"]
    assert choices[0].get("reasoning_content") == message.get("reasoning_content")
    calls = [(each["id"], each["name"], each["text"]) for each in choices[0]["calls"]]
    assert calls == [(each["id"], *(each.get("custom") or each["function"]).values()) for each in message.get("tool_calls", ())]


happenings = st.one_of(
    any_word.map(lambda word: word),
    any_sound,
    ending,
    st.sampled_from([Hangup(1.0), Shutdown(ServerError("Bye."), 1.0), Tick(1.0), FromClient(None, 1.0)]),
)


@given(stream=st.booleans(), spoken=st.booleans(), happenings=st.lists(happenings, max_size=12))
def test_whatever_happens_the_session_closes_once_and_then_is_silent(stream, spoken, happenings):
    sound = {"modalities": ["text", "audio"], "audio": {"voice": "v", "format": "pcm16"}} if spoken else {}
    dialogue = ChatDialogue(stream=stream, **sound)
    for each in happenings:
        was_over, before = dialogue.session.is_over, len(dialogue.effects)
        if isinstance(each, Hangup | Shutdown | Tick | FromClient):
            dialogue.does(each)
        else:
            dialogue.hears(each)
        assert not was_over or len(dialogue.effects) == before
    assert (dialogue.close is not None) == dialogue.session.is_over
    if stream:
        put_together([chunk for chunk in dialogue.chunks if "error" not in chunk])
