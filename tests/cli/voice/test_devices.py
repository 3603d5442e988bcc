"""Sound on its way to the speakers, and devices that aren't there."""

import pytest

from antiphon.cli.voice.devices import AudioDevices, InterruptedPart, PlaybackPart, SpeakerPlayback, load_library
from antiphon.errors import ServerError
from support.cli.sounds import Sounds

FIRST, SECOND = PlaybackPart("item_1", 0), PlaybackPart("item_2", 0)
MS = 48  # bytes


def test_sound_is_played_in_the_order_it_came():
    playback = SpeakerPlayback()
    playback.put(FIRST, b"\1\1\2\2")
    playback.put(SECOND, b"\3\3")
    assert [playback.read(2), playback.read(4), playback.read(2)] == [b"\1\1", b"\2\2\3\3", b"\0\0"]


def test_what_is_cut_tells_how_much_of_it_was_played():
    playback = SpeakerPlayback()
    playback.put(FIRST, bytes(100 * MS))
    playback.read(40 * MS)
    assert playback.interrupt() == [InterruptedPart(FIRST, 40)]
    assert playback.read(2) == b"\0\0"


def test_what_the_device_still_holds_was_not_heard():
    playback = SpeakerPlayback(latency_ms=15)
    playback.put(FIRST, bytes(100 * MS))
    playback.put(SECOND, bytes(100 * MS))
    playback.read(40 * MS)
    assert playback.interrupt() == [InterruptedPart(FIRST, 25), InterruptedPart(SECOND, 0)]


def test_nothing_is_cut_of_what_was_played_to_its_end():
    playback = SpeakerPlayback()
    playback.put(FIRST, bytes(10 * MS))
    playback.read(20 * MS)
    assert playback.interrupt() == []
    playback.put(FIRST, bytes(10 * MS))
    playback.read(4 * MS)
    assert playback.interrupt() == [InterruptedPart(FIRST, 14)]


def test_the_library_that_is_missing_is_named_with_how_to_get_it():
    def absent(name):
        raise ModuleNotFoundError(name)

    def useless(_name):
        raise OSError("PortAudio library not found")

    with pytest.raises(ServerError, match=r"pip install .*\[talk\]'.*\. Or talk with a recording"):
        load_library(absent)
    with pytest.raises(ServerError, match="sudo apt install libportaudio2"):
        load_library(useless)
    assert load_library(lambda name: name) == "sounddevice"


def test_devices_that_can_not_be_used_say_why():
    with (
        pytest.raises(ServerError, match="this machine has no microphone"),
        AudioDevices(Sounds(is_broken=True)).open(print),
    ):
        pass


def test_the_latency_of_the_speakers_is_taken_into_account():
    with AudioDevices(Sounds(latency_s=0.02)).open(print) as playback:
        assert playback.latency_ms == 20
