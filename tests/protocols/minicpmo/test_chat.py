"""In chat questions are answered one after the other, each with what was sent with it and nothing else."""

import pytest
from msgspec import structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import Sampling, Voice
from antiphon.protocols.minicpmo.chat import WAITING_QUESTIONS_LIMIT
from support.protocols.minicpmo_dialogues import (
    ALL,
    HALF,
    HALF_PCM,
    TEXT,
    Dialogue,
    all_spoken_of as all_spoken_of,
    ask,
    base64_of,
    closed,
    delta,
    error,
    event,
    floats,
    init,
    jpeg,
    pcm,
)
from support.protocols.realtime_dialogues import MISSING, Closes, Tells

HI = (history.Message("user", (history.TextPart("Hi"),)),)
PICTURE = {"type": "image", "data": base64_of(jpeg())}
SOUND = {"type": "audio", "data": HALF}
ANOTHER = base64_of(floats(0.1))
FILM = {"type": "video", "data": "AAEC", "stack_frames": 2}


def begun(**opening):
    return Dialogue(mode="chat", until="live", **opening)


def user(*content):
    return {"role": "user", "content": list(content)}


def system(*content):
    return {"role": "system", "content": list(content)}


def done(**fields):
    return event("response.done", **fields)


# Questions


def test_a_question_is_answered_as_it_is_made():
    dialogue = begun() >> ask("Hi", input_id="mine")
    dialogue << commands.Respond(id="resp_1", history=HI, instructions="Be kind.", sampling=Sampling(max_tokens=256))
    dialogue >> events.TextDelta("resp_1", "Hel") << delta("text", text="Hel", response_id="resp_1", input_id="mine", session_id="sess_1")
    dialogue.wait(0.5)
    dialogue >> (events.TextDelta("resp_1", "lo"), events.ResponseEnded("resp_1")) << delta("text", text="lo")
    dialogue << done(
        session_id="sess_1",
        response_id="resp_1",
        input_id="mine",
        text="Hello",
        audio=None,
        reason="turn_end",
        metrics={"wall_clock_ms": 500.0},
    )


def test_an_answer_that_is_not_streamed_comes_whole():
    dialogue = begun() >> ask("Hi", streaming=False, tts={"enabled": True}) << Tells(commands.Respond, whole=True)
    dialogue >> (
        events.AudioTranscriptDelta("resp_1", "A"),
        events.AudioDelta("resp_1", pcm(16384)),
        events.AudioTranscriptDelta("resp_1", "B"),
        events.AudioDelta("resp_1", pcm(0)),
    )
    dialogue >> events.ResponseEnded("resp_1") << done(text="AB", audio=base64_of(floats(0.5, 0)))


def test_an_answer_aloud_comes_with_its_words():
    dialogue = begun() >> ask("Hi", use_tts_template=True) << Tells(commands.Respond, voice=Voice(rate_hz=24_000))
    dialogue >> (events.AudioTranscriptDelta("resp_1", "A"), events.AudioDelta("resp_1", pcm(16384)), events.ResponseEnded("resp_1"))
    dialogue << delta("text", text="A") << delta("audio", audio=base64_of(floats(0.5))) << done(text="A", audio=None)


def test_a_refusal_is_an_answer():
    dialogue = begun() >> ask("Hi") << Tells(commands.Respond) >> (events.RefusalDelta("resp_1", "No."), events.ResponseEnded("resp_1"))
    dialogue << delta("text", text="No.") << done(text="No.", reason="turn_end")


def test_nothing_is_kept_from_one_question_to_the_next():
    dialogue = begun() >> ask("Hi") << Tells(commands.Respond, history=HI) >> events.ResponseEnded("resp_1") << done(text="")
    dialogue >> ask("Hi") << Tells(commands.Respond, id="resp_2", history=HI)


def test_questions_are_answered_in_their_order():
    dialogue = begun() >> ask("Hi") << Tells(commands.Respond, id="resp_1") >> ask("A") >> ask("B")
    dialogue >> events.ResponseEnded("resp_1") << done(response_id="resp_1", input_id="input_1") << Tells(commands.Respond, id="resp_2")
    dialogue >> events.ResponseEnded("resp_2") << done(response_id="resp_2", input_id="input_2") << Tells(commands.Respond, id="resp_3")


def test_not_too_many_wait():
    dialogue = begun() >> ask("Hi") << Tells(commands.Respond)
    for _ in range(WAITING_QUESTIONS_LIMIT):
        dialogue >> ask("Hi")
    dialogue >> ask("Hi") << error("too_many_inputs", type="rate_limit_error")


def test_a_client_may_name_its_answer():
    dialogue = begun() >> ask("Hi", response_id="mine") << Tells(commands.Respond, id="resp_1") >> events.TextDelta("resp_1", "x")
    dialogue << delta("text", response_id="mine") >> events.ResponseEnded("resp_1") << done(response_id="mine")


def test_words_of_other_answers_are_not_told():
    dialogue = (
        begun()
        >> events.TextDelta("resp_0", "x")
        >> ask("Hi")
        << Tells(commands.Respond)
        >> (events.TextDelta("resp_0", "x"), events.ResponseEnded("resp_0"))
    )
    dialogue >> (events.TextDelta("resp_1", ""), events.AudioDelta("resp_1", b""), events.ReasoningDelta("resp_1", "hm"))


# What the model is told


@pytest.mark.parametrize(
    ("messages", "payload", "told"),
    [
        (["Hi"], {}, "Be kind."),
        (["Hi"], {"system_prompt": "Sing."}, "Sing."),
        (["Hi"], {"system_prompt": ""}, ""),
        ([{"role": "system", "content": "Be brief."}, "Hi"], {"system_prompt": "Sing."}, "Be brief."),
        ([system({"type": "text", "text": "A"}, {"type": "text", "text": "B"}), {"role": "system", "content": "C"}, "Hi"], {}, "A\nB\n\nC"),
    ],
)
def test_what_stands_before_the_conversation_is_what_the_model_is_told(messages, payload, told):
    dialogue = Dialogue(mode="chat", until="assigned") >> init(**payload) << "session.created"
    dialogue >> ask(*messages) << Tells(commands.Respond, instructions=told, history=HI)


def test_what_it_is_told_later_stays_where_it_is():
    dialogue = begun() >> ask("Hi", {"role": "assistant", "content": "Yes?"}, {"role": "system", "content": "Be brief."}, "So")
    texts = [("user", "Hi"), ("assistant", "Yes?"), ("system", "Be brief."), ("user", "So")]
    dialogue << Tells(commands.Respond, history=tuple(history.Message(role, (history.TextPart(text),)) for role, text in texts))


def test_what_a_system_message_shows_belongs_to_the_conversation():
    dialogue = begun() >> ask(system({"type": "text", "text": "This is you:"}, PICTURE), "Hi")
    picture = history.ImagePart(url=f"data:image/jpeg;base64,{base64_of(jpeg())}")
    shown = history.Message("system", (history.TextPart("This is you:"), picture))
    dialogue << Tells(commands.Respond, instructions="Be kind.", history=(shown, *HI))


def test_there_must_be_something_to_answer():
    begun() >> ask({"role": "system", "content": "Be brief."}) << error("invalid_payload", param="input.messages")


def test_messages_have_pictures_and_sound_and_films():
    dialogue = begun() >> ask(user({"type": "text", "text": "See"}, PICTURE, SOUND, FILM))
    parts = (
        history.TextPart("See"),
        history.ImagePart(url=f"data:image/jpeg;base64,{base64_of(jpeg())}"),
        history.SpeechPart(HALF_PCM, 16_000),
        history.VideoPart("AAEC", 2),
    )
    dialogue << Tells(commands.Respond, history=(history.Message("user", parts),))


@pytest.mark.parametrize("part", [PICTURE, SOUND, FILM, {"type": "audio", "data": base64_of(b"RIFF\0\0\0\0WAVE")}])
def test_what_the_engine_does_not_take_is_refused_by_name(part):
    dialogue = begun(capabilities=TEXT) >> ask(system({"type": "text", "text": "Hm"}), user({"type": "text", "text": "See"}, part))
    dialogue << error("unsupported_parameter", param="input.messages[1].content[1]")
    dialogue >> ask("Hi") << Tells(commands.Respond)


def test_who_cannot_speak_is_not_asked_to():
    begun(capabilities=TEXT) >> ask("Hi", tts={"enabled": True}) << error("unsupported_parameter", param="input.tts.enabled")


# How it is to answer


def test_how_to_answer_is_told_as_far_as_it_is_not_usual():
    dialogue = begun() >> ask("Hi", generation={"max_new_tokens": 9, "length_penalty": 1.1}, image={"max_slice_nums": 1}, omni_mode=False)
    (
        dialogue
        << Tells(commands.Respond, sampling=Sampling(max_tokens=9))
        >> events.ResponseEnded("resp_1", "length")
        << done(reason="length")
    )
    more = {"generation": {"length_penalty": 1.5}, "image": {"max_slice_nums": 4}, "omni_mode": True, "enable_thinking": True}
    dialogue >> ask(user(PICTURE, {"type": "text", "text": "?"}), **more)
    extra = {"length_penalty": 1.5, "max_slice_nums": 4, "omni_mode": True, "enable_thinking": True}
    picture = history.ImagePart(url=f"data:image/jpeg;base64,{base64_of(jpeg())}", detail="high")
    dialogue << Tells(
        commands.Respond,
        sampling=Sampling(max_tokens=256, extra=extra),
        history=(history.Message("user", (picture, history.TextPart("?"))),),
    )


@pytest.mark.parametrize(
    ("efforts", "thinks", "effort", "extra"),
    [
        (("low", "medium", "high"), True, "medium", {}),
        (("low", "max"), True, "max", {}),
        (("none", "low"), False, "none", {}),
        (("low",), False, None, {}),
        (("none", "low"), None, None, {}),
        ((), True, None, {"enable_thinking": True}),
    ],
)
def test_thinking_is_an_effort_where_the_engine_knows_efforts(efforts, thinks, effort, extra):
    dialogue = begun(capabilities=structs.replace(ALL, efforts=efforts)) >> ask("Hi", enable_thinking=thinks)
    dialogue << Tells(commands.Respond, reasoning_effort=effort, sampling=Sampling(max_tokens=256, extra=extra))


@pytest.mark.parametrize(
    ("messages", "tts", "payload"),
    [
        (["Hi"], {"ref_audio_data": HALF}, {}),
        (["Hi"], {}, {"ref_audio": HALF}),
        ([system({"type": "text", "text": "Speak so:"}, SOUND), "Hi"], {}, {"tts_ref_audio": ANOTHER}),
        ([system({"type": "audio", "data": ANOTHER}), "Hi"], {"ref_audio_data": HALF}, {}),
        ([system(SOUND), system({"type": "text", "text": "Be brief."}), "Hi"], {}, {}),
        (["Hi"], {}, {"ref_audio": ANOTHER, "tts_ref_audio": HALF}),
    ],
)
def test_the_voice_to_answer_with_is_found_wherever_clients_put_it(messages, tts, payload):
    dialogue = Dialogue(mode="chat", until="assigned") >> init(**payload) << "session.created"
    dialogue >> ask(*messages, tts={"enabled": True, **tts}) << Tells(commands.Respond, voice=Voice(rate_hz=24_000, reference=HALF_PCM))


def test_that_the_voice_cannot_be_had_is_noted():
    dialogue = begun(capabilities=structs.replace(ALL, clones=False)) >> ask("Hi", tts={"enabled": True, "ref_audio_data": HALF})
    dialogue << Tells(commands.Respond, voice=Voice(rate_hz=24_000)) >> events.ResponseEnded("resp_1")
    dialogue << done(metrics={"notes": ["tts.ref_audio_data: this model speaks in its own voice"]})


# Ends


def test_an_answer_that_fails_is_told_and_over():
    dialogue = begun() >> ask("Hi") << Tells(commands.Respond) >> ask("A") >> events.TextDelta("resp_1", "x") << delta("text")
    dialogue >> events.ResponseFailed(id="resp_1", message="Too long.", status=400, code="context_length_exceeded", param="input")
    dialogue << error("context_length_exceeded", message="Too long.", param="input") << done(text="x", reason="error")
    dialogue << Tells(commands.Respond, id="resp_2")
    dialogue >> events.ResponseFailed(id="resp_2", message="No GPU.", param="model", code=None)
    dialogue << error("inference_failed", param=MISSING) << done(text="", reason="error")


def test_a_picture_that_is_not_to_be_cut_is_not_looked_at_closely():
    dialogue = begun() >> ask(user(PICTURE), image={"max_slice_nums": 1})
    picture = history.ImagePart(url=f"data:image/jpeg;base64,{base64_of(jpeg())}")
    dialogue << Tells(commands.Respond, history=(history.Message("user", (picture,)),))


def test_what_is_measured_and_spent_stands_at_the_end_of_an_answer():
    used = events.Usage(id="resp_1", input_tokens=5, output_tokens=2)
    dialogue = (
        begun()
        >> ask("Hi")
        << Tells(commands.Respond)
        >> (events.EngineMetrics("resp_1", {"prefill_ms": 3}), events.TextDelta("resp_1", "x"), used)
    )
    dialogue << delta("text", metrics={"prefill_ms": 3})
    dialogue >> events.ResponseEnded("resp_1") << done(metrics={"prefill_ms": 3}, usage={"total_tokens": 7})
    dialogue >> ask("Hi") << Tells(commands.Respond) >> (structs.replace(used, id="resp_2"), events.AudioDelta("resp_2", pcm(1)))
    dialogue << delta("audio", usage={"total_tokens": 14}) >> events.ResponseEnded("resp_2") << done(usage={"total_tokens": 14})


def test_a_session_that_ends_stops_its_answer():
    dialogue = begun() >> ask("Hi") << Tells(commands.Respond) >> event("session.close")
    dialogue << closed("client_closed", usage=MISSING) << commands.Cancel("resp_1") << Closes()


def test_a_long_answer_is_no_silence_of_the_client():
    dialogue = begun(idle_timeout_s=60, max_duration_s=3600) >> ask("Hi") << Tells(commands.Respond)
    dialogue.wait(500)
    dialogue >> events.ResponseEnded("resp_1") << done()
    dialogue.wait(59)
    assert dialogue.pending == []
    dialogue.wait(1) << closed("idle_timeout") << Closes()
