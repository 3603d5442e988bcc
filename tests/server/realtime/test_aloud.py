"""Spoken conversations with real speech models around text engines: what users say and do, and what fails."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from antiphon.audio import decode_ulaw
from antiphon.engine_api.options import Transcription
from antiphon.server.processes.run import background_server
from antiphon.speech.base import INPUT_RATE_HZ
from antiphon.speech.dsp.resample import resample
from antiphon.speech.stt.moonshine import MoonshineTranscriber
from support.server.aloud import (
    BY_HAND,
    DEAF,
    RATE_HZ,
    TRANSCRIBED,
    WEIGHTS,
    WORDS,
    append,
    append_ulaw,
    check_whole,
    errors_between,
    heard_as,
    mixed,
    music,
    plain,
    recording,
    silence,
    sound_of,
    words_of,
)
from support.server.model_server import playing
from support.server.realtime_peer import connected, kinds
from support.server.scripted_server import configured

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

STORY = "There was an old man with a beard, who said it is just as I feared. Two owls and a hen."


def story(_body):
    return [
        {"choices": [{"index": 0, "delta": {"content": STORY}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def upstream():
    """A model server that tells a story, and what it was asked."""
    with playing(story) as (address, asked):
        yield address, asked


@pytest.fixture(scope="module")
def url(tmp_path_factory, upstream):
    """A server with `parrot`, which repeats its input, `smol`, a real model, and `teller`, which tells a story."""
    models = {
        "parrot": {"engine": "scripted", "answers": [{"say": "You said: {input}."}], **DEAF},
        "smol": {"engine": "local", "model": "smollm2-135m-instruct", "context": 1024},
        "teller": {"engine": "chat", "base_url": upstream[0], "model": "m"},
    }
    config = configured(tmp_path_factory.mktemp("home"), models, **{"models_dir": str(WEIGHTS), "logging.level": "error"})
    with background_server(config) as address:
        yield address


class Talking:
    """A session in which what is said is transcribed."""

    def __init__(self, url, model="parrot", session=TRANSCRIBED):
        self._connection = connected(url, model=model)
        self._session = session

    async def __aenter__(self):
        self.peer = await self._connection.__aenter__()
        await self.peer.hear()
        await self.peer.say("session.update", session=self._session)
        await self.peer.until("session.updated")
        return self.peer

    async def __aexit__(self, *error):
        await self._connection.__aexit__(*error)


async def transcript_of(pcm, rate_hz=RATE_HZ):
    ear = MoonshineTranscriber(WEIGHTS / "moonshine-tiny-en")
    await ear.start()
    try:
        return (await ear.transcribe(resample(pcm, rate_hz, INPUT_RATE_HZ), Transcription())).text
    finally:
        await ear.stop()


@pytest.mark.parametrize("name", ["cards_001", pytest.param("cards_005", marks=pytest.mark.long)])
async def test_what_a_person_says_is_understood_and_the_answer_is_understood_when_it_is_heard(url, name):
    async with Talking(url) as peer:
        await append(peer, silence(0.5) + recording(name) + silence(1))
        events = await peer.until("response.done")
    check_whole(events)
    (heard,) = [event["transcript"] for event in events if event["type"].endswith("input_audio_transcription.completed")]
    assert errors_between(plain(heard), WORDS[name].split()) <= 1
    assert plain(words_of(events)) == ["you", "said", *plain(heard)]
    spoken = plain(await transcript_of(sound_of(events)))
    assert errors_between(spoken, plain(words_of(events))) <= max(2, len(spoken) // 4)


async def test_a_model_on_this_machine_answers_a_spoken_question_aloud(url):
    async with Talking(url, "smol", TRANSCRIBED | {"max_output_tokens": 30}) as peer:
        await append(peer, recording("cards_001") + silence(1))
        events = await peer.until("response.done")
    check_whole(events)
    assert events[-1]["response"]["status"] in ("completed", "incomplete")  # it may go on for longer than it is let
    assert len(sound_of(events)) > RATE_HZ
    usage = events[-1]["response"]["usage"]
    assert usage["input_token_details"]["audio_tokens"] > 10
    assert usage["output_token_details"]["audio_tokens"] > 10


async def test_words_are_told_while_the_person_still_speaks(url):
    async with Talking(url) as peer:
        pcm = recording("lv_0870")
        for at in range(0, len(pcm), RATE_HZ // 5):
            await append(peer, pcm[at : at + RATE_HZ // 5])
            await asyncio.sleep(0.03)  # three times as fast as people speak: sound that comes at once is heard at once
        await append(peer, silence(1))
        events = await peer.until("conversation.item.input_audio_transcription.completed")
    told = kinds(events)
    delta = "conversation.item.input_audio_transcription.delta"
    assert told.index(delta) < told.index("input_audio_buffer.speech_stopped")
    deltas = "".join(event["delta"] for event in events if event["type"] == delta)
    (whole,) = [event["transcript"] for event in events if event["type"].endswith("input_audio_transcription.completed")]
    assert errors_between(plain(deltas), plain(whole)) <= len(plain(whole)) // 4


async def test_an_answer_that_is_cut_short_is_remembered_up_to_the_word_that_was_playing(url, upstream):
    async with Talking(url, "teller") as peer:
        await append(peer, recording("cards_001") + silence(1))
        events = await peer.until("response.done")
        item = next(event["item"] for event in events if event["type"] == "response.output_item.done")
        await peer.say("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=2_000)
        await peer.until("conversation.item.truncated")
        heard = plain(await transcript_of(sound_of(events)[: 2 * 2 * RATE_HZ]))
        await append(peer, recording("cards_005") + silence(1))
        await peer.until("response.output_audio.delta")
    (told,) = [message["content"] for message in upstream[1][-1]["messages"] if message["role"] == "assistant"]
    assert STORY.startswith(told)
    assert 4 <= len(plain(told)) <= 12
    assert abs(len(plain(told)) - len(heard)) <= 2
    assert upstream[1][-1]["messages"][-1]["role"] == "user"


async def test_a_telephone_is_understood_and_answered(url):
    session = {
        "type": "realtime",
        "audio": {
            "input": {"format": {"type": "audio/pcmu"}, "transcription": {"model": "whisper-1"}},
            "output": {"format": {"type": "audio/pcmu"}},
        },
    }
    async with Talking(url, session=session) as peer:
        await append_ulaw(peer, silence(0.5, 8_000) + recording("cards_005", 8_000) + silence(1, 8_000))
        events = await peer.until("response.done")
    check_whole(events)
    (heard,) = [event["transcript"] for event in events if event["type"].endswith("input_audio_transcription.completed")]
    assert errors_between(plain(heard), WORDS["cards_005"].split()) <= 3
    spoken = plain(await transcript_of(decode_ulaw(sound_of(events)), 8_000))
    assert errors_between(spoken, plain(words_of(events))) <= 6, (
        "over a telephone some words of a voice that was never the same twice are lost"
    )


# What may happen


def voice_processes():
    """The processes of voices that this one has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent, command = int(status.read_text().rpartition(")")[2].split()[1]), status.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"piper_child" in command:
            found.append(int(status.parent.name))
    return found


@pytest.mark.long
async def test_a_voice_that_is_killed_in_the_middle_of_a_word_fails_that_answer_and_says_the_next(url):
    async with Talking(url, "teller") as peer:
        await append(peer, recording("cards_001") + silence(1))
        await peer.until("response.output_audio.delta")
        (voice,) = voice_processes()
        os.kill(voice, signal.SIGKILL)
        first = (await peer.until("response.done"))[-1]["response"]
        await append(peer, recording("cards_001") + silence(1))
        second = (await peer.until("response.done"))[-1]["response"]
    assert first["status"] == "failed"
    assert first["status_details"]["error"]["message"] == "Speech synthesis was interrupted. Please try again."
    assert second["status"] == "completed"


async def test_a_minute_of_silence_is_no_turn(url):
    async with Talking(url) as peer:
        await append(peer, silence(60) + recording("cards_001") + silence(1))
        events = await peer.until("response.done")
    (started,) = [event for event in events if event["type"] == "input_audio_buffer.speech_started"]
    assert 59_500 < started["audio_start_ms"] < 60_500
    assert errors_between(plain(words_of(events)), ["you", "said", *WORDS["cards_001"].split()]) <= 1


async def test_music_is_not_answered_with_made_up_words(url):
    async with Talking(url) as peer:
        await append(peer, music(8) + silence(1.5) + recording("cards_001") + silence(1))
        heard = []
        while errors_between(plain(heard[-1] if heard else ""), WORDS["cards_001"].split()) > 1:
            heard.append(await heard_as(peer))
    assert len(" ".join(heard[:-1])) < 40


async def test_two_people_at_once_are_one_turn_that_is_answered(url):
    async with Talking(url) as peer:
        await append(peer, mixed(recording("cards_005"), silence(0.4) + recording("lv_0890")) + silence(1))
        events = await peer.until("response.done")
        while events[-1]["response"]["status"] == "cancelled":
            events = await peer.until("response.done")
    assert events[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("turns", [10, pytest.param(100, marks=pytest.mark.long)])
async def test_minutes_that_come_at_once_are_heard_while_others_are_answered(url, turns):
    pcm = (recording("cards_001") + silence(4.9)) * turns
    async with Talking(url) as flooding, Talking(url) as other:
        await append(flooding, pcm, piece=1 << 20)
        await append(other, recording("cards_005") + silence(1))
        events = await other.until("response.done")
        assert errors_between(plain(words_of(events)), ["you", "said", *WORDS["cards_005"].split()]) <= 2
        heard = [await heard_as(flooding) for _ in range(turns)]
        assert sum(errors_between(plain(each), WORDS["cards_001"].split()) for each in heard) <= turns // 4
        while (done := (await flooding.until("response.done"))[-1]["response"])["status"] == "cancelled":
            pass
        assert done["status"] == "completed"


async def test_turns_committed_by_hand_are_answered_when_that_is_asked(url):
    async with Talking(url, session=BY_HAND) as peer:
        for _ in range(2):
            await append(peer, recording("cards_001"))
            await peer.say("input_audio_buffer.commit")
            await peer.say("response.create")
            events = await peer.until("response.done")
            assert errors_between(plain(words_of(events)), ["you", "said", *WORDS["cards_001"].split()]) <= 1
