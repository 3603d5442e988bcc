"""A person's turns: found by the engine or committed by hand, cut short, written down, answered, or never come."""

import pytest

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import Transcription
from antiphon.protocols.session import FromClient, InputTranscript, Observe
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from support.protocols.realtime_dialogues import (
    ANY,
    BEGUN_AT,
    MISSING,
    TEXT,
    Closes,
    Tells,
    base64_of,
    error,
    event,
    responds,
    silence,
    sound,
)

STARTED, STOPPED = events.SpeechStarted("t1", 200), events.SpeechStopped("t1", 900)
TURN = "input_audio_buffer.committed conversation.item.added conversation.item.done"
ANSWER = events.AudioTranscriptDelta("resp_1", "Hi"), events.AudioDelta("resp_1", silence(100)), events.ResponseEnded("resp_1")
TOLD = (
    "response.output_item.added conversation.item.added response.content_part.added response.output_audio_transcript.delta "
    "response.output_audio.delta response.output_audio.done response.output_audio_transcript.done response.content_part.done "
    "conversation.item.done response.output_item.done response.done rate_limits.updated"
)
TOLD_IN_BETA = (
    "response.output_item.added conversation.item.created response.content_part.added response.audio_transcript.delta "
    "response.audio.delta response.audio.done response.audio_transcript.done response.content_part.done "
    "response.output_item.done response.done"
)
TRANSCRIBE = {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}


def vad(**fields):
    return {"audio": {"input": {"turn_detection": {"type": "server_vad", **fields}}}}


MANUAL = {"audio": {"input": {"turn_detection": None}}}


def test_a_turn_that_the_engine_found_is_told_committed_and_answered(talk_to):
    session = talk_to() >> sound(silence(1_000)) << commands.AppendAudio(silence(1_000))
    session >> STARTED << event("input_audio_buffer.speech_started", audio_start_ms=200, item_id="item_1")
    session >> STOPPED << event("input_audio_buffer.speech_stopped", audio_end_ms=900, item_id="item_1")
    session << event("input_audio_buffer.committed", item_id="item_1", previous_item_id=None)
    item = {"id": "item_1", "object": "realtime.item", "role": "user", "content": [{"type": "input_audio", "transcript": None}]}
    session << event("conversation.item.added", previous_item_id=None, item=item)
    session << event("conversation.item.done", previous_item_id=None, item={**item, "status": "completed"})
    session << event("response.created", response={"id": "resp_1", "status": "in_progress", "output": [], "usage": None}) << responds()
    session >> ANSWER << TOLD


def test_the_same_turn_in_the_beta(talk_to):
    session = (
        talk_to(dialect="beta") >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> STARTED << "input_audio_buffer.speech_started"
    )
    session >> STOPPED << "input_audio_buffer.speech_stopped input_audio_buffer.committed conversation.item.created response.created"
    session << responds() << "rate_limits.updated" >> ANSWER << TOLD_IN_BETA


def test_the_engine_finds_its_own_turn_in_the_history(talk_to):
    pcm = bytes(range(240)) * 200
    session = talk_to() >> sound(pcm) << Tells(commands.AppendAudio) >> (STARTED, STOPPED)
    heard = history.SpeechPart(pcm[200 * 48 : 900 * 48], 24_000, "t1", None)
    *_, word = session.pending
    assert word.history == (history.Message("user", (heard,)),)
    session.skip()


def test_a_turn_starts_and_stops_on_the_clock_of_all_the_sound_of_the_session(talk_to):
    session = talk_to().turn("t1", 1_000).answer(id="resp_1")
    session >> sound(silence(1_000)) << Tells(commands.AppendAudio)
    session >> events.SpeechStarted("t2", 1_300) << event("input_audio_buffer.speech_started", audio_start_ms=1_300)
    session >> events.SpeechStopped("t2", 1_800) << event("input_audio_buffer.speech_stopped", audio_end_ms=1_800)
    assert session.session._conversation.find("item_2").audio_by_part[0].length_ms == 500
    session.skip()


def test_the_id_that_a_turn_was_given_is_its_own_while_it_is_spoken(talk_to):
    write = event("conversation.item.create", item={"id": "item_1", "type": "message", "role": "system", "content": []})
    session = talk_to() >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> STARTED << "input_audio_buffer.speech_started"
    session >> {**write, "event_id": "mine"} << error("item_create_duplicate_item_id", "mine")
    session >> STOPPED << f"input_audio_buffer.speech_stopped {TURN} response.created" << responds()


def test_the_id_of_a_turn_that_became_no_item_is_free(talk_to):
    write = event("conversation.item.create", item={"id": "item_1", "type": "message", "role": "system", "content": []})
    session = talk_to() >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> STARTED << "input_audio_buffer.speech_started"
    session >> event("input_audio_buffer.clear")
    session.skip() >> write << "conversation.item.added conversation.item.done"


def test_no_answer_comes_where_none_was_asked(talk_to):
    session = talk_to().update(**vad(create_response=False)) >> sound(silence(1_000)) << Tells(commands.AppendAudio)
    session >> (STARTED, STOPPED) << f"input_audio_buffer.speech_started input_audio_buffer.speech_stopped {TURN}"
    session >> event("response.create") << "response.created" << responds()


def test_what_an_engine_says_of_speech_out_of_turn_is_nothing(talk_to):
    session = talk_to() >> STOPPED >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> STARTED << "input_audio_buffer.speech_started"
    session >> events.SpeechStarted("t2", 300) >> events.SpeechStopped("t2", 400) >> STARTED
    session >> STOPPED << f"input_audio_buffer.speech_stopped {TURN} response.created" << responds() >> STOPPED


def test_times_beyond_what_came_are_those_of_what_came(talk_to):
    session = talk_to() >> sound(silence(500)) << Tells(commands.AppendAudio)
    session >> events.SpeechStarted("t1", 9_000) << event("input_audio_buffer.speech_started", audio_start_ms=500)
    session >> events.SpeechStopped("t1", 9_999) << event("input_audio_buffer.speech_stopped", audio_end_ms=500)
    session.skip()


# By hand


def test_sound_is_taken_without_a_word_and_committed_by_hand(talk_to):
    session = talk_to().update(**MANUAL)
    session >> sound(silence(60)) << commands.AppendAudio(silence(60)) >> sound(silence(60)) << commands.AppendAudio(silence(60))
    (
        session
        >> event("input_audio_buffer.commit")
        << commands.CommitAudio("turn_1")
        << event("input_audio_buffer.committed", item_id="item_1")
    )
    session << "conversation.item.added conversation.item.done"
    session >> event("response.create") << "response.created" << responds()


def test_a_commit_never_asks_for_an_answer_and_the_buffer_is_empty_after_it(talk_to):
    session = talk_to().update(**MANUAL) >> sound(silence(200)) << Tells(commands.AppendAudio)
    session >> event("input_audio_buffer.commit") << Tells(commands.CommitAudio) << TURN
    session >> event("input_audio_buffer.commit", event_id="mine") << error("input_audio_buffer_commit_empty", "mine")


@pytest.mark.parametrize(("ms", "shown"), [(0, "0.00"), (20, "20.00"), (99, "99.00")])
def test_too_little_sound_is_no_turn_and_is_kept(talk_to, ms, shown):
    session = talk_to().update(**MANUAL) >> sound(silence(ms))
    session.skip()
    message = (
        f"Error committing input audio buffer: buffer too small. Expected at least 100ms of audio, but buffer only has {shown}ms of audio."
    )
    session >> event("input_audio_buffer.commit") << error("input_audio_buffer_commit_empty", message=message, type="invalid_request_error")
    (
        session
        >> sound(silence(100))
        << Tells(commands.AppendAudio)
        >> event("input_audio_buffer.commit")
        << Tells(commands.CommitAudio)
        << TURN
    )
    assert session.session._conversation.find("item_1").audio_by_part[0].length_ms == ms + 100


def test_a_clear_drops_the_sound(talk_to):
    session = talk_to().update(**MANUAL) >> sound(silence(200)) << Tells(commands.AppendAudio)
    session >> event("input_audio_buffer.clear") << commands.ClearAudio() << "input_audio_buffer.cleared"
    session >> event("input_audio_buffer.commit") << error("input_audio_buffer_commit_empty")


def test_a_clear_in_the_middle_of_speech_ends_it_and_leaves_no_item(talk_to):
    session = talk_to() >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> STARTED << "input_audio_buffer.speech_started"
    session >> event("input_audio_buffer.clear") << event("input_audio_buffer.speech_stopped", item_id="item_1") << commands.ClearAudio()
    session << "input_audio_buffer.cleared" >> STOPPED


def test_a_commit_in_the_middle_of_speech_ends_the_turn_there(talk_to):
    session = talk_to() >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> STARTED << "input_audio_buffer.speech_started"
    (
        session
        >> event("input_audio_buffer.commit")
        << event("input_audio_buffer.speech_stopped", item_id="item_1")
        << commands.CommitAudio("t1")
    )
    session << event("input_audio_buffer.committed", item_id="item_1") << "conversation.item.added conversation.item.done" >> STOPPED


def test_switching_detection_off_in_the_middle_of_speech_ends_it_and_keeps_the_sound(talk_to):
    session = talk_to() >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> STARTED << "input_audio_buffer.speech_started"
    session >> event("session.update", session={"type": "realtime", **MANUAL}) << "input_audio_buffer.speech_stopped"
    session << Tells(commands.Configure, turn_detection=None) << "session.updated" >> STOPPED
    session >> event("input_audio_buffer.commit") << Tells(commands.CommitAudio) << TURN


def test_telephone_sound_reaches_the_engine_as_samples_at_its_own_rate(talk_to):
    session = talk_to() >> event("session.update", session={"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcmu"}}}})
    session << Tells(commands.Configure, rate_hz=8_000) << "session.updated"
    (
        session
        >> sound(b"\xff" * 1_600)
        << commands.AppendAudio(bytes(3_200))
        >> events.SpeechStarted("t1", 50)
        << "input_audio_buffer.speech_started"
    )
    (
        session
        >> events.SpeechStopped("t1", 150)
        << event("input_audio_buffer.speech_stopped", audio_end_ms=150)
        << TURN
        << "response.created"
    )
    session << responds()


def test_an_engine_that_reads_sound_and_does_not_listen_finds_it_in_the_history(talk_to):
    reader = Capabilities(audio_in=True)
    session = talk_to(capabilities=reader) >> sound(silence(200)) >> event("input_audio_buffer.commit") << TURN
    said = history.SpeechPart(silence(200), 24_000, None, None)
    session >> event("response.create") << "response.created" << responds(history=(history.Message("user", (said,)),))


def test_sound_for_an_engine_that_can_not_hear_is_refused_by_name(talk_to):
    message = "Unsupported content type: audio input is not supported with the 'parrot' model."
    session = talk_to(capabilities=TEXT) >> sound(silence(20)) << error("unsupported_content_type", message=message)
    session >> event("input_audio_buffer.commit") << error("input_audio_buffer_commit_empty")


def test_an_hour_of_silence_is_not_kept(talk_to):
    session = talk_to(max_duration_s=7_200).session
    for second in range(3_600):
        session.handle(FromClient(InputAudioBufferAppend(audio=silence(1_000)), BEGUN_AT + second))
    assert session._input_audio.buffer.now_ms == 3_600_000
    assert session._input_audio.buffer.buffered_bytes <= len(silence(10_000))


# Barge-in


def speaking(talk_to, **update):
    session = talk_to().update(**update) if update else talk_to()
    session.turn("t1") >> (events.AudioTranscriptDelta("resp_1", "Once upon"), events.AudioDelta("resp_1", silence(400)))
    session.skip() >> sound(silence(600)) << Tells(commands.AppendAudio)
    return session


def test_speech_cuts_off_the_answer_and_all_of_it_is_closed(talk_to):
    session = speaking(talk_to) >> events.SpeechStarted("t2", 600) << "input_audio_buffer.speech_started" << commands.Cancel("resp_1")
    place = {"response_id": "resp_1", "item_id": "item_2", "output_index": 0}
    session << event("response.output_audio.done", **place, content_index=0)
    session << event("response.output_audio_transcript.done", **place, content_index=0, transcript="Once upon")
    session << event("response.content_part.done", part={"type": "audio", "transcript": "Once upon"})
    session << event("conversation.item.done", item={"id": "item_2", "status": "incomplete"})
    session << event("response.output_item.done", item={"id": "item_2", "status": "incomplete"})
    details = {"type": "cancelled", "reason": "turn_detected"}
    session << event("response.done", response={"status": "cancelled", "status_details": details, "output": [{"id": "item_2"}]})
    session << "rate_limits.updated" >> (events.AudioDelta("resp_1", silence(100)), events.ResponseEnded("resp_1", "cancelled"))


def test_speech_leaves_the_answer_alone_where_it_must_not_interrupt(talk_to):
    session = speaking(talk_to, **vad(interrupt_response=False)) >> events.SpeechStarted("t2", 600) << "input_audio_buffer.speech_started"
    session >> events.AudioDelta("resp_1", silence(20)) << "response.output_audio.delta"
    session >> events.SpeechStopped("t2", 800) << f"input_audio_buffer.speech_stopped {TURN}"
    session << error("conversation_already_has_active_response") >> events.ResponseEnded("resp_1")
    session.skip()


def test_speech_leaves_answers_out_of_band_alone(talk_to):
    session = talk_to() >> event("response.create", response={"conversation": "none"}) << "response.created" << responds()
    session >> sound(silence(600)) << Tells(commands.AppendAudio) >> STARTED << "input_audio_buffer.speech_started"
    (
        session
        >> events.AudioTranscriptDelta("resp_1", "on")
        << "response.output_item.added response.content_part.added response.output_audio_transcript.delta"
    )


def test_the_client_says_how_much_was_heard_and_the_words_are_gone(talk_to):
    session = speaking(talk_to) >> events.SpeechStarted("t2", 600)
    session.skip() >> event("conversation.item.truncate", item_id="item_2", content_index=0, audio_end_ms=150)
    session << event("conversation.item.truncated", item_id="item_2", content_index=0, audio_end_ms=150)
    session >> event("conversation.item.retrieve", item_id="item_2")
    content = [{"type": "output_audio", "audio": base64_of(silence(150))}]
    session << event("conversation.item.retrieved", item={"id": "item_2", "content": content})
    assert "transcript" not in session.log[-1]["item"]["content"][0]


# Transcripts


def test_a_turn_is_written_down_beside_its_answer(talk_to):
    session = talk_to().update(**TRANSCRIBE).turn("t1") >> events.InputTranscriptDelta("t1", "Good ")
    place = {"item_id": "item_1", "content_index": 0}
    session << event("conversation.item.input_audio_transcription.delta", **place, delta="Good ") >> events.ResponseEnded("resp_1")
    session << "response.done rate_limits.updated"
    session >> events.InputTranscriptDone(id="t1", transcript="Good day", seconds=0.4)
    usage = {"type": "duration", "seconds": 0.4}
    session << event("conversation.item.input_audio_transcription.completed", **place, transcript="Good day", usage=usage)
    session >> event("conversation.item.retrieve", item_id="item_1")
    session << event("conversation.item.retrieved", item={"content": [{"type": "input_audio", "transcript": "Good day", "audio": ANY}]})


def test_a_transcript_that_costs_tokens_says_how_many(talk_to):
    session = talk_to().update(**TRANSCRIBE).turn("t1")
    session >> events.InputTranscriptDone(id="t1", transcript="Hi", input_tokens=9, input_audio_tokens=7, output_tokens=2)
    details = {"text_tokens": 2, "audio_tokens": 7}
    usage = {"type": "tokens", "total_tokens": 11, "input_tokens": 9, "output_tokens": 2, "input_token_details": details}
    session << event("conversation.item.input_audio_transcription.completed", usage=usage)


def test_what_could_not_be_written_down_says_why(talk_to):
    session = talk_to().update(**TRANSCRIBE).turn("t1") >> events.InputTranscriptFailed(
        id="t1", message="Too faint.", code="audio_unintelligible"
    )
    failed = "conversation.item.input_audio_transcription.failed"
    why = {"type": "transcription_error", "code": "audio_unintelligible", "message": "Too faint.", "param": MISSING}
    session << event(failed, item_id="item_1", content_index=0, error=why)
    session >> events.InputTranscriptDone(id="t1", transcript="late")


def test_the_beta_is_told_that_what_could_not_be_written_down_was_no_field_of_its_own(talk_to):
    session = talk_to(dialect="beta") >> event("session.update", session={"input_audio_transcription": {"model": "whisper-1"}})
    session.skip().turn("t1") >> events.InputTranscriptFailed(id="t1", message="Too faint.", code="audio_unintelligible")
    why = {"type": "transcription_error", "code": "audio_unintelligible", "message": "Too faint.", "param": None}
    session << event("conversation.item.input_audio_transcription.failed", error=why)


def test_speakers_are_told_apart(talk_to):
    session = talk_to().update(**TRANSCRIBE).turn("t1") >> events.InputTranscriptSegment(
        id="t1", text="Hi", start_s=0.1, end_s=0.4, speaker="A"
    )
    segment = {"item_id": "item_1", "content_index": 0, "text": "Hi", "start": 0.1, "end": 0.4, "speaker": "A", "id": ANY}
    session << event("conversation.item.input_audio_transcription.segment", **segment)


def test_transcripts_of_two_turns_may_come_in_any_order(talk_to):
    session = talk_to().update(**TRANSCRIBE, **{}).turn("t1") >> events.ResponseEnded("resp_1")
    session.skip().turn("t2") >> events.InputTranscriptDone(id="t2", transcript="two")
    session << event("conversation.item.input_audio_transcription.completed", item_id="item_2")
    session >> events.InputTranscriptDone(id="t1", transcript="one")
    session << event("conversation.item.input_audio_transcription.completed", item_id="item_1")


def test_nobody_is_told_words_that_nobody_asked_for_and_a_model_that_can_not_hear_still_gets_them(talk_to):
    session = talk_to().turn("t1") >> (events.InputTranscriptDelta("t1", "Hi"), events.InputTranscriptDone(id="t1", transcript="Hi"))
    session << Observe(InputTranscript(item_id="item_1", transcript="Hi"))  # for a recorder alone
    assert session.session._conversation.find("item_1").audio_by_part[0].transcript == "Hi"
    session >> event("conversation.item.retrieve", item_id="item_1")
    assert session.pending.pop(0)["item"]["content"][0].get("transcript") is None


def test_a_transcript_for_an_item_that_was_deleted_is_nothing(talk_to):
    session = talk_to().update(**TRANSCRIBE).turn("t1") >> event("conversation.item.delete", item_id="item_1")
    (
        session
        << "conversation.item.deleted"
        >> events.InputTranscriptDone(id="t1", transcript="gone")
        >> events.InputTranscriptDone(id="t9", transcript="what?")
    )


def test_a_transcript_that_the_engine_can_not_make_fails_for_every_turn(talk_to):
    deaf = Capabilities(audio_in=True)
    session = talk_to(capabilities=deaf).update(**TRANSCRIBE) >> sound(silence(200)) >> event("input_audio_buffer.commit") << TURN
    session << event("conversation.item.input_audio_transcription.failed", error={"code": "unsupported_parameter"})


@pytest.mark.parametrize("dialect", ["ga", "beta"])
def test_a_transcription_session_writes_down_and_never_answers(talk_to, dialect):
    session = talk_to(is_transcription=True, dialect=dialect, is_new=True) << Tells(commands.Configure, transcription=Transcription())
    session << event("session.created", session={"object": "realtime.transcription_session"})
    session.skip() >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> (STARTED, STOPPED)
    assert not [each for each in session.events() if each["type"].startswith("response")]
    session >> events.InputTranscriptDone(id="t1", transcript="Hi", seconds=0.7) << "conversation.item.input_audio_transcription.completed"
    session >> event("response.create", event_id="mine") << error("invalid_value", "mine")


# Silence


def test_a_person_who_says_nothing_is_spoken_to(talk_to):
    session = talk_to().update(**vad(idle_timeout_ms=5_000)).turn("t1", 400)
    session >> (events.AudioDelta("resp_1", silence(3_000)), events.ResponseEnded("resp_1"))
    session.skip().wait(7.9)  # three seconds of sound are heard first
    session.wait(0.1) << event("input_audio_buffer.timeout_triggered", audio_start_ms=400, audio_end_ms=400, item_id="item_3")
    session << commands.ClearAudio() << event("input_audio_buffer.committed", item_id="item_3", previous_item_id="item_2")
    session << "conversation.item.added conversation.item.done response.created" << responds("resp_2")
    session.wait(60)


def test_the_silence_begins_with_the_end_of_the_playback(talk_to):
    session = talk_to().update(**vad(idle_timeout_ms=5_000)).turn("t1", 400)
    session >> (events.AudioDelta("resp_1", silence(3_000)), events.ResponseEnded("resp_1"))
    session.skip()
    for _ in range(8):  # the client's audio goes on while it plays the response, and after it
        session.wait(0.5) >> sound(silence(500)) << Tells(commands.AppendAudio)
    session.wait(3.9).wait(0.1) << event("input_audio_buffer.timeout_triggered", audio_start_ms=400 + 2_500, audio_end_ms=4_400)
    session.skip()


def test_the_timeout_can_be_changed_while_it_runs(talk_to):
    session = talk_to().update(**vad(idle_timeout_ms=5_000)).turn("t1") >> events.ResponseEnded("resp_1")
    session.skip().wait(4).update(**vad(idle_timeout_ms=10_000)).wait(5.9)
    session.wait(0.1) << "input_audio_buffer.timeout_triggered"
    session.skip()


def test_speech_and_answers_put_the_timeout_off(talk_to):
    session = talk_to().update(**vad(idle_timeout_ms=5_000)).turn("t1") >> events.ResponseEnded("resp_1")
    session.skip().wait(4) >> sound(silence(900)) << Tells(commands.AppendAudio) >> events.SpeechStarted("t2", 500)
    session.skip().wait(60) >> events.SpeechStopped("t2", 900)
    session.skip().wait(60) >> events.ResponseEnded("resp_2") << "response.done rate_limits.updated"
    session.wait(4.9).wait(0.1) << "input_audio_buffer.timeout_triggered"
    session.skip()


def test_the_timeout_can_be_switched_off(talk_to):
    session = talk_to().update(**vad(idle_timeout_ms=5_000)).turn("t1") >> events.ResponseEnded("resp_1")
    session.skip().update(**vad(idle_timeout_ms=None)).wait(60)
    assert session.log[-1]["session"]["audio"]["input"]["turn_detection"]["idle_timeout_ms"] is None


def test_the_beta_commits_the_empty_turn_without_telling_of_the_timeout(talk_to):
    session = talk_to(dialect="beta").update(turn_detection={"type": "server_vad", "idle_timeout_ms": 5_000}).turn("t1")
    session >> events.ResponseEnded("resp_1") << "response.done"
    (
        session.wait(5)
        << commands.ClearAudio()
        << "input_audio_buffer.committed conversation.item.created response.created"
        << responds("resp_2")
    )
    session << "rate_limits.updated"


def test_the_session_ends_after_its_hour(talk_to):
    session = talk_to().wait(3_599.9).wait(0.1)
    session << error("session_expired", message="Your session hit the maximum duration of 60 minutes.") << Closes("session_expired")
    session >> event("response.create") >> sound(silence(20)) >> STARTED
    assert session.wait(3_600).pending == []


def test_an_answer_under_way_when_the_hour_is_over_is_closed(talk_to):
    session = talk_to(max_duration_s=60).turn("t1").wait(60) << commands.Cancel("resp_1")
    failed = {"status": "failed", "status_details": {"type": "failed", "error": {"code": "session_expired"}}}
    session << event("response.done", response=failed)
    session << error("session_expired", message="Your session hit the maximum duration of 1 minute.") << Closes("session_expired")
