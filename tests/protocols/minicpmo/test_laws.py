"""Whatever a client, an engine and the clock say, in whatever order, the laws of a MiniCPM-o session hold."""

from typing import get_args

from hypothesis import given, settings, strategies as st
from msgspec import structs

from antiphon.engine_api import events
from antiphon.errors import ServerError
from antiphon.protocols.minicpmo.chat import WAITING_QUESTIONS_LIMIT
from antiphon.protocols.minicpmo.session import (
    _ANY_STATE_HANDLERS,
    _CLIENT_HANDLERS,
    _ENGINE_HANDLERS,
    ClientThrottled,
    ConnectionResumed,
    MinicpmoSessionConfig,
    MinicpmoState,
    UnreadableMinicpmoEvent,
)
from antiphon.protocols.session import Hangup, Shutdown, Tick
from antiphon.wire.minicpmo.client_events import ClientEvent
from support.protocols.minicpmo_dialogues import ALL, ASSIGNED, HALF, READY, TEXT, Dialogue, append, ask, base64_of, event, init, jpeg

CLIENT = (
    init(),
    init(system_prompt="Sing.", ref_audio=HALF, config={"x": 1}),
    append(),
    append(input_id="mine", response_id="mine_too", force_listen=True),
    append("", video_frames=[base64_of(jpeg())], max_slice_nums=2),
    append("AAA"),
    ask("Hi"),
    ask("Hi", streaming=False, tts={"enabled": True}),
    ask({"role": "system", "content": "x"}),
    ask({"role": "user", "content": [{"type": "image", "data": base64_of(jpeg())}]}),
    event("response.create"),
    b"{",
    ConnectionResumed(),
)
ANSWERABLE = (CLIENT[6], CLIENT[7], CLIENT[9])
ENDS = (
    event("session.close", reason="user_stop"),
    Hangup(at=0),
    Shutdown(ServerError("Bye."), at=0),
    events.EngineLost(code="backend_error", message="x"),
)

ids = st.sampled_from(["a", "b", 0, 0, 0, 1])
"""Of responses: an engine's own, or the number of one that it was asked for, counted from the last."""
texts = st.sampled_from(["x", "", "y z"])
words = st.one_of(
    st.builds(events.TextDelta, ids, texts),
    st.builds(events.AudioTranscriptDelta, ids, texts),
    st.builds(events.AudioDelta, ids, st.sampled_from([b"", bytes(2), bytes(480)])),
    st.builds(events.ResponseEnded, ids, st.sampled_from(["stop", "cancelled", "length"])),
    st.builds(events.ResponseEnded, ids),
    st.builds(events.ResponseFailed, id=ids, message=texts),
    st.builds(events.Usage, id=ids, input_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9)),
    st.builds(events.EngineMetrics, ids, st.just({"prefill_ms": 1, "remaining_s": 7, "notes": 3})),
    st.builds(events.Listening, ids),
    st.sampled_from(
        [ASSIGNED, ASSIGNED, READY, READY, events.Listening(), events.EngineError(message="x"), events.InputTranscriptDelta("t", "x")]
    ),
    st.builds(events.QueueUpdate, id=st.just("q"), position=st.integers(1, 3), queue_length=st.just(3), wait_s=st.floats(0, 99)),
)
steps = st.one_of(
    st.sampled_from(CLIENT),
    st.sampled_from(CLIENT),
    st.lists(words, min_size=1, max_size=4).map(tuple),
    st.lists(words, min_size=1, max_size=4).map(tuple),
    st.sampled_from([0.5, 20.0, 100.0]),
)
scripts = st.lists(steps, max_size=40)
beginnings = st.sampled_from([None, None, "assigned", "live", "live"])


def said(dialogue, word):
    id = getattr(word, "id", None)
    if not isinstance(id, int):
        return word
    asked = dialogue.laws.asked
    return structs.replace(word, id=asked[-1 - id] if id < len(asked) else "a")


def play(dialogue, script):
    for step in script:
        if isinstance(step, float):
            dialogue.wait(step)
        elif isinstance(step, tuple):
            dialogue >> tuple(said(dialogue, word) for word in step)
        else:
            dialogue >> step
        dialogue.skip()


@settings(max_examples=3 * settings.default.max_examples)
@given(st.sampled_from(["chat", "audio", "video"]), st.sampled_from([ALL, TEXT]), beginnings, scripts, st.sampled_from(ENDS), scripts)
def test_the_laws_hold_whatever_is_said(mode, capabilities, until, script, end, rest):
    if mode != "chat":
        capabilities = structs.replace(capabilities, full_duplex=True)
    dialogue = Dialogue(mode, capabilities, until)
    play(dialogue, script)
    play(dialogue, [end])
    play(dialogue, rest)
    assert dialogue.laws.is_closed
    assert dialogue.session.state is MinicpmoState.CLOSED
    assert dialogue.session.handle(Tick(dialogue.at)) == []
    ends = dialogue.laws.types.count("session.closed")
    assert ends == (dialogue.session.end_reason not in ("client_left", "lost"))


@given(st.lists(st.sampled_from(CLIENT), min_size=1, max_size=20))
def test_every_question_that_is_taken_has_one_answer(script):
    dialogue = Dialogue("chat", ALL, "live")
    play(dialogue, script)
    answered = 0
    while len(dialogue.laws.asked) > answered:
        id = dialogue.laws.asked[answered]
        answered += 1
        dialogue >> (events.TextDelta(id, "x"), events.ResponseEnded(id))
        dialogue.skip()
    taken = min(sum(step in ANSWERABLE for step in script), WAITING_QUESTIONS_LIMIT + 1)
    assert len(set(dialogue.laws.asked)) == answered == dialogue.laws.types.count("response.done") == taken


def test_a_session_wakes_no_more_often_than_it_must():
    dialogue = Dialogue(until="live")
    wakes_at = dialogue.wakes_at
    for _ in range(10):
        dialogue.at += 1
        dialogue >> append()
        dialogue.skip()
        assert dialogue.wakes_at == wakes_at


def test_every_event_of_a_client_is_taken_as_long_as_the_session_is_there():
    assert set(_ANY_STATE_HANDLERS) == {MinicpmoSessionConfig, UnreadableMinicpmoEvent, ConnectionResumed, ClientThrottled}
    for state in MinicpmoState:
        assert set(_CLIENT_HANDLERS[state]) == (set() if state is MinicpmoState.CLOSED else set(get_args(ClientEvent)))
    assert set(_ENGINE_HANDLERS) == set(MinicpmoState)
