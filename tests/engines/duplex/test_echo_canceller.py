"""The echo of an answer in what the microphone hears: people's recordings, of which one is played and another speaks."""

import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from antiphon.engine_api import commands, events
from antiphon.engines.duplex.echo_canceller import ECHO_TAIL_MS, new_echo_canceller
from antiphon.speech.dsp.resample import resample
from support.engines.duplexes import RATE_HZ, TURN_END, VOICE_HZ, Puppet, conversed

RECORDINGS = Path(__file__).parents[2] / "speech" / "recordings"
PIECE_MS = 100
LATE_MS = 200
SPEECH_MS = 240
"""Where the speech of the recording that is played begins."""


def recording(name):
    with wave.open(str(RECORDINGS / f"{name}.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)


def samples(ms):
    return int(ms * RATE_HZ // 1000)


def placed(sound, at_ms, total_ms):
    """So much sound with that in it."""
    made = np.zeros(samples(total_ms))
    part = sound[: len(made) - samples(at_ms)]
    made[samples(at_ms) : samples(at_ms) + len(part)] = part
    return made


def pcm(sound):
    return np.clip(sound, -32_768, 32_767).astype("<i2").tobytes()


PLAYED = recording("lv_0870")
PERSON = recording("cards_005")
VOICE = resample(pcm(PLAYED), RATE_HZ, VOICE_HZ)
HISS = np.random.default_rng(1).standard_normal(samples(10_000)) * 20


def echo_of(db, ms=7000):
    return placed(PLAYED * 10 ** (db / 20), LATE_MS, ms) + HISS[: samples(ms)]


def level(sound):
    return 20 * np.log10(np.sqrt((np.asarray(sound, float) ** 2).mean()) / 32_768 + 1e-9)


class Listener:
    """Plays the recording from the beginning, and hears a sound meanwhile."""

    def __init__(self):
        self.echo = new_echo_canceller(RATE_HZ, VOICE_HZ)
        self.echo.play(VOICE, 0)
        self.heard = b""
        self.told = 0
        self.mistaken_at_ms = None

    def hear(self, sound, until_ms):
        while self.told < until_ms:
            piece = sound[samples(self.told) : samples(self.told + PIECE_MS)]
            self.heard += self.echo.process(pcm(piece))
            self.told += PIECE_MS
            if self.echo.was_mistaken:
                self.mistaken_at_ms = self.told
        return self

    def part(self, start_ms, end_ms):
        return np.frombuffer(self.heard, "<i2")[samples(start_ms) : samples(end_ms)]


@pytest.mark.parametrize("db", [-10, -30, pytest.param(-20, marks=pytest.mark.long)])
def test_the_voice_that_comes_back_is_known_for_an_echo_and_taken_out_from_there_on(db):
    listener = Listener().hear(echo_of(db), 700)
    starts_ms = LATE_MS + SPEECH_MS
    assert not listener.echo.has_echo
    listener.hear(echo_of(db), 1000)
    if not listener.echo.is_echo(starts_ms - 300):
        listener.hear(echo_of(db), 1600)
        assert listener.mistaken_at_ms is not None
    assert listener.echo.has_echo
    listener.hear(echo_of(db), 6900)
    assert level(listener.part(2000, 6500)) < max(level(echo_of(db)[samples(2000) : samples(6500)]) - 15, -62)


def test_who_speaks_over_an_echo_is_no_echo_and_is_left_as_they_are():
    sound = echo_of(-20) + placed(PERSON, 3000, 7000)
    listener = Listener().hear(sound, 1000)
    assert listener.echo.is_echo(LATE_MS)
    listener.hear(sound, 3500)
    assert not listener.echo.is_echo(3100)
    listener.hear(sound, 6400)
    heard, said = listener.part(3300, 6200).astype(float), sound[samples(3300) : samples(6200)]
    assert abs(level(heard) - level(said)) < 3
    assert listener.echo.has_echo


@pytest.mark.parametrize("at_ms", [200, 400, 600, 800, 1500, 4000])
def test_who_speaks_where_there_is_no_echo_is_heard_as_they_are(at_ms):
    sound = HISS[: samples(7000)] + placed(PERSON, at_ms, 7000)
    listener = Listener().hear(sound, at_ms + 400)
    assert not listener.echo.is_echo(max(0, at_ms - 90))
    listener.hear(sound, 7000)
    assert listener.mistaken_at_ms is None
    whole = len(listener.heard) // 2
    assert listener.heard == pcm(sound)[: 2 * whole]
    assert whole >= samples(6990)


def test_where_the_canceller_takes_a_person_for_an_echo_it_is_left_alone():
    sound = HISS[: samples(7000)] + placed(PERSON, 500, 7000)
    listener = Listener()
    listener.echo.has_echo = True
    listener.hear(sound, 7000)
    assert not listener.echo.has_echo
    assert level(listener.part(400, 900)) < level(sound[samples(400) : samples(900)]) - 6
    assert (listener.part(2000, 6900) == np.frombuffer(pcm(sound[samples(2000) : samples(6900)]), "<i2")).all()


def test_where_there_is_no_echo_any_more_who_speaks_is_left_as_they_are():
    sound = np.concatenate([echo_of(-20, 2000), HISS[: samples(5000)] + placed(PERSON, 500, 5000)])
    listener = Listener().hear(sound, 1000)
    assert listener.echo.is_echo(LATE_MS)
    listener.hear(sound, 7000)
    assert abs(level(listener.part(2800, 5600)) - level(sound[samples(2800) : samples(5600)])) < 2


@pytest.mark.parametrize("ms", [7, 20, 33, 1000])
def test_as_much_sound_comes_out_as_went_in(ms):
    echo = new_echo_canceller(RATE_HZ, VOICE_HZ)
    sound = pcm(echo_of(-20, 7000))
    size, given = samples(ms) * 2, b""
    for at in range(0, len(sound), size):
        given += echo.process(sound[at : at + size])
        if at == size:
            echo.play(VOICE[: VOICE_HZ * 4], ms)
    given += echo.process(bytes(2 * samples(ECHO_TAIL_MS)))
    assert len(given) == len(sound) + 2 * samples(ECHO_TAIL_MS)


def test_before_anything_was_said_sound_is_left_alone():
    echo = new_echo_canceller(RATE_HZ, VOICE_HZ)
    assert echo.process(b"\1\0" * 7) == b"\1\0" * 7
    assert not echo.is_echo(0)


def test_a_tone_is_not_known_for_the_echo_of_another():
    tone = np.where(np.arange(samples(7000)) // 40 % 2, 3000.0, -3000.0)
    echo = new_echo_canceller(RATE_HZ, VOICE_HZ)
    echo.play(resample(pcm(tone), RATE_HZ, VOICE_HZ), 0)
    echo.process(pcm(tone[: samples(800)]))
    assert not echo.is_echo(100)
    echo.process(pcm(tone[: samples(800)]))
    assert not echo.was_mistaken


def test_it_can_not_be_done_at_any_rate():
    assert new_echo_canceller(24_000, VOICE_HZ) is None


def test_there_is_none_where_its_library_is_missing():
    script = (
        'import sys; sys.modules["pywebrtc_audio"] = None\n'
        "from antiphon.engines.duplex.echo_canceller import new_echo_canceller\n"
        f"print(new_echo_canceller({RATE_HZ}, {VOICE_HZ}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


# In a conversation


def playing(scenario):
    """A conversation in which the recording is played, from the end of the first second on."""

    async def play(duet):
        await duet.hear(TURN_END)
        puppet.turn()
        puppet.deliver([events.AudioTranscriptDelta(puppet.request.id, "And "), events.AudioDelta(puppet.request.id, VOICE)])
        await scenario(duet, puppet)

    puppet = Puppet()
    return puppet, conversed(puppet, play)


async def hear(duet, sound, start_ms, end_ms):
    for at_ms in range(start_ms, end_ms, PIECE_MS):
        await duet.skip(PIECE_MS / 1000)
        await duet.hear(pcm(sound[samples(at_ms) : samples(at_ms + PIECE_MS)]))


def test_an_answer_is_not_cut_short_by_its_own_echo():
    async def scenario(duet, puppet):
        await hear(duet, echo_of(-20), 0, 1000)
        puppet.deliver([events.SpeechStarted("turn_2", 1000 + LATE_MS)])
        puppet.deliver([events.SpeechStopped("turn_2", 2000)])
        await hear(duet, echo_of(-20), 1000, 2000)

    puppet, duet = playing(scenario)
    assert puppet.of(commands.ClearAudio) == [commands.ClearAudio()]
    assert not puppet.of(commands.Cancel)
    assert len(puppet.of(commands.Respond)) == 1
    assert not [word for word in duet.last if isinstance(word, events.ResponseEnded)]
    assert level(np.frombuffer(puppet.of(commands.AppendAudio)[-1].pcm, "<i2")) < -60


def test_an_answer_that_was_cut_short_by_an_echo_after_all_is_begun_again():
    async def scenario(duet, puppet):
        await hear(duet, echo_of(-20), 0, 400)
        puppet.deliver([events.SpeechStarted("turn_2", 1000 + LATE_MS)])  # of which too little is there to say what it is
        assert puppet.of(commands.Cancel)
        await hear(duet, echo_of(-20), 400, 1200)
        assert puppet.of(commands.ClearAudio) == [commands.ClearAudio()]

    puppet, _ = playing(scenario)
    first, again = puppet.of(commands.Respond)
    assert again.history == first.history
