"""`Prepare`: an engine that starts early learns the request that comes if the turn ends now, if any."""

import pytest
from msgspec import structs

from antiphon.engine_api import commands, events, history
from support.protocols.realtime_dialogues import OMNI, Tells, event, responds, silence, sound

EARLY = structs.replace(OMNI, foresees=True)
STARTED, STOPPED = events.SpeechStarted("t1", 200), events.SpeechStopped("t1", 900)
BEGUN = "input_audio_buffer.speech_started"
MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hm"}]}


def foresees(**fields):
    return Tells(commands.Prepare, request=responds(**fields))


def spoken(turn_id, pcm=b""):
    return history.Message("user", (history.SpeechPart(pcm, 24_000, turn_id),))


def early(talk_to, **settings):
    """A session with a second of sound in it."""
    session = talk_to(EARLY)
    if settings:
        session.update(**settings)
    return session >> sound(silence(1_000)) << Tells(commands.AppendAudio)


def told(session, kind):
    """The commands of a type that the engine got since the last call."""
    found = [word for word in session.pending if isinstance(word, kind)]
    session.skip()
    return found


def test_what_is_foreseen_is_what_is_asked_but_for_the_sound(talk_to):
    session = early(talk_to) >> STARTED << BEGUN << foresees(history=(spoken("t1"),))
    foreseen = session.came[-1].request
    (asked,) = told(session >> STOPPED, commands.Respond)
    assert asked.history == (spoken("t1", silence(700)),)
    assert structs.replace(asked, history=foreseen.history) == foreseen


def test_an_engine_that_begins_nothing_early_is_told_nothing_beforehand(talk_to):
    talk_to(OMNI) >> sound(silence(1_000)) << Tells(commands.AppendAudio) >> STARTED << BEGUN


def test_every_answer_has_an_id_of_its_own_though_one_was_foreseen_and_never_asked_for(talk_to):
    session = early(talk_to) >> STARTED << BEGUN << foresees(id="resp_1") >> event("input_audio_buffer.clear")
    session << "input_audio_buffer.speech_stopped" << commands.ClearAudio() << "input_audio_buffer.cleared"
    (first,) = told(session >> event("response.create"), commands.Respond)
    session >> events.ResponseEnded(first.id)
    session.skip()
    (second,) = told(session >> event("response.create"), commands.Respond)
    assert first.id != second.id
    session >> events.ResponseEnded(second.id)
    session.skip()


def test_whoever_interrupts_is_foreseen_with_what_was_heard_of_the_answer(talk_to):
    session = early(talk_to).turn("t0")
    said = (
        events.AudioTranscriptDelta("resp_1", "Hi "),
        events.AudioDelta("resp_1", silence(400)),
        events.AudioTranscriptDelta("resp_1", "there"),
        events.AudioDelta("resp_1", silence(400)),
    )
    session >> said
    item_id = next(each["item"]["id"] for each in reversed(session.log) if each["type"] == "response.output_item.added")
    session.skip()
    (foreseen,) = told(session >> events.SpeechStarted("t2", 1_400), commands.Prepare)
    assert foreseen.request.id == "resp_2"
    assert foreseen.request.history[1].parts == (history.TextPart("Hi there"),)
    cut = event("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=300)
    (again,) = told(session >> cut, commands.Prepare)
    assert again.request.history[1] == history.Message("assistant", (history.TextPart("Hi "),), played_ms=300)
    assert again.request.history[2] == spoken("t2")


@pytest.mark.parametrize(
    "said",
    [
        event("session.update", session={"type": "realtime", "instructions": "Be brief."}),
        event("conversation.item.create", item=MESSAGE),
    ],
)
def test_what_changes_what_will_be_asked_is_foreseen_anew(talk_to, said):
    session = early(talk_to) >> STARTED << BEGUN << foresees()
    first = session.came[-1].request
    (again,) = told(session >> said, commands.Prepare)
    assert again.request != first
    assert again.request.id == first.id
    (asked,) = told(session >> STOPPED, commands.Respond)
    assert (asked.instructions, len(asked.history)) == (again.request.instructions, len(again.request.history))


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
def test_nothing_is_foreseen_where_turns_are_not_answered(talk_to, kind):
    settings = {"input": {"turn_detection": {"type": kind, "create_response": False}}}
    early(talk_to, audio=settings) >> STARTED << BEGUN


def test_nothing_is_foreseen_while_an_answer_goes_on_that_nobody_interrupts(talk_to):
    settings = {"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}
    session = talk_to(EARLY).update(audio=settings).turn("t0") >> sound(silence(1_000)) << Tells(commands.AppendAudio)
    session >> events.SpeechStarted("t1", 500) << BEGUN


def test_sound_that_came_faster_than_it_was_listened_to_is_a_turn_all_the_same(talk_to):
    session = talk_to(EARLY) >> sound(silence(30_000)) << Tells(commands.AppendAudio)
    session >> STARTED << BEGUN << foresees()
    (asked,) = told(session >> STOPPED, commands.Respond)
    assert asked.history == (spoken("t1"),), "the engine that told of it knows its words"
