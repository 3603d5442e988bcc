"""Frames of the link between a server and its workers: they survive a round trip, and invalid ones are reported."""

import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import (
    ConversationSettings,
    CustomTool,
    FunctionTool,
    HostedTool,
    JsonSchema,
    Retention,
    Sampling,
    ToolChoice,
    Voice,
)
from antiphon.errors import ClientError, ServerError
from antiphon.framing import FRAME_LIMIT_BYTES, BadFrame, FrameDecoder, UnsendableFrame, pack_frame
from antiphon.wire.internal.worker_link import (
    ConversationClosed,
    EngineCommands,
    EngineEvents,
    Failure,
    OpenConversation,
    from_worker_decoder,
    to_worker_decoder,
)

HISTORY = (
    history.Message(
        "user", (history.TextPart("What is it?"), history.ImagePart(url="data:image/png;base64,AA=="), history.SpeechPart(b"\0\1", 24_000))
    ),
    history.ReasoningItem("Hm.", ("It thinks.",), "sealed"),
    history.ToolCall("call_1", "look", '{"at": 1}'),
    history.ToolResult("call_1", (history.TextPart("A cat."), history.VideoPart("AA=="))),
    history.HostedToolItem({"type": "web_search_call", "id": "ws_1", "action": None}),
)
ASK = commands.Respond(
    id="resp_1",
    history=HISTORY,
    tools=(
        FunctionTool("look", parameters={"maximum": 1.5}),
        CustomTool("grep", grammar="a|b", syntax="regex"),
    ),
    hosted_tools=(HostedTool("web_search", {"type": "web_search"}),),
    namespaces={"a": "b"},
    tool_choice=ToolChoice("required", ("look",)),
    sampling=Sampling(temperature=0.5, extra={"seed": -1}),
    format=JsonSchema("n", {"type": "object"}, strict=True),
    voice=Voice("alloy", rate_hz=16_000),
    retention=Retention(0.5, 100),
)


def through(frame, decoder):
    (out,) = FrameDecoder(decoder).feed(pack_frame(frame))
    return out


def words_of(union):
    """One word of each kind, with what must be given."""
    required = {"id": "x", "text": "words", "pcm": b"\0\1", "call_id": "c", "name": "n", "item": {"a": 1}, "event": {"a": [None]}}
    required |= {"message": "m", "code": "c", "metrics": {"kv": 1}, "annotation": {"a": 1.5}, "content": "s", "transcript": "t", "at_ms": 1}
    required |= {
        "input_tokens": 1,
        "output_tokens": 2,
        "start_s": 0.5,
        "end_s": 1.5,
        "position": 1,
        "queue_length": 2,
        "wait_s": 3.5,
        "jpeg": b"\xff",
        "item_id": "cmp_1",
    }
    required |= {"request": ASK, "history": HISTORY, "path": "completions", "body": b"{}", "data": b"{}", "status": "completed"}
    required |= {"attempts": (events.Attempt("m", "gpu1", "ok", 0, 5),)}
    for kind in get_args(union):
        yield kind(**{field.name: required[field.name] for field in msgspec.structs.fields(kind) if field.required})


@pytest.mark.parametrize("word", [ASK, *words_of(commands.EngineCommand)], ids=lambda word: type(word).__name__)
def test_every_word_to_an_engine_crosses_as_it_is(word):
    assert through(EngineCommands(7, (word,)), to_worker_decoder) == EngineCommands(7, (word,))


@pytest.mark.parametrize("word", [*words_of(events.EngineEvent)], ids=lambda word: type(word).__name__)
def test_every_word_from_an_engine_crosses_as_it_is(word):
    assert through(EngineEvents(7, (word, word)), from_worker_decoder) == EngineEvents(7, (word, word))


@pytest.mark.parametrize(
    "fault", [ClientError("No.", code="x", param="input", status=413), ServerError("Oh.", status=503, retry_after_s=2.5)]
)
def test_a_fault_crosses_with_all_that_its_client_is_told(fault):
    back = Failure.from_error(fault).to_error()
    assert type(back) is type(fault)
    assert vars(back) == vars(fault)


@given(st.lists(st.integers(1, 40)), st.integers(1, 4))
def test_frames_come_out_whole_however_they_are_cut(cuts, count):
    stream = b"".join(pack_frame(EngineCommands(number, (commands.Cancel("resp_1"),))) for number in range(count))
    frames, came = FrameDecoder(to_worker_decoder), []
    for cut in cuts:
        came += frames.feed(stream[:cut])
        stream = stream[cut:]
    came += frames.feed(stream)
    assert [frame.number for frame in came] == list(range(count))


def test_a_frame_that_is_too_long_is_refused_before_it_has_come():
    with pytest.raises(BadFrame, match=str(FRAME_LIMIT_BYTES)):
        list(FrameDecoder(to_worker_decoder).feed(struct.pack("!I", FRAME_LIMIT_BYTES + 1)))


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode(["Shout", 1]),
        msgspec.msgpack.encode(["CloseConversation", "1"]),
        msgspec.msgpack.encode(["OpenConversation", 1, {"model": 1}]),
        msgspec.msgpack.encode(["EngineCommands", 1, [{"word": "AppendAudio", "pcm": "text"}]]),
        msgspec.msgpack.encode(["EngineCommands", 1, [{"word": "AudioDelta", "id": "x", "pcm": b""}]]),
        b"\x93\xaeEngineCommands\x01\x91\x82\xa4word\xa6Cancel\xa2id\xa2\xff\xfe",
    ],
    ids=range(9),
)
def test_what_is_no_frame_is_told(packed):
    with pytest.raises(BadFrame, match="makes no sense"):
        list(FrameDecoder(to_worker_decoder).feed(struct.pack("!I", len(packed)) + packed))


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_end_a_link(noise):
    for decoder in (to_worker_decoder, from_worker_decoder):
        try:
            list(FrameDecoder(decoder).feed(noise))
            list(FrameDecoder(decoder).feed(struct.pack("!I", len(noise)) + noise))
        except BadFrame:
            pass


@given(st.data())
def test_no_altered_frame_does_more_than_end_a_link(data):
    frame = bytearray(pack_frame(EngineCommands(1, (ASK,))))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(FrameDecoder(to_worker_decoder).feed(bytes(frame)))
    except BadFrame:
        pass


@pytest.mark.parametrize(
    "frame",
    [
        EngineCommands(1, (commands.Respond(id="x", history=(), sampling=Sampling(extra={"seed": 2**70})),)),
        OpenConversation(1, ConversationSettings(model="\ud800")),
        EngineEvents(1, (events.AudioDelta("x", b"\0" * FRAME_LIMIT_BYTES),)),
    ],
    ids=["number", "half a character", "length"],
)
def test_what_no_frame_can_carry_is_told_to_whoever_sends_it(frame):
    with pytest.raises(UnsendableFrame):
        pack_frame(frame)


def test_bytes_behind_a_flaw_do_not_keep_those_before_it_from_being_read():
    came = []
    with pytest.raises(BadFrame):
        for frame in FrameDecoder(from_worker_decoder).feed(pack_frame(ConversationClosed(1)) + b"\0\0\0\1\xc1"):
            came.append(frame)
    assert came == [ConversationClosed(1)]
