"""In full duplex, the engine gets the client's audio and pictures, and speaks whenever it likes."""

import pytest
from msgspec import structs

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import Voice
from antiphon.protocols.minicpmo.duplex import FAILURES_LIMIT
from antiphon.protocols.session import InputTranscript, Observe
from support.protocols.minicpmo_dialogues import (
    ALL,
    ASSIGNED,
    HALF,
    HALF_PCM,
    READY,
    Dialogue,
    all_spoken_of as all_spoken_of,
    append,
    base64_of,
    closed,
    delta,
    floats,
    init,
    jpeg,
    pcm,
)
from support.protocols.realtime_dialogues import MISSING, Closes, Tells

USED = events.Usage(id="a", input_tokens=50, output_tokens=10, input_audio_tokens=30, input_image_tokens=5, output_audio_tokens=4)
USAGE = {
    "total_tokens": 60,
    "input_tokens": 50,
    "output_tokens": 10,
    "input_token_details": {"text_tokens": 15, "audio_tokens": 30, "vision_tokens": 5},
    "output_token_details": {"text_tokens": 6, "audio_tokens": 4},
}


def can(**capabilities):
    return structs.replace(ALL, **capabilities)


# What the engine is told


def test_the_engine_learns_how_the_session_is_to_be():
    payload = {
        "instructions": "Sing.",
        "config": {"length_penalty": 1.2},
        "voice": {"ref_audio": HALF, "tts_ref_audio": base64_of(floats(0.25))},
    }
    wanted = commands.StartDuplex(
        instructions="Sing.",
        rate_hz=16_000,
        has_video=True,
        voice=Voice(rate_hz=24_000, reference=pcm(8192)),
        reference_audio=HALF_PCM,
        options={"length_penalty": 1.2},
    )
    Dialogue(until="assigned") >> init(**payload) << wanted


def test_one_recording_serves_for_both_voices():
    (
        Dialogue(until="assigned")
        >> init(ref_audio_base64=HALF)
        << Tells(commands.StartDuplex, reference_audio=HALF_PCM, voice=Voice(rate_hz=24_000, reference=HALF_PCM))
    )


@pytest.mark.parametrize(
    ("capabilities", "payload", "voice", "notes"),
    [
        (ALL, {"use_tts": False}, None, MISSING),
        (can(audio_out=False), {}, None, ["use_tts: this model does not speak"]),
        (can(clones=False), {"ref_audio": HALF}, Voice(rate_hz=24_000), ["voice: this model speaks in its own voice"]),
    ],
)
def test_what_the_engine_cannot_do_is_noted(capabilities, payload, voice, notes):
    dialogue = (
        Dialogue(capabilities=capabilities, until="assigned")
        >> init(**payload)
        << Tells(commands.StartDuplex, voice=voice, reference_audio=None)
    )
    dialogue >> READY << {"type": "session.created", "metrics": {"notes": notes}}


def test_pictures_and_the_wish_for_silence_go_before_the_sound_that_they_belong_to():
    dialogue = Dialogue(until="live") >> append(video_frames=[base64_of(jpeg())] * 2, force_listen=True, max_slice_nums=4)
    (
        dialogue
        << commands.AppendImage(jpeg(), 4)
        << commands.AppendImage(jpeg(), 4)
        << commands.ForceListen()
        << commands.AppendAudio(HALF_PCM)
    )


def test_pictures_are_cut_as_was_said_at_the_beginning():
    dialogue = Dialogue(until="assigned") >> init(max_slice_nums=3) << Tells(commands.StartDuplex) >> READY << "session.created"
    dialogue >> append(frames=[base64_of(jpeg())]) << commands.AppendImage(jpeg(), 3) << commands.AppendAudio(HALF_PCM)


def test_no_sound_is_not_heard():
    Dialogue(until="live") >> append("", force_listen=True) << commands.ForceListen()


@pytest.mark.parametrize(
    ("opening", "note"),
    [
        ({"mode": "audio"}, "video_frames: ignored in mode=audio"),
        ({"capabilities": can(sees=False)}, "video_frames: this model does not see"),
    ],
)
def test_pictures_that_nobody_looks_at_are_noted_once(opening, note):
    dialogue = Dialogue(until="assigned", **opening) >> init() << Tells(commands.StartDuplex, has_video=False) >> READY << "session.created"
    for notes in ([note], MISSING):
        dialogue >> append(frames=[base64_of(jpeg())]) << commands.AppendAudio(HALF_PCM)
        dialogue >> events.Listening() << delta("listen", metrics={"notes": notes})


# What the engine says


def test_the_engine_speaks_and_then_listens():
    dialogue = Dialogue(until="live") >> (
        events.AudioTranscriptDelta("a", "Hel"),
        events.AudioDelta("a", pcm(16384, -32768)),
        events.AudioTranscriptDelta("a", "lo"),
        events.ResponseEnded("a"),
    )
    dialogue << delta("text", text="Hel", response_id="resp_1", session_id="sess_1", server_send_ts=1_000.0, usage=MISSING)
    dialogue << delta("audio", audio=base64_of(floats(0.5, -1)), response_id="resp_1") << delta("text", text="lo", response_id="resp_1")
    dialogue << delta("listen", text="", end_of_turn=True, interrupted=MISSING, response_id="resp_1")
    (
        dialogue
        >> (events.TextDelta("b", "And"), events.RefusalDelta("b", " no"))
        << delta("text", response_id="resp_2")
        << delta("text", text=" no")
    )


def test_the_engine_listens():
    dialogue = Dialogue(until="live") >> events.Listening() << delta("listen", text="", end_of_turn=MISSING, response_id="resp_1")
    dialogue >> events.TextDelta("a", "x") << delta("text", response_id="resp_1")


def test_a_turn_that_is_cut_off_is_told_from_one_that_ends():
    dialogue = Dialogue(until="live") >> (events.TextDelta("a", "x"), events.ResponseEnded("a", "cancelled"))
    dialogue << delta("text") << delta("listen", end_of_turn=True, interrupted=True)


@pytest.mark.parametrize(
    "words",
    [
        (events.Listening("a"), events.ResponseEnded("a")),
        (events.ResponseEnded("a"), events.Listening("a")),
        (events.ResponseEnded("a", "cancelled"), events.Listening()),
        (events.Listening("a"), events.ResponseEnded("a"), events.Listening()),
    ],
)
def test_that_it_listens_again_is_told_once(words):
    dialogue = Dialogue(until="live") >> (events.TextDelta("a", "x"), *words) << delta("text") << delta("listen", end_of_turn=True)
    dialogue >> append() << Tells(commands.AppendAudio) >> events.Listening() << delta("listen", end_of_turn=MISSING)


def test_a_response_of_no_words_has_no_end():
    Dialogue(until="live") >> (events.ResponseEnded("a"), events.TextDelta("b", ""), events.AudioDelta("b", b""), events.ResponseEnded("b"))


def test_an_answer_names_the_last_input():
    dialogue = (
        Dialogue(until="live") >> append() << Tells(commands.AppendAudio) >> events.Listening() << delta("listen", input_id="input_1")
    )
    dialogue >> append(input_id="mine") << Tells(commands.AppendAudio) >> events.Listening() << delta("listen", input_id="mine")


def test_a_client_may_name_the_next_answer():
    dialogue = (
        Dialogue(until="live")
        >> append(response_id="mine")
        << Tells(commands.AppendAudio)
        >> events.TextDelta("a", "x")
        << delta("text", response_id="mine")
    )
    dialogue >> events.TextDelta("a", "y") << delta("text", response_id="mine")


def test_what_was_measured_goes_with_what_comes_next():
    dialogue = Dialogue(until="live") >> (
        events.EngineMetrics("a", {"kv_cache_length": 7}),
        events.EngineMetrics("a", {"prefill_ms": 1}),
        events.TextDelta("a", "x"),
    )
    dialogue << delta("text", metrics={"kv_cache_length": 7, "prefill_ms": 1})
    dialogue >> events.TextDelta("a", "y") << delta("text", metrics={"kv_cache_length": MISSING})


def test_what_it_costs_stands_where_clients_read_it():
    dialogue = Dialogue(until="live") >> (
        USED,
        events.AudioDelta("a", pcm(0)),
        events.ResponseEnded("a"),
        structs.replace(USED, id="b"),
        events.AudioDelta("b", pcm(0)),
    )
    dialogue << delta("audio", usage=USAGE) << delta("listen", usage=USAGE) << delta("audio", usage={"total_tokens": 120})
    dialogue >> {"type": "session.close"} << closed("client_closed", usage={"input_tokens": 100, "output_tokens": 20}) << Closes()


def test_trouble_with_the_hearing_is_noted():
    dialogue = Dialogue(until="live") >> (events.EngineError(message="The microphone is silent."), events.Listening())
    dialogue << delta("listen", metrics={"notes": ["The microphone is silent."]})


def test_words_that_are_no_business_of_the_client_are_not_told():
    heard = (
        events.InputTranscriptFailed(id="t", message="Too faint."),
        events.SpeechStarted("t", 0),
        events.ReasoningDelta("a", "hm"),
        events.ToolCallStarted("a", "c", "f"),
        READY,
        ASSIGNED,
    )
    Dialogue(until="live") >> heard


def test_an_answer_that_fails_is_over_and_the_session_is_not():
    dialogue = Dialogue(until="live") >> (events.TextDelta("a", "x"), events.ResponseFailed(id="a", message="Upstream fell silent."))
    failure = {"failure": {"code": "server_error", "message": "Upstream fell silent."}}
    dialogue << delta("text") << delta("listen", end_of_turn=True, metrics=failure, response_id="resp_1")
    dialogue >> append() << Tells(commands.AppendAudio)


def test_one_answer_after_another_that_fails_ends_the_session():
    dialogue = Dialogue(until="live")
    for id in range(FAILURES_LIMIT - 1):
        dialogue >> events.ResponseFailed(id=str(id), message="No.") << delta("listen", end_of_turn=True)
    dialogue >> (events.TextDelta("x", "y"), events.ResponseEnded("x")) << delta("text") << delta("listen")
    for id in range(FAILURES_LIMIT - 1):
        dialogue >> events.ResponseFailed(id=str(id), message="No.") << delta("listen", end_of_turn=True)
    dialogue >> events.ResponseFailed(id="z", message="No.") << delta("listen")
    dialogue << closed("backend_error", diagnostic={"message": "No."}) << Closes("backend_error")


def test_words_that_the_engine_heard_are_for_a_recorder_alone():
    session = Dialogue(until="live") >> events.InputTranscriptDone(id="turn_1", transcript="Hi", start_ms=300, end_ms=1500)
    session << Observe(InputTranscript(transcript="Hi", start_ms=300, end_ms=1500))
