"""Playback by the server: its events, and how much was heard before an interruption."""

from antiphon.engine_api import commands, events, history
from support.protocols.realtime_dialogues import ANY, TEXT, Tells, error, event, responds, silence, sound

WORDS = (
    events.AudioTranscriptDelta("resp_1", "Well, "),
    events.AudioDelta("resp_1", silence(400)),
    events.AudioTranscriptDelta("resp_1", "then"),
    events.AudioDelta("resp_1", silence(600)),
)
END = events.ResponseEnded("resp_1")
BEGUN = "response.output_item.added conversation.item.added response.content_part.added response.output_audio_transcript.delta"
CLOSED = (
    "response.output_audio.done response.output_audio_transcript.done response.content_part.done conversation.item.done "
    "response.output_item.done response.done"
)
PLAYED = "response.output_audio.delta"
CREATE = event("response.create")
CLEAR = event("output_audio_buffer.clear")


def buffer(kind, response_id="resp_1"):
    return event(f"output_audio_buffer.{kind}", response_id=response_id)


def truncated(ms, item_id="item_1"):
    return event("conversation.item.truncated", item_id=item_id, content_index=0, audio_end_ms=ms)


def answering(talk_to, *words, **opening):
    """A session whose first answer has begun so."""
    session = talk_to(has_output_buffer=True, **opening) >> CREATE
    return session.skip() >> words


def speaks(session, at_ms=0):
    session >> sound(silence(300)) << Tells(commands.AppendAudio)
    return session >> events.SpeechStarted("t1", at_ms) << "input_audio_buffer.speech_started"


def test_sound_begins_to_play_when_its_first_piece_is_there_and_stops_when_all_of_it_was_played(talk_to):
    session = answering(talk_to, *WORDS) << BEGUN << buffer("started") << f"{PLAYED} {PLAYED}"
    session << "response.output_audio_transcript.delta" << f"{PLAYED} {PLAYED} {PLAYED}"
    session >> END << CLOSED << "rate_limits.updated"
    session.wait(0.999)
    assert session.pending == []
    session.wait(0.002) << buffer("stopped")


def test_an_answer_that_was_played_before_its_end_came_stops_after_it(talk_to):
    session = answering(talk_to, *WORDS).skip().wait(5)
    session >> END << CLOSED << buffer("stopped") << "rate_limits.updated"


def test_an_engine_that_is_slower_than_time_does_not_make_the_rest_older(talk_to):
    session = answering(talk_to, *WORDS).skip().wait(5)
    session >> (events.AudioDelta("resp_1", silence(400)), END)
    session.skip().wait(0.399)
    assert session.pending == []
    session.wait(0.002) << buffer("stopped")


def test_an_answer_in_writing_plays_nothing(talk_to):
    session = answering(talk_to, events.TextDelta("resp_1", "Hi"), END, capabilities=TEXT)
    assert not [each for each in session.events() if each["type"].startswith("output_audio_buffer")]


def test_speech_cuts_what_plays_where_it_was_heard_to_and_ends_the_answer(talk_to):
    session = answering(talk_to, *WORDS).skip().wait(0.5)
    speaks(session) << buffer("cleared") << truncated(500) << commands.Cancel("resp_1") << CLOSED << "rate_limits.updated"
    assert session.log[-2]["response"]["status"] == "cancelled"
    session.wait(5) >> events.SpeechStopped("t1", 200)
    *_, respond = session.pending
    assert [each.parts for each in respond.history if each.role == "assistant"] == [(history.TextPart("Well, then"),)]
    session.skip()


def test_speech_cuts_an_answer_that_is_over_and_still_plays(talk_to):
    session = answering(talk_to, *WORDS, END).skip().wait(0.25)
    speaks(session) << buffer("cleared") << truncated(250)
    (
        session
        >> event("conversation.item.retrieve", item_id="item_1")
        << event("conversation.item.retrieved", item={"content": [{"type": "output_audio", "audio": ANY}]})
    )
    session.wait(5) >> events.SpeechStopped("t1", 200)
    *_, respond = session.pending
    assert [each.parts for each in respond.history if each.role == "assistant"] == [(history.TextPart("Well, "),)]
    session.skip()


def test_speech_after_the_last_of_it_was_played_cuts_nothing(talk_to):
    session = answering(talk_to, *WORDS, END).skip().wait(1.5).skip()
    speaks(session)


def test_speech_that_may_not_interrupt_lets_it_play_on(talk_to):
    session = talk_to(has_output_buffer=True)
    session.update(audio={"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}})
    session >> CREATE
    session.skip() >> (*WORDS, END)
    session.skip()
    speaks(session).wait(1.1) << buffer("stopped")


def test_a_client_that_clears_is_answered_and_hears_no_more_of_that_answer(talk_to):
    session = answering(talk_to, *WORDS).skip().wait(0.1)
    session >> CLEAR << buffer("cleared") << truncated(100)
    session >> events.AudioDelta("resp_1", silence(400)) >> END << CLOSED << "rate_limits.updated"
    session.wait(5) >> CLEAR << buffer("cleared")


def test_clearing_an_empty_buffer_is_answered(talk_to):
    talk_to(has_output_buffer=True) >> CLEAR << buffer("cleared", "")


def test_without_a_buffer_of_the_servers_there_is_nothing_to_clear(talk_to):
    talk_to() >> CLEAR << error("invalid_value")


def test_the_next_answer_plays_after_the_one_before_it_and_is_dropped_with_it(talk_to):
    session = answering(talk_to, *WORDS, END).skip() >> CREATE
    session.skip() >> (
        events.AudioTranscriptDelta("resp_2", "And"),
        events.AudioDelta("resp_2", silence(200)),
        events.ResponseEnded("resp_2"),
    )
    assert "output_audio_buffer.started" not in [each["type"] for each in session.events()]
    session.wait(1.1) << buffer("stopped") << buffer("started", "resp_2")
    session.wait(0.2) << buffer("stopped", "resp_2")

    session >> CREATE
    session.skip() >> (events.AudioDelta("resp_3", silence(500)), events.ResponseEnded("resp_3"))
    session.skip() >> CREATE
    session.skip() >> (events.AudioDelta("resp_4", silence(500)), events.ResponseEnded("resp_4"))
    session.skip().wait(0.2)
    speaks(session) << buffer("cleared", "resp_3") << truncated(200, "item_3") << truncated(0, "item_4")


def test_an_answer_out_of_band_is_played_in_its_turn_and_cut_without_a_word(talk_to):
    session = answering(talk_to, *WORDS).skip()
    session >> event("response.create", response={"conversation": "none"})
    session.skip() >> (events.AudioDelta("resp_2", silence(300)), events.ResponseEnded("resp_2"))
    session.skip() >> END
    session.skip().wait(1.1) << buffer("stopped") << buffer("started", "resp_2")
    speaks(session) << buffer("cleared", "resp_2")


def test_an_item_that_was_deleted_while_it_played_is_cut_without_a_word(talk_to):
    session = answering(talk_to, *WORDS, END).skip()
    session >> event("conversation.item.delete", item_id="item_1") << "conversation.item.deleted"
    speaks(session) << buffer("cleared")


def test_how_sound_is_coded_is_not_the_clients_to_say(talk_to):
    law = {"format": {"type": "audio/pcmu"}}
    session = talk_to(has_output_buffer=True)
    session >> event("session.update", session={"type": "realtime", "audio": {"input": law, "output": law}})
    [updated] = session.events()
    formats = [updated["session"]["audio"][way]["format"] for way in ("input", "output")]
    assert formats == [{"type": "audio/pcm", "rate": 24_000}] * 2
    (
        session
        >> event("response.create", response={"audio": {"output": law}})
        << event("response.created", response={"audio": {"output": {"format": {"type": "audio/pcm", "rate": 24_000}}}})
    )
    session << responds()
