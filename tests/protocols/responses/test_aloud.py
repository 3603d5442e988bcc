"""Spoken responses: audio events beside those of the text."""

import base64

import pytest
from openai.types.responses import ResponseStreamEvent

from antiphon.audio import streaming_wav_header
from antiphon.engine_api import events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import Voice
from antiphon.errors import ClientError
from antiphon.protocols.responses.request import engine_request
from antiphon.wire.responses import items, parts
from antiphon.wire.responses.request import AudioOptions, VoiceReference
from support.protocols.responses_dialogues import ID, Dialogue, order_for, session_for
from support.wire.adapters import adapter

SPEAKS = Capabilities(audio_out=True, voices=("low", "high"), tools=True)
ALOUD = {"modalities": ["text", "audio"], "capabilities": SPEAKS}


def spoken(*words, **fields):
    """The events of an answer of words and their audio."""
    said = [
        word
        for number, text in enumerate(words)
        for word in (events.AudioTranscriptDelta(ID, text), events.AudioDelta(ID, bytes([number, 0]) * 2))
    ]
    return Dialogue(session_for(**ALOUD | fields)).said(*said, events.ResponseEnded(ID))


def test_the_words_of_a_spoken_answer_are_its_text_and_its_transcript():
    told = spoken("One", " two.")
    assert told.types == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *("output_text.delta", "audio.transcript.delta", "audio.delta") * 2,
        "audio.done",
        "audio.transcript.done",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in told.events] == list(range(len(told.events)))
    last = told.events[-1]["response"]
    assert [(part["type"], part["text"]) for part in last["output"][0]["content"]] == [("output_text", "One two.")]


def test_the_official_types_read_the_events_of_sound():
    theirs = adapter(ResponseStreamEvent)
    for event in spoken("One").events:
        if ".audio." in event["type"]:
            assert theirs.validate_python(event).type == event["type"]
            assert event["response_id"] == ID


def test_sound_is_told_as_it_comes_and_as_wav_behind_a_head():
    bare, headed = (spoken("One", " two.", audio=AudioOptions(format=kind)) for kind in ("pcm16", "wav"))
    sounds = [
        b"".join(base64.b64decode(event["delta"]) for event in told.events if event["type"] == "response.audio.delta")
        for told in (bare, headed)
    ]
    assert sounds == [b"\0\0\0\0\1\0\1\0", streaming_wav_header(24_000) + b"\0\0\0\0\1\0\1\0"]


def test_an_answer_that_is_cut_off_in_the_middle_of_its_sound_is_whole_in_its_events():
    told = Dialogue(session_for(**ALOUD)).said(
        events.AudioTranscriptDelta(ID, "One"), events.AudioDelta(ID, b"\0\0"), events.ResponseEnded(ID, "length")
    )
    assert told.types[-6:] == [
        "audio.done",
        "audio.transcript.done",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]


def test_what_an_engine_says_is_text_where_nobody_asked_for_sound():
    told = Dialogue(session_for()).said(events.AudioTranscriptDelta(ID, "One"), events.AudioDelta(ID, b"\0\0"), events.ResponseEnded(ID))
    assert not [kind for kind in told.types if kind.startswith("audio")]
    assert told.events[-1]["response"]["output"][0]["content"][0]["text"] == "One"


def test_the_engine_is_asked_to_speak_with_the_voice_that_was_asked_for():
    def voice(**fields):
        return engine_request(order_for(**{"capabilities": SPEAKS} | fields)).respond.voice

    assert voice() is None and voice(modalities=["text"]) is None
    assert voice(modalities=["text", "audio"]) == Voice(None, 24_000)
    assert voice(audio=AudioOptions(voice="high")) == Voice("high", 24_000)
    assert voice(audio=AudioOptions(voice=VoiceReference(id="low"))) == Voice("low", 24_000)
    assert voice(modalities=["text"], audio=AudioOptions(voice="high")) is None


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"capabilities": Capabilities()}, "unsupported_parameter", "modalities"),
        ({"capabilities": Capabilities(), "modalities": None, "audio": AudioOptions(voice="low")}, "unsupported_parameter", "audio"),
        ({"modalities": ["audio"]}, "invalid_value", "modalities"),
        ({"stream": False}, None, "modalities"),
        ({"audio": AudioOptions(voice="nobody")}, "unsupported_value", "audio.voice"),
        ({"audio": AudioOptions(format="aac")}, "unsupported_value", "audio.format"),
    ],
)
def test_sound_that_cannot_be_had_is_refused_by_name(fields, code, param):
    with pytest.raises(ClientError) as caught:
        engine_request(order_for(**ALOUD | fields))
    assert (caught.value.code, caught.value.param) == (code, param)


def recording(**fields):
    clip = parts.AudioClip(data="AAAA", format="wav")
    return items.Message(role="user", content=[parts.InputAudio(input_audio=clip, **fields)])


def test_a_recording_is_told_as_its_words_to_an_engine_that_cannot_hear():
    def heard(capabilities, **fields):
        (turn,) = engine_request(order_for(given=(recording(**fields),), capabilities=capabilities)).respond.history
        return turn.parts[0]

    assert heard(Capabilities(), transcript="Ten of clubs.") == history.TextPart("Ten of clubs.")
    assert "nothing is said" in heard(Capabilities(), transcript="").text
    assert heard(Capabilities(audio_in=True), transcript="Ten of clubs.") == history.AudioPart("AAAA", "wav")
    with pytest.raises(ClientError, match="takes no input_audio"):
        heard(Capabilities())


def test_what_was_said_in_a_recording_is_kept_with_it():
    told = Dialogue(session_for(given=(recording(transcript="Ten of clubs."),), capabilities=Capabilities()))
    told.said(events.TextDelta(ID, "Yes."), events.ResponseEnded(ID))
    kept = [effect.record for effect in told.effects if type(effect).__name__ == "Persist"][-1]
    assert b'"transcript":"Ten of clubs."' in kept.items[0].body
