"""What breaks real clients, each once measured with one, and never done: all of a rich session is looked through, in both dialects."""

import base64
import functools
import json

import pytest

from antiphon.engine_api import events
from antiphon.wire.realtime.beta_events import BetaServerEvent
from antiphon.wire.realtime.server_events import ServerEvent
from support.protocols.realtime_dialogues import FRAME_LIMIT_BYTES, OMNI, Dialogue, event, silence, sound

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}
METADATA = {"client_event_id": "evt_7"}
OLD_NAMES = {
    "response.text.delta": "response.output_text.delta",
    "response.text.done": "response.output_text.done",
    "response.audio.delta": "response.output_audio.delta",
    "response.audio.done": "response.output_audio.done",
    "response.audio_transcript.delta": "response.output_audio_transcript.delta",
    "response.audio_transcript.done": "response.output_audio_transcript.done",
    "conversation.item.created": "conversation.item.added",
}
IN_RESPONSES = ("response.output_", "response.content_", "response.text", "response.audio", "response.function_call")


def types_of(union):
    return {kind.__struct_config__.tag for kind in union.__args__}


TYPES = {"ga": types_of(ServerEvent), "beta": types_of(BetaServerEvent)}


def session_settings(dialect):
    if dialect == "beta":
        return {
            "input_audio_transcription": {"model": "whisper-1"},
            "tools": [TOOL],
            "voice": "alloy",
            "turn_detection": {"type": "server_vad"},
        }
    heard = {"transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}, "noise_reduction": None}
    return {"type": "realtime", "audio": {"input": heard, "output": {"voice": "alloy", "format": None}}, "tools": [TOOL], "unheard_of": 1}


@functools.cache
def a_rich_session(dialect):
    """A text turn, a call, a turn by voice and an interruption, with transcripts; the client says all that clients say."""
    session = Dialogue(OMNI, dialect, is_new=True)

    def says(type, **fields):
        session.skip() >> event(type, **fields)

    def hears(*words):
        session.skip() >> words

    says("session.update", session=session_settings(dialect))
    says("conversation.item.create", item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1+1?"}]})
    modalities = {"output_modalities": ["text"]} if dialect == "ga" else {"modalities": ["text"]}
    says("response.create", event_id="evt_7", response={"metadata": METADATA, **modalities})
    used = events.Usage(id="resp_1", input_tokens=5, output_tokens=3)
    hears(
        events.TextDelta("resp_1", "Let me see."),
        events.ToolCallStarted("resp_1", "call_1", "add"),
        events.ToolArgumentsDelta("resp_1", "call_1", "{}"),
    )
    hears(used, events.ResponseEnded("resp_1"))
    says("conversation.item.create", item={"type": "function_call_output", "call_id": "call_1", "output": "2"})
    says("response.create", response=modalities)
    hears(events.TextDelta("resp_2", "Two."), events.ResponseEnded("resp_2"))
    session.skip() >> sound(silence(2_000))
    hears(events.SpeechStarted("t1", 100))
    hears(
        events.SpeechStopped("t1", 900),
        events.InputTranscriptDelta("t1", "Go "),
        events.InputTranscriptDone(id="t1", transcript="Go on", seconds=0.8),
    )
    hears(events.AudioTranscriptDelta("resp_3", "Once"), events.AudioDelta("resp_3", silence(60_000)))
    hears(events.SpeechStarted("t2", 1_200))
    (spoken,) = [
        each["item"]["id"] for each in session.log if each["type"] == "response.output_item.done" and each["response_id"] == "resp_3"
    ]
    says("conversation.item.truncate", item_id=spoken, content_index=0, audio_end_ms=100)
    hears(events.SpeechStopped("t2", 1_900), events.InputTranscriptFailed(id="t2", message="what?"))
    hears(
        events.AudioTranscriptDelta("resp_4", "Hi"),
        events.AudioDelta("resp_4", silence(100)),
        events.TextDelta("resp_4", "!"),
        events.ResponseEnded("resp_4"),
    )
    says("session.update", session=session_settings(dialect))
    says("conversation.item.retrieve", item_id="item_1")
    says("response.create", response={"conversation": "none", "metadata": METADATA})
    hears(events.AudioTranscriptDelta("resp_5", "psst"), events.AudioDelta("resp_5", silence(20)), events.ResponseEnded("resp_5"))
    return session.skip()


@pytest.fixture(params=["ga", "beta"])
def dialect(request):
    return request.param


@pytest.fixture
def log(dialect):
    return a_rich_session(dialect).log


def of(log, *types):
    return [each for each in log if each["type"] in types]


def objects(value):
    """Every object in a piece of JSON."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(each)


def items(log):
    return [each for each in objects(log) if each.get("object") == "realtime.item"]


def test_the_session_is_a_rich_one(dialect, log):
    silent = {"error", "input_audio_buffer.cleared", "conversation.item.deleted", "conversation.item.input_audio_transcription.segment"}
    told = {each["type"] for each in log}
    names = {OLD_NAMES.get(type, type) for type in told}
    assert len(told) >= 27
    assert not told & silent
    assert {"response.output_audio.delta", "response.output_text.delta", "response.function_call_arguments.delta"} <= names


def test_every_event_has_an_id_and_no_two_the_same(log):
    ids = [each["event_id"] for each in log]
    assert all(isinstance(id, str) and id for id in ids)
    assert len(set(ids)) == len(ids)


def test_there_are_no_events_that_the_original_has_not(dialect, log):
    assert {each["type"] for each in log} <= TYPES[dialect]


def test_no_client_is_told_by_the_other_dialects_names(dialect, log):
    told = {each["type"] for each in log}
    theirs = set(OLD_NAMES) if dialect == "ga" else {*OLD_NAMES.values(), "conversation.item.done"}
    assert not told & theirs


def test_a_transcript_says_what_it_cost(log):
    completed = of(log, "conversation.item.input_audio_transcription.completed")
    assert [each["usage"] for each in completed] == [{"type": "duration", "seconds": 0.8}]


def test_a_call_is_told_with_its_name(dialect, log):
    (done,) = of(log, "response.function_call_arguments.done")
    assert done.get("name") == ("add" if dialect == "ga" else None)
    calls = [each for each in items(log) if each["type"] == "function_call"]
    assert calls and all(each["name"] == "add" and each["call_id"] == "call_1" for each in calls)


def test_an_absent_field_of_an_item_is_absent(log):
    for item in items(log):
        assert None not in item.values()
        for part in item.get("content", []):
            heard_nothing_yet = {"transcript"} if part["type"] == "input_audio" else set()
            assert {name for name, value in part.items() if value is None} <= heard_nothing_yet


def test_what_the_model_says_is_of_the_type_that_the_dialect_has(dialect, log):
    types = {part["type"] for item in items(log) if item.get("role") == "assistant" for part in item["content"]}
    assert types == ({"output_text", "output_audio"} if dialect == "ga" else {"text", "audio"})
    parts = {each["part"]["type"] for each in log if "part" in each}
    assert parts == {"text", "audio"}


def test_sound_has_the_one_rate_that_there_is(dialect, log):
    for told in of(log, "session.created", "session.updated"):
        session = told["session"]
        if dialect == "beta":
            assert session["input_audio_format"] == session["output_audio_format"] == "pcm16"
        else:
            assert session["audio"]["input"]["format"] == session["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24_000}


def test_an_absent_field_of_a_part_is_absent(log):
    assert all(None not in each["part"].values() for each in log if "part" in each)


def test_every_item_of_the_conversation_is_added_and_done(dialect, log):
    added = [each["item"]["id"] for each in of(log, "conversation.item.added", "conversation.item.created")]
    assert len(added) == len(set(added)) == 9
    done = [each["item"]["id"] for each in of(log, "conversation.item.done")]
    assert sorted(done) == (sorted(added) if dialect == "ga" else [])


def test_an_item_and_a_part_are_begun_before_they_grow(log):
    begun = set()
    for each in log:
        match each["type"]:
            case "response.output_item.added":
                begun.add(each["item"]["id"])
            case "response.content_part.added":
                assert each["item_id"] in begun
                begun.add((each["item_id"], each["content_index"]))
            case "response.function_call_arguments.delta":
                assert each["item_id"] in begun
            case type if type.endswith(".delta") and type.startswith("response."):
                assert (each["item_id"], each["content_index"]) in begun


def test_metadata_comes_back(log):
    told = [each["response"] for each in of(log, "response.created", "response.done")]
    assert [each["metadata"] for each in told if each["id"] in ("resp_1", "resp_5")] == [METADATA] * 4


def test_what_clients_usually_say_is_no_error(log):
    assert of(log, "error") == []


def test_an_error_is_an_object(dialect):
    session = Dialogue(OMNI, dialect) >> event("response.cancel", event_id="mine")
    (told,) = session.events()
    assert told["error"].keys() == {"type", "code", "message", "param", "event_id"}
    assert (told["error"]["event_id"], told["error"]["param"]) == ("mine", None)


def test_no_frame_is_too_large(dialect):
    session = a_rich_session(dialect)
    assert max(map(len, session.frames)) < FRAME_LIMIT_BYTES // 16
    deltas = of(session.log, "response.audio.delta", "response.output_audio.delta")
    assert max(len(base64.b64decode(each["delta"])) for each in deltas) == len(silence(200))


def test_even_an_answer_that_is_too_large_has_no_large_frame(dialect):
    session = Dialogue(OMNI, dialect) >> event("response.create")
    session.skip() >> (
        events.AudioTranscriptDelta("resp_1", "\x00" * 160_000),
        events.AudioDelta("resp_1", silence(60_000)),
        events.TextDelta("resp_1", "x" * (2 << 20)),
    )
    assert session.log[-1 if dialect == "beta" else -2]["response"]["status"] == "incomplete"
    assert max(map(len, session.frames)) < FRAME_LIMIT_BYTES


def test_a_session_is_nested_or_flat_as_the_dialect_has_it(dialect, log):
    flat = {"voice", "modalities", "input_audio_format", "turn_detection", "input_audio_transcription", "max_response_output_tokens"}
    nested = {"audio", "output_modalities", "max_output_tokens", "type"}
    for told in of(log, "session.created", "session.updated"):
        has, has_not = (nested, flat) if dialect == "ga" else (flat, nested)
        assert has <= told["session"].keys()
        assert not has_not & told["session"].keys()
        assert told["session"]["object"] == "realtime.session"


def test_every_event_of_an_answer_says_where_it_belongs(log):
    for each in log:
        if not each["type"].startswith(IN_RESPONSES):
            continue
        assert each["response_id"].startswith("resp_")
        assert isinstance(each["output_index"], int)
        assert each.get("item_id") or each["item"]["id"]
        if "_item." not in each["type"] and "function_call" not in each["type"]:
            assert isinstance(each["content_index"], int)


def test_a_response_says_all_of_itself_at_its_beginning_and_its_end(dialect, log):
    usual = {"id", "object", "status", "status_details", "output", "conversation_id", "usage", "metadata", "max_output_tokens"}
    usual |= {"output_modalities", "audio"} if dialect == "ga" else {"modalities", "voice", "output_audio_format"}
    for told in of(log, "response.created", "response.done"):
        assert usual <= told["response"].keys()


def test_nothing_that_is_told_breaks_a_line():
    for session in map(a_rich_session, ("ga", "beta")):
        assert all(json.loads(frame) and b"\n" not in frame for frame in session.frames)
