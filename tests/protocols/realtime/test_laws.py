"""Whatever a client and an engine say, in whatever order, the laws of a Realtime session hold."""

from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ServerError
from antiphon.protocols.output import ENGINE_STATUS_EVENTS, EVENT_HANDLERS
from antiphon.protocols.realtime.session import _CLIENT_HANDLERS, _ENGINE_HANDLERS, UnreadableRealtimeEvent
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.protocols.session import Hangup, Shutdown
from antiphon.wire.codec.types import encode
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.client_events import ClientEvent
from support.protocols.realtime_dialogues import OMNI, TEXT, Dialogue, event, silence, sound
from support.protocols.realtime_laws import Laws

READER = Capabilities(audio_in=True, tools=True)
SPEAKER = Capabilities(audio_out=True, tools=True, listens=True, turn_detection=("server_vad",), transcribes=True)

# What a client says: the number of an item or a response stands for one of those that there were


def message(role, *content):
    return {"type": "message", "role": role, "content": list(content)}


ITEMS = (
    message("user", {"type": "input_text", "text": "Hi"}),
    message("user", {"type": "input_audio", "audio": "AAAA" * 100}, {"type": "input_text", "text": "?"}),
    message("user", {"type": "input_image", "image_url": "data:image/png;base64,AA=="}),
    message("assistant", {"type": "output_text", "text": "Well"}),
    message("assistant", {"type": "output_audio", "transcript": "Well"}),
    message("user", {"type": "output_text", "text": "Hi"}),
    message("system"),
    {"type": "function_call", "name": "f", "call_id": "c1", "arguments": "{}"},
    {"type": "function_call", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "4"},
    {"type": "mcp_approval_response", "approval_request_id": "x", "approve": True},
    {"type": "item_reference", "id": "a"},
    {"type": "poem"},
)
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
RESPONSES = (
    {},
    {"conversation": "none", "metadata": {"k": "v"}},
    {"conversation": "none", "input": [{"type": "item_reference", "id": "a"}]},
    {"conversation": "none", "input": [message("user", {"type": "item_reference", "id": "a"}, {"type": "input_text", "text": "Hi"})]},
    {"input": [], "instructions": "Sing."},
    {"input": [ITEMS[1], ITEMS[7]], "output_modalities": ["text"], "modalities": ["text"]},
    {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}},
    {"tool_choice": {"type": "function", "name": "g"}},
    {"audio": {"output": {"format": {"type": "audio/pcma"}, "voice": "marin"}}, "voice": "marin"},
    {"metadata": {"k": "v" * 600}},
    {"conversation": "both"},
    {"prompt": {"id": "p"}, "output_modalities": ["audio", "text"]},
)
IN = ("audio", "input")
OUT = ("audio", "output")
SETTINGS = (
    {"instructions": "Be brief."},
    {"instructions": None, "tools": [FUNCTION], "tool_choice": "required"},
    {IN: {"turn_detection": None}, "turn_detection": None},
    {IN: {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5_000}}, "turn_detection": {"type": "server_vad"}},
    {IN: {"turn_detection": {"type": "server_vad", "create_response": False}}},
    {IN: {"turn_detection": {"type": "semantic_vad", "interrupt_response": False}}},
    {IN: {"transcription": {"model": "whisper-1"}}, "input_audio_transcription": {"model": "whisper-1"}},
    {IN: {"format": {"type": "audio/pcmu"}, "noise_reduction": {"type": "near_field"}}, "input_audio_format": "g711_ulaw"},
    {IN: {"format": {"type": "audio/pcm", "rate": 24_000}}, "input_audio_format": "pcm16"},
    {IN: {"format": {"type": "audio/pcm", "rate": 16_000}}, "input_audio_format": "pcm8"},
    {OUT: {"voice": "alloy"}, "voice": "alloy"},
    {OUT: {"voice": "marin", "speed": 1.2, "format": {"type": "audio/pcmu"}}, "voice": "marin", "output_audio_format": "g711_ulaw"},
    {"output_modalities": ["text"], "modalities": ["text"]},
    {"output_modalities": ["audio"], "modalities": ["audio", "text"], "max_output_tokens": 10},
    {"tracing": "auto", "truncation": {"type": "retention_ratio", "retention_ratio": 0.5}},
    {"tracing": None, "truncation": "disabled", "something_new": {"a": [1]}},
    {"model": "other", "id": "sess_theirs"},
    {"type": "transcription"},
    {"output_modalities": ["audio", "text"], "modalities": []},
    {"reasoning": {"effort": "low"}, "tools": [{"type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1/"}]},
)
GARBLED = (b"", b"{", b"[]", b'{"type":"poem","event_id":"mine"}', b'{"event_id":"mine"}', b'{"type":"response.create","response":7}')
HALF_A_GROUP = b'{"type":"input_audio_buffer.append","event_id":"mine","audio":"AAA"}'

numbers = st.integers(0, 5)
mostly_the_last = st.sampled_from([0, 0, 0, 0, 1, 2, 5])
ids = st.sampled_from([None, "a", "b", "c"])
places = st.sampled_from([None, "root", "a", "b", "nowhere"])


def said(type, **fields):
    return st.builds(lambda **found: ("client", event(type, **found)), **fields)


client_steps = st.one_of(
    st.builds(lambda size: ("client", sound(bytes(size))), st.sampled_from([0, 1, 959, 960, 9_600, 96_000])),
    said("input_audio_buffer.commit"),
    said("input_audio_buffer.clear"),
    said("output_audio_buffer.clear"),
    st.tuples(st.just("create"), st.sampled_from(ITEMS), ids, places),
    st.tuples(st.sampled_from(["retrieve", "delete"]), mostly_the_last),
    st.tuples(st.just("truncate"), mostly_the_last, st.integers(0, 2), st.sampled_from([0, 10, 50, 5_000])),
    said("response.create", response=st.sampled_from(RESPONSES)),
    said("response.create"),
    st.tuples(st.just("cancel"), st.none() | numbers),
    st.tuples(st.just("update"), st.sampled_from(SETTINGS)),
    st.builds(lambda frame: ("frame", frame), st.sampled_from((*GARBLED, HALF_A_GROUP))),
)

# What an engine says: the id of a response is the number of one that it was asked for, or none that there ever was

texts = st.sampled_from(["a", "b c", "\n", ""])
calls = st.sampled_from(["c1", "c2"])
answer_words = st.one_of(
    st.builds(engine_events.TextDelta, st.just(""), texts),
    st.builds(engine_events.AudioTranscriptDelta, st.just(""), texts),
    st.builds(engine_events.AudioDelta, st.just(""), st.sampled_from([b"", silence(20), silence(450)])),
    st.builds(engine_events.RefusalDelta, st.just(""), texts),
    st.builds(engine_events.ReasoningDelta, st.just(""), texts),
    st.builds(engine_events.ItemBoundary, st.just(""), ids),
    st.builds(engine_events.EncryptedReasoning, st.just(""), texts),
    st.builds(engine_events.AnnotationAdded, st.just(""), st.just({"type": "file_path"})),
    st.builds(engine_events.HostedToolStarted, st.just(""), st.just({"type": "web_search_call", "id": "ws_1"})),
    st.builds(engine_events.HostedToolDone, st.just(""), st.just({"type": "web_search_call", "id": "ws_1"})),
    st.builds(engine_events.ToolCallStarted, st.just(""), calls, st.just("f"), st.booleans()),
    st.builds(engine_events.ToolArgumentsDelta, st.just(""), calls, texts),
    st.builds(engine_events.ToolCallDone, st.just(""), calls),
    st.builds(engine_events.Usage, id=st.just(""), input_tokens=st.just(5), output_tokens=st.just(2), output_audio_tokens=st.just(1)),
    st.builds(engine_events.ResponseEnded, st.just(""), st.sampled_from(get_args(engine_events.EndReason))),
    st.builds(engine_events.ResponseFailed, id=st.just(""), message=st.just("gone")),
)
own_turns = st.sampled_from(["t1", "t2", "t3"])
turn_ids = own_turns | st.sampled_from(["turn_1", "turn_2"])
moments = st.sampled_from([0, 10, 300, 2_000, 900_000])
hearing_words = st.one_of(
    st.builds(engine_events.SpeechStarted, own_turns, moments),
    st.builds(engine_events.SpeechStopped, turn_ids, moments),
    st.builds(engine_events.InputTranscriptDelta, turn_ids, texts),
    st.builds(engine_events.InputTranscriptSegment, id=turn_ids, text=texts, start_s=st.just(0.0), end_s=st.just(0.5)),
    st.builds(engine_events.InputTranscriptDone, id=turn_ids, transcript=texts, seconds=st.none() | st.just(0.5)),
    st.builds(engine_events.InputTranscriptFailed, id=turn_ids, message=st.just("what?")),
    st.builds(engine_events.EngineError, message=st.just("ouch")),
)
engine_steps = st.one_of(
    st.tuples(st.just("engine"), st.lists(st.tuples(mostly_the_last, answer_words), min_size=1, max_size=5)),
    st.tuples(st.just("hearing"), st.lists(hearing_words, min_size=1, max_size=3)),
)
# Scenes as they usually go, so that what comes between them finds a session in the middle of something
scenes = st.one_of(
    st.tuples(st.just("asks"), st.sampled_from(RESPONSES[:5]), st.lists(answer_words, min_size=1, max_size=5)),
    st.tuples(st.just("speaks"), own_turns, st.sampled_from([200, 500]), st.booleans()),
)
steps = st.one_of(
    client_steps, scenes, scenes, engine_steps, engine_steps, st.tuples(st.just("wait"), st.sampled_from([0.02, 4.0, 6.0, 600.0]))
)
scripts = st.lists(steps, min_size=12, max_size=40)
ends = st.sampled_from([("hangup",), ("halt",), ("wait", 4_000.0)])


class Play:
    """A session on which a script is played, under the laws."""

    def __init__(self, dialect, capabilities, **opening):
        self.dialogue = Dialogue(capabilities, dialect, is_new=True, **opening)
        self.laws = Laws()
        self.seen = 0
        self.asked = ["resp_unheard_of"]
        self.observe()
        self.dialogue.skip()

    def play(self, step):
        dialogue = self.dialogue
        has_ended = dialogue.session.end_reason
        before = self.state()
        match step:
            case ("client", fields):
                dialogue >> {**fields, "event_id": "mine"}
            case ("create", item, id, previous):
                place = {} if previous is None else {"previous_item_id": previous}
                item = item if id is None else {**item, "id": id}
                dialogue >> {**event("conversation.item.create", item=item, **place), "event_id": "mine"}
            case ("retrieve" | "delete" as action, number):
                dialogue >> event(f"conversation.item.{action}", item_id=self.item(number), event_id="mine")
            case ("truncate", number, index, ms):
                place = {"item_id": self.item(number), "content_index": index, "audio_end_ms": ms}
                dialogue >> event("conversation.item.truncate", **place, event_id="mine")
            case ("cancel", number):
                which = {} if number is None else {"response_id": self.response(number)}
                dialogue >> event("response.cancel", **which, event_id="mine")
            case _:
                self.play_more(step)
        assert not (has_ended and dialogue.pending), "nothing comes after the end"
        self.observe()
        self.check_refused(before)
        dialogue.skip()

    def play_more(self, step):
        dialogue = self.dialogue
        match step:
            case ("update", patch):
                fields = {"audio": {"input": patch.get(IN, {}), "output": patch.get(OUT, {})}}
                fields = {"type": "realtime", **fields, **{name: each for name, each in patch.items() if isinstance(name, str)}}
                dialogue >> event("session.update", session=fields, event_id="mine")
            case ("frame", frame):
                dialogue >> frame
            case ("asks", response, words):
                dialogue >> event("response.create", response=response)
                self.observe()
                dialogue.skip()
                self.play(("engine", [(0, word) for word in words]))
            case ("speaks", id, ms, is_over):
                dialogue >> sound(silence(ms))
                at_ms = dialogue.session._input_audio.buffer.now_ms if dialogue.session.end_reason is None else 0
                words = engine_events.SpeechStarted(id, at_ms - ms), engine_events.SpeechStopped(id, at_ms)
                self.observe()
                dialogue.skip()
                self.play(("hearing", words if is_over else words[:1]))
            case ("engine", words):
                dialogue >> tuple(type(word)(**{**fields_of(word), "id": self.response(number)}) for number, word in words)
            case ("hearing", words):
                dialogue >> tuple(words)
            case ("wait", seconds):
                dialogue.wait(seconds)
            case ("hangup",):
                dialogue >> Hangup(dialogue.at)
            case ("halt",):
                dialogue >> Shutdown(ServerError("The server stops.", code="server_shutting_down"), dialogue.at)

    def item(self, number):
        return [*reversed(self.laws.order), "item_unheard_of"][number % (len(self.laws.order) + 1)]

    def response(self, number):
        return self.asked[-1 - number % len(self.asked)]

    def state(self):
        session = self.dialogue.session
        if session.end_reason:
            return ()
        return (
            encode(session._session),
            list(self.laws.order),
            session._input_audio.buffer.buffered_bytes,
            session._input_audio.turn.is_open,
        )

    def observe(self):
        for came in self.dialogue.came[self.seen :]:
            if isinstance(came, events.Event):
                self.laws.see(came)
            else:
                self.laws.check_command(came)
            if isinstance(came, commands.Respond):
                self.asked.append(came.id)
        self.seen = len(self.dialogue.came)
        session = self.dialogue.session
        if session.end_reason is None:
            self.check_books(session)

    def check_books(self, session):
        buffer = session._input_audio.buffer
        assert buffer.received_bytes == buffer.committed_bytes + buffer.cleared_bytes + buffer.buffered_bytes
        assert [entry.item.id for entry in session._conversation] == self.laws.order
        assert session._input_audio.turn.is_open == (self.laws.speaking is not None)
        assert set(session._responses) == set(self.laws.live)
        assert self.dialogue.wakes_at is not None

    def check_refused(self, before):
        refused = [each for each in self.dialogue.pending if isinstance(each, dict) and each["type"] == "error"]
        if any(each["error"]["event_id"] == "mine" for each in refused):
            assert len(self.dialogue.pending) == 1, "what was refused has no other effect"
            assert self.state() == before

    def close(self, step):
        self.play(step)
        assert self.dialogue.session.end_reason
        if step != ("hangup",):
            assert not self.laws.live, "whatever was begun is done"


def fields_of(word):
    return {name: getattr(word, name) for name in word.__struct_fields__}


@pytest.mark.parametrize("dialect", ["ga", "beta"])
@pytest.mark.parametrize("capabilities", [OMNI, TEXT, READER, SPEAKER], ids=["omni", "text", "reader", "speaker"])
@settings(max_examples=settings.default.max_examples // 2)
@given(scripts, ends)
def test_the_laws_hold_whatever_is_said(dialect, capabilities, script, end):
    play = Play(dialect, capabilities)
    for step in script:
        play.play(step)
    play.close(end if not play.dialogue.session.end_reason else ("wait", 0))


@pytest.mark.parametrize("capabilities", [OMNI, SPEAKER], ids=["omni", "speaker"])
@given(scripts)
def test_the_laws_hold_where_the_server_plays_and_all_that_it_began_to_play_ends(capabilities, script):
    play = Play("ga", capabilities, has_output_buffer=True)
    for step in script:
        play.play(step)
    while play.laws.live and not play.dialogue.session.end_reason:
        play.play(("cancel", play.asked[::-1].index(next(iter(play.laws.live)))))
    play.play(("wait", 60.0))
    assert play.dialogue.session.end_reason or not play.laws.playing


@pytest.mark.parametrize("dialect", ["ga", "beta"])
@settings(max_examples=settings.default.max_examples // 2)
@given(scripts)
def test_the_laws_hold_where_nothing_is_answered(dialect, script):
    play = Play(dialect, OMNI, is_transcription=True)
    for step in script:
        play.play(step)
    assert not [each for each in play.dialogue.came if isinstance(each, events.ResponseCreated)]


def test_every_event_of_a_client_and_every_word_of_an_engine_is_taken():
    assert set(_CLIENT_HANDLERS) == {*get_args(ClientEvent), UnreadableRealtimeEvent, RealtimeSessionConfig}
    taken = set(_ENGINE_HANDLERS) | set(EVENT_HANDLERS) | ENGINE_STATUS_EVENTS
    assert taken | {engine_events.RelayData} == set(get_args(engine_events.EngineEvent)), "which answers what no session here sends"
