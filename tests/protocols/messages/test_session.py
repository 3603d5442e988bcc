"""The Messages session: the blocks of a message for any engine events."""

import itertools
import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ServerError
from antiphon.protocols.messages.request import ResolvedMessagesRequest, messages_engine_request
from antiphon.protocols.messages.session import MessagesSession
from antiphon.protocols.session import Close, FromClient, FromEngine, Hangup, ReportRetry, Send, SendToEngine, Shutdown
from antiphon.wire.codec.types import encode
from antiphon.wire.messages.events import MessageEncoder
from antiphon.wire.messages.request import decode_messages_request
from support.protocols.message_laws import read_stream
from support.protocols.words import ID, any_sound, any_word, ending

ALL = Capabilities(tools=True, efforts=("low", "high"), encrypts_reasoning=True, context_window=1000)
THINKING = {"thinking": {"type": "adaptive"}}


class Played:
    """A session that has heard these words of its engine."""

    def __init__(self, *words, stream=True, sign=lambda content: f"signed {len(content)}", together=True, **fields):
        body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}], "stream": stream, **fields}
        resolved = ResolvedMessagesRequest(
            id=ID, model="m", request=decode_messages_request(json.dumps(body).encode()), capabilities=ALL, unsign=lambda _: None
        )
        numbers = itertools.count()
        respond = messages_engine_request(resolved).respond
        self.session = MessagesSession(resolved, respond, lambda prefix: f"{prefix}_{next(numbers)}", 25, sign)
        self.effects = self.session.handle(FromClient(resolved, 0.0))
        for batch in [words] if together else [(word,) for word in words]:
            self.effects += self.session.handle(FromEngine(batch, 1.0))

    @property
    def sent(self):
        return [json.loads(encode(effect.event)) for effect in self.effects if isinstance(effect, Send)]

    @property
    def kinds(self):
        return [event["type"] for event in self.sent]

    @property
    def deltas(self):
        return [event["delta"] for event in self.sent if event["type"] == "content_block_delta"]

    @property
    def message(self):
        return read_stream(self.sent)[0]


def thinking(text, **more):
    return events.ReasoningDelta(ID, text, **more)


def text(text):
    return events.TextDelta(ID, text)


def call(number, arguments="{}", name="f"):
    return (
        events.ToolCallStarted(ID, f"call_{number}", name),
        *(events.ToolArgumentsDelta(ID, f"call_{number}", piece) for piece in arguments),
        events.ToolCallDone(ID, f"call_{number}"),
    )


END = events.ResponseEnded(ID)
FULL = events.Usage(id=ID, input_tokens=990, output_tokens=10)


def test_a_text_is_a_block_of_its_own():
    played = Played(text("Hi"), text(" you"), events.Usage(id=ID, input_tokens=3, output_tokens=2), END)
    assert played.kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert played.message["content"] == [{"type": "text", "text": "Hi you"}]
    assert played.message["stop_reason"] == "end_turn" and played.sent[0]["message"]["usage"]["input_tokens"] == 25
    assert isinstance(played.effects[0], SendToEngine) and played.effects[-1] == Close()


def test_every_event_is_named_on_a_line_of_its_own():
    buffer = bytearray()
    MessageEncoder().encode_sse_into([effect.event for effect in Played(text("Hi\n"), END).effects if isinstance(effect, Send)], buffer)
    records = bytes(buffer).decode().removesuffix("\n\n").split("\n\n")
    for record in records:
        name, data = record.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert not MessageEncoder.stream_end


def test_reasoning_is_a_block_with_one_signature_just_before_its_end():
    played = Played(thinking("I "), thinking("think"), text("So."), END, **THINKING)
    assert [delta["type"] for delta in played.deltas] == ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]
    assert [block["type"] for block in played.message["content"]] == ["thinking", "text"]
    assert played.message["content"][0]["thinking"] == "I think"


def test_reasoning_that_nobody_asked_for_is_left_out():
    assert Played(thinking("Hm."), text("So."), END).message["content"] == [{"type": "text", "text": "So."}]
    disabled = {"thinking": {"type": "disabled"}}
    assert Played(thinking("Hm."), text("So."), END, **disabled).message["content"] == [{"type": "text", "text": "So."}]


def test_reasoning_that_is_not_to_be_shown_is_in_its_signature_only():
    contents = []
    omitted = {"thinking": {"type": "adaptive", "display": "omitted"}}
    played = Played(thinking("secret"), END, sign=lambda content: contents.append(content) or "s", **omitted)
    assert played.message["content"] == [{"type": "thinking", "thinking": "", "signature": "s"}]
    assert json.loads(contents[0]) == {"text": "secret"}
    shown = Played(thinking("open"), END, sign=lambda content: contents.append(content) or "s", **THINKING)
    assert shown.message["content"][0]["thinking"] == "open" and json.loads(contents[1]) == {}


def test_reasoning_that_only_its_engine_can_read_is_a_redacted_block():
    played = Played(events.EncryptedReasoning(ID, "xyz"), text("So."), END, **THINKING)
    assert [block["type"] for block in played.message["content"]] == ["redacted_thinking", "text"]


def test_reasoning_too_long_to_be_signed_still_has_a_signature():
    assert Played(thinking("long"), END, sign=lambda _content: None, **THINKING).message["content"][0]["signature"]


def test_a_summary_of_several_parts_is_one_block_and_one_of_the_same_reasoning_is_not_told_twice():
    parts = (thinking("one", summary=True), events.ReasoningBoundary(ID), thinking("two", summary=True))
    assert Played(*parts, END, **THINKING).message["content"][0]["thinking"] == "one\n\ntwo"
    assert Played(thinking("raw"), *parts, END, **THINKING).message["content"][0]["thinking"] == "raw"


def test_calls_come_one_after_the_other_also_where_the_engine_mixes_them():
    started = (events.ToolCallStarted(ID, "a", "f"), events.ToolCallStarted(ID, "b", "g"))
    pieces = [
        events.ToolArgumentsDelta(ID, call_id, piece)
        for pair in zip(('{"x"', ":1}"), ('{"y"', ":2}"), strict=True)
        for call_id, piece in zip("ab", pair, strict=True)
    ]
    played = Played(*started, *pieces, events.ToolCallDone(ID, "b"), events.ToolCallDone(ID, "a"), END)
    assert played.message["content"] == [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "g", "input": {"y": 2}},
    ]
    assert played.message["stop_reason"] == "tool_use"


def test_the_first_piece_after_another_block_is_not_lost():
    played = Played(thinking("Hm."), text("I call."), *call(1, '{"city":"Paris"}'), END, **THINKING)
    assert played.message["content"][2]["input"] == {"city": "Paris"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        ("  ", {}),
        ("{}", {}),
        ('  {"a": 1.0}', {"a": 1.0}),
        ('"a \\"b\\""', {"_raw": '"a \\"b\\""'}),
        ("[1]", {"_raw": "[1]"}),
        ("ls -l\n", {"_raw": "ls -l\n"}),
        ('{"a": ', {"_raw": '{"a": '}),
    ],
)
def test_arguments_that_are_no_object_become_a_field_and_never_an_empty_input(arguments, expected):
    assert Played(*call(1, arguments), END).message["content"][0]["input"] == expected
    assert Played(*call(1, arguments), END, stream=False).sent[0]["content"][0]["input"] == expected


def test_arguments_that_are_nested_too_deeply_stay_text():
    arguments = '{"a":' * 10_000 + "1" + "}" * 10_000
    assert Played(*call(1, arguments), END, stream=False).sent[0]["content"][0]["input"] == {"_raw": arguments}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((text("Hi"), END), "end_turn"),
        ((), "end_turn"),
        ((*call(1), END), "tool_use"),
        ((text("Hi"), events.ResponseEnded(ID, "length")), "max_tokens"),
        ((*call(1), events.ResponseEnded(ID, "length")), "max_tokens"),
        ((FULL, events.ResponseEnded(ID, "length")), "model_context_window_exceeded"),
        ((text("Hi"), events.ResponseEnded(ID, "content_filter")), "refusal"),
        ((events.RefusalDelta(ID, "No."), END), "refusal"),
        ((text("Hi"), events.ResponseEnded(ID, "stop", "END")), "stop_sequence"),
        ((*call(1), events.ResponseEnded(ID, "stop", "END")), "tool_use"),
    ],
)  # fmt: skip
def test_the_reason_why_it_ends(words, reason):
    for stream in (True, False):
        played = Played(*(words or (END,)), stream=stream)
        message = played.message if stream else played.sent[0]
        assert message["stop_reason"] == reason
        assert message["stop_sequence"] == ("END" if reason == "stop_sequence" else None)


def test_tokens_that_were_cached_are_not_counted_twice():
    usage = events.Usage(id=ID, input_tokens=100, output_tokens=7, cached_tokens=60, cache_write_tokens=30, reasoning_tokens=5)
    assert Played(usage, END).message["usage"] == {
        "input_tokens": 10,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 30,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 5},
    }


def test_what_the_engine_does_not_count_is_estimated():
    usage = Played(text("eight by"), END).message["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (25, 2)


def test_a_failure_ends_the_stream_with_its_error_and_no_reason():
    played = Played(text("So"), events.ResponseFailed(id=ID, message="busy", status=503), END)
    assert played.kinds[-2:] == ["content_block_stop", "error"]
    assert played.sent[-1]["error"] == {"type": "overloaded_error", "message": "busy"}
    assert played.effects[-1].error.status == 503
    assert Played(text("So"), events.ResponseFailed(id=ID, message="busy"), stream=False).sent == []


def test_an_engine_that_stops_by_itself_has_failed():
    assert Played(events.ResponseEnded(ID, "cancelled")).sent[-1]["type"] == "error"


def test_a_client_that_leaves_stops_the_engine():
    played = Played(text("So"))
    assert played.session.handle(Hangup(2.0)) == [SendToEngine(commands.Cancel(ID)), Close()]
    assert played.session.handle(FromEngine([text("on"), END], 3.0)) == []


def test_a_server_that_stops_says_so():
    played = Played(text("So"))
    effects = played.session.handle(Shutdown(ServerError("stopping", status=503), 2.0))
    assert effects[0] == SendToEngine(commands.Cancel(ID)) and effects[1].event.error.type == "overloaded_error"
    assert effects[-1].error.message == "stopping" and played.session.handle(Hangup(3.0)) == []


def test_a_retry_is_reported():
    assert ReportRetry() in Played(events.RetryScheduled(ID), END).effects


def test_tokens_for_the_limits_are_those_that_the_engine_counts():
    assert Played(events.Usage(id=ID, input_tokens=3, output_tokens=2), END).session.tokens == 5


@given(
    words=st.lists(st.one_of(any_word, any_sound), max_size=24), end=ending, fields=st.sampled_from([{}, THINKING]), together=st.booleans()
)
def test_whatever_an_engine_says_the_stream_keeps_its_laws_and_equals_the_whole_message(words, end, fields, together):
    streamed = Played(*words, end, together=together, **fields)
    whole = Played(*words, end, stream=False, together=together, **fields)
    message, error = read_stream(streamed.sent)
    closings = [effect for effect in streamed.effects if isinstance(effect, Close)]
    assert len(closings) == 1 and streamed.effects[-1] is closings[0]
    if error is not None:
        assert whole.sent == [] and closings[0].error is not None
        return
    assert whole.sent == [message]
    if not fields:
        assert {block["type"] for block in message["content"]} <= {"text", "tool_use"}
