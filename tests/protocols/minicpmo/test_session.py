"""A MiniCPM-o session from its place in the queue to its end."""

import pytest

from antiphon.engine_api import commands, events
from antiphon.errors import ClientError, ServerError
from antiphon.protocols.minicpmo.session import CLIENT_ERRORS_LIMIT, CLOSE_CODES, PENDING_EVENTS_LIMIT, ClientThrottled, ConnectionResumed
from antiphon.protocols.session import Hangup, Shutdown
from support.protocols.minicpmo_dialogues import (
    ASSIGNED,
    HALF,
    HALF_PCM,
    ID,
    READY,
    TEXT,
    Dialogue,
    all_spoken_of as all_spoken_of,
    append,
    ask,
    base64_of,
    closed,
    delta,
    error,
    event,
    floats,
    init,
    jpeg,
)
from support.protocols.realtime_dialogues import MISSING, Closes, Tells

STOPPING = ServerError("The server is shutting down.", code="server_shutting_down")


def waiting(position, wait_s=9):
    return events.QueueUpdate(id="q_1", position=position, queue_length=3, wait_s=wait_s)


# Waiting


def test_who_waits_is_told_where():
    dialogue = Dialogue() >> waiting(2, wait_s=4.56)
    dialogue << event("session.queued", position=2, queue_length=3, ticket_id="q_1", estimated_wait_s=4.6, server_send_ts=MISSING)
    dialogue >> waiting(1) << event("session.queue_update", position=1, ticket_id="q_1", estimated_wait_s=9)
    dialogue >> ASSIGNED << event("session.queue_done", server_send_ts=MISSING)


def test_who_need_not_wait_is_told_so_too():
    Dialogue() >> ASSIGNED << "session.queue_done"
    Dialogue(is_queued=False) << "session.queue_done"


def test_a_wait_lasts_as_long_as_it_lasts():
    dialogue = (Dialogue() >> waiting(1) << "session.queued").wait(100_000)
    dialogue >> ASSIGNED << "session.queue_done"


def test_an_early_beginning_is_kept_until_there_is_a_place():
    dialogue = Dialogue() >> waiting(1) << "session.queued" >> init(system_prompt="Sing.") >> append() >> append(HALF, force_listen=True)
    dialogue >> ASSIGNED << "session.queue_done" << Tells(commands.StartDuplex, instructions="Sing.")
    dialogue >> READY << "session.created" << commands.AppendAudio(HALF_PCM) << commands.ForceListen() << commands.AppendAudio(HALF_PCM)


def test_what_is_too_early_by_far_is_dropped_and_that_is_told():
    dialogue = Dialogue()
    for _ in range(PENDING_EVENTS_LIMIT):
        dialogue >> append()
    dialogue >> append() << error("not_ready", type="invalid_request_error")


def test_what_is_kept_is_bounded_in_size():
    dialogue = Dialogue(mode="chat")
    for _ in range(2):
        dialogue >> ask("x" * (3 << 20))
    dialogue >> ask("x" * (3 << 20)) << error("not_ready")


MINUTE = base64_of(bytes(4 * 16_000 * 60))
"""Of a voice, in floating point; half as many bytes of it are kept."""


@pytest.mark.parametrize(
    ("large", "fits"),
    [
        (init(ref_audio=MINUTE, tts_ref_audio=MINUTE), 2),
        (append("", video_frames=[base64_of(jpeg() + bytes(2_000_000)), base64_of(jpeg())]), 4),
        (append(base64_of(bytes(4 * 16_000 * 5)), video_frames=[base64_of(jpeg() + bytes(2_000_000))]), 3),
    ],
)
def test_what_is_kept_is_counted_with_its_sound_and_pictures(large, fits):
    dialogue = Dialogue()
    for _ in range(fits):
        dialogue >> large
    dialogue >> large << error("not_ready")


def test_what_was_taken_leaves_room_for_more_to_be_kept():
    large = append("", video_frames=[base64_of(jpeg() + bytes(2_000_000))])
    dialogue = Dialogue()
    for each in (init(), large, large, large, large):
        dialogue >> each
    dialogue >> ASSIGNED << "session.queue_done" << Tells(commands.StartDuplex)
    assert dialogue.pending == []
    dialogue >> READY << "session.created"
    for _ in range(4):
        dialogue << Tells(commands.AppendImage)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("queue_full", "queue_full"),
        ("worker_busy", "worker_busy"),
        ("backend_error", "session_failed"),
        ("server_is_overloaded", "server_is_overloaded"),
    ],
)
@pytest.mark.parametrize("until", [None, "assigned"])
def test_who_gets_no_place_is_told_why(code, told, until):
    dialogue = Dialogue(until=until) >> events.EngineLost(code=code, message="No.")
    dialogue << error(told, message="No.", type="server_error") << Closes(told)


@pytest.mark.parametrize(("until", "session_id"), [(None, None), ("assigned", None), ("live", "sess_1")])
def test_the_end_of_the_server_is_said_in_the_same_way_at_every_stage(until, session_id):
    dialogue = Dialogue(until=until) >> events.EngineLost(code="server_shutting_down", message="Bye.")
    dialogue << event("session.closed", session_id=session_id, reason="shutdown", diagnostic={"message": "Bye."})
    dialogue << Closes("server_shutting_down")


def test_close_codes_tell_the_same():
    codes = ("queue_full", "worker_busy", "rate_limit_exceeded", "session_failed", "server_shutting_down")
    assert [CLOSE_CODES.get(code, 1011) for code in codes] == [1013, 1013, 1013, 1011, 1012]


def test_a_model_that_only_answers_can_be_had_in_chat_only():
    dialogue = Dialogue(mode="audio", capabilities=TEXT) << error("unsupported_value", param="mode") << Closes("unsupported_value")
    dialogue >> ASSIGNED
    Dialogue(mode="chat", capabilities=TEXT) >> ASSIGNED << "session.queue_done"


# Beginning


def test_a_session_begins_when_its_engine_is_there():
    dialogue = Dialogue(resume_token="rt_1") >> ASSIGNED << "session.queue_done"
    dialogue >> init() << Tells(commands.StartDuplex, instructions="Be kind.", rate_hz=16_000)
    created = event("session.created", session_id=ID, mode="full_duplex", resume_token="rt_1", server_send_ts=1_000.0)
    dialogue >> READY << {**created, "metrics": {"prefill_ms": 5, "remaining_s": 300.0}}


def test_a_chat_begins_at_once():
    dialogue = Dialogue(mode="chat", until="assigned") >> init()
    dialogue << event("session.created", mode="turn_based", resume_token=MISSING)


def test_who_begins_with_sound_wants_the_session_as_it_usually_is():
    dialogue = Dialogue(until="assigned") >> append() << Tells(commands.StartDuplex, instructions="Be kind.")
    dialogue >> READY << "session.created" << commands.AppendAudio(HALF_PCM)
    Dialogue(mode="chat", until="assigned") >> ask("Hi") << "session.created" << Tells(commands.Respond, id="resp_1")


def test_sound_that_comes_before_the_engine_is_ready_waits_for_it():
    dialogue = Dialogue(until="assigned") >> init() << Tells(commands.StartDuplex) >> append()
    dialogue >> READY << "session.created" << commands.AppendAudio(HALF_PCM)


def test_a_session_begins_once():
    dialogue = Dialogue(until="assigned") >> init() << Tells(commands.StartDuplex)
    dialogue >> init() << error("unexpected_event") >> READY << "session.created" >> init() << error("unexpected_event", param="type")


@pytest.mark.parametrize(
    "word",
    [
        events.ResponseFailed(id="", message="No GPU."),
        events.EngineError(message="No GPU."),
        events.EngineLost(code="backend_error", message="No GPU."),
    ],
)
def test_an_engine_that_does_not_get_ready_ends_the_session(word):
    dialogue = Dialogue(until="assigned") >> init() << Tells(commands.StartDuplex) >> word
    dialogue << error("session_failed", message="No GPU.") << Closes("session_failed")


def test_who_does_not_begin_gives_the_place_back():
    dialogue = Dialogue(until="assigned", init_timeout_s=30).wait(29.9)
    assert dialogue.pending == []
    dialogue.wait(0.1)
    dialogue << closed("init_timeout", session_id=None) << Closes()


def test_a_beginning_that_could_not_be_used_may_come_again():
    dialogue = Dialogue(until="assigned") >> event("session.init") << error("missing_field", param="payload")
    dialogue >> init() << Tells(commands.StartDuplex)


# Mistakes


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_payload"),
        (event("response.create"), "unknown_event"),
        (event("input.append"), "missing_field"),
        (append("AAA"), "invalid_payload"),
        (append(base64_of(floats(float("nan")))), "invalid_payload"),
        (append(HALF, video_frames=["AAAA"]), "invalid_payload"),
        (ask("Hi"), "mode_mismatch"),
    ],
)
def test_an_event_that_cannot_be_used_costs_that_event(sent, code):
    dialogue = Dialogue(until="live") >> sent << error(code)
    dialogue >> append() << commands.AppendAudio(HALF_PCM)


def test_who_only_makes_mistakes_is_taken_for_broken():
    dialogue = Dialogue(until="live")
    for _ in range(CLIENT_ERRORS_LIMIT - 1):
        dialogue >> b"{" << error("invalid_json")
    dialogue >> append() << commands.AppendAudio(HALF_PCM)
    for _ in range(CLIENT_ERRORS_LIMIT - 1):
        dialogue >> b"{" << error("invalid_json")
    dialogue >> b"{" << error("invalid_json") << closed("too_many_errors", session_id=ID) << Closes("too_many_errors")


# Time


def test_a_session_is_warned_before_it_has_lasted_as_long_as_it_may():
    dialogue = Dialogue(until="live", max_duration_s=300, warning_s=30, idle_timeout_s=1_000).wait(269)
    dialogue >> events.Listening() << delta("listen", metrics={"remaining_s": MISSING})
    dialogue.wait(1) << event("session.warning", remaining_s=30.0, session_id=ID)
    dialogue >> events.Listening() << delta("listen", metrics={"remaining_s": 30.0})
    dialogue.wait(30) << closed("timeout", session_id=ID, diagnostic={"message": "The session has reached its time limit."}) << Closes()
    assert dialogue.session.end_reason == "timeout"


def test_time_counts_from_when_there_was_a_place():
    dialogue = (Dialogue(max_duration_s=100, warning_s=10, init_timeout_s=1_000) >> waiting(1) << "session.queued").wait(500)
    dialogue >> ASSIGNED << "session.queue_done"
    dialogue.wait(40) >> init() << Tells(commands.StartDuplex)
    dialogue >> READY << event("session.created", metrics={"remaining_s": 60.0})


def test_no_warning_comes_where_none_is_wanted():
    Dialogue(until="live", max_duration_s=50, warning_s=0).wait(50) << closed("timeout") << Closes()


def test_who_is_silent_gives_the_place_back():
    dialogue = Dialogue(until="live", idle_timeout_s=60).wait(59) >> append() << commands.AppendAudio(HALF_PCM)
    dialogue.wait(59)
    dialogue >> events.Listening() << delta("listen")
    dialogue.wait(1) << closed("idle_timeout", session_id=ID) << Closes()


def test_who_sends_too_fast_to_be_read_is_not_silent():
    dialogue = Dialogue(until="live", idle_timeout_s=10) >> append() << commands.AppendAudio(HALF_PCM)
    (dialogue >> ClientThrottled(15)).wait(1)
    (dialogue >> ClientThrottled(2)).wait(23)  # it does not make the other shorter
    assert dialogue.pending == []
    dialogue.wait(1) << closed("idle_timeout") << Closes()


def test_that_a_client_is_held_back_makes_up_for_no_mistake():
    dialogue = Dialogue(until="live")
    for _ in range(CLIENT_ERRORS_LIMIT - 1):
        dialogue >> b"{" << error("invalid_json")
        dialogue >> ClientThrottled(1)
    dialogue >> b"{" << error("invalid_json") << closed("too_many_errors") << Closes("too_many_errors")


# Ending


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"reason": "user_stop"}, "user_stop"),
        ({}, "client_closed"),
        ({"reason": "timeout"}, "client_closed"),
        ({"reason": "Bye <b>"}, "client_closed"),
        ({"reason": 7}, "client_closed"),
    ],
)
def test_a_client_that_is_done_is_told_so(said, reason):
    dialogue = Dialogue(until="live") >> event("session.close", **said)
    dialogue << closed(reason, session_id=ID, diagnostic=MISSING) << Closes()
    dialogue >> append() >> events.TextDelta("a", "x") >> Hangup(at=2_000)


def test_a_session_that_had_not_begun_has_no_id():
    for until in (None, "assigned"):
        Dialogue(until=until) >> event("session.close") << closed("client_closed", session_id=None) << Closes()


def test_a_client_that_is_gone_needs_no_words():
    for until in (None, "assigned", "live"):
        dialogue = Dialogue(until=until) >> Hangup(at=1_001) << Closes()
        assert dialogue.session.end_reason == "client_left"


def test_a_worker_that_dies_ends_the_session():
    dialogue = Dialogue(until="live") >> (
        events.TextDelta("a", "x"),
        events.ResponseFailed(id="a", message="gone"),
        events.EngineLost(code="backend_error", message="gone"),
    )
    dialogue << delta("text") << delta("listen", end_of_turn=True)
    dialogue << closed("backend_error", session_id=ID, diagnostic={"message": "gone"}) << Closes("backend_error")


def test_a_server_that_stops_says_so():
    dialogue = Dialogue(until="live") >> Shutdown(STOPPING, at=1_001) << closed("shutdown", session_id=ID) << Closes("server_shutting_down")
    dialogue >> events.TextDelta("a", "x")
    (
        Dialogue(until="live")
        >> events.EngineLost(code="server_shutting_down", message="Bye.")
        << closed("shutdown")
        << Closes("server_shutting_down")
    )
    Dialogue() >> Shutdown(STOPPING, at=1_001) << closed("shutdown", session_id=None) << Closes("server_shutting_down")
    assert CLOSE_CODES["server_shutting_down"] == 1012


def test_a_session_whose_key_opens_nothing_any_more_says_so():
    revoked = ClientError("It was revoked.", status=401, code="invalid_api_key")
    dialogue = Dialogue(until="live") >> Shutdown(revoked, at=1_001)
    dialogue << closed("unauthorized", session_id=ID, diagnostic={"message": "It was revoked."}) << Closes("invalid_api_key")


def test_a_client_that_comes_back_is_told_that_it_did():
    dialogue = Dialogue(until="live", max_duration_s=300).wait(10)
    dialogue >> ConnectionResumed() << event("session.resumed", session_id=ID, metrics={"remaining_s": 290.0})
