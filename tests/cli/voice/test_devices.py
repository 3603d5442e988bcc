"""Sound on its way to the speakers, and devices that aren't there."""

import pytest

from antiphon.cli.voice.devices import Cut, Devices, Part, Playback, load
from antiphon.errors import OurFault
from support.cli.sounds import Sounds

FIRST, SECOND = Part("item_1", 0), Part("item_2", 0)
MS = 48  # bytes


def test_sound_is_played_in_the_order_it_came():
    playback = Playback()
    playback.put(FIRST, b"\1\1\2\2")
    playback.put(SECOND, b"\3\3")
    assert [playback.take(2), playback.take(4), playback.take(2)] == [b"\1\1", b"\2\2\3\3", b"\0\0"]


def test_what_is_cut_tells_how_much_of_it_was_played():
    playback = Playback()
    playback.put(FIRST, bytes(100 * MS))
    playback.take(40 * MS)
    assert playback.cut() == [Cut(FIRST, 40)]
    assert playback.take(2) == b"\0\0"


def test_what_the_device_still_holds_was_not_heard():
    playback = Playback(latency_ms=15)
    playback.put(FIRST, bytes(100 * MS))
    playback.put(SECOND, bytes(100 * MS))
    playback.take(40 * MS)
    assert playback.cut() == [Cut(FIRST, 25), Cut(SECOND, 0)]


def test_nothing_is_cut_of_what_was_played_to_its_end():
    playback = Playback()
    playback.put(FIRST, bytes(10 * MS))
    playback.take(20 * MS)
    assert playback.cut() == []
    playback.put(FIRST, bytes(10 * MS))
    playback.take(4 * MS)
    assert playback.cut() == [Cut(FIRST, 14)]


def test_the_library_that_is_missing_is_named_with_how_to_get_it():
    def absent(name):
        raise ModuleNotFoundError(name)

    def useless(_name):
        raise OSError("PortAudio library not found")

    with pytest.raises(OurFault, match=r"pip install 'antiphon\[talk\]'\. Or talk with a recording"):
        load(absent)
    with pytest.raises(OurFault, match="sudo apt install libportaudio2"):
        load(useless)
    assert load(lambda name: name) == "sounddevice"


def test_devices_that_can_not_be_used_say_why():
    with pytest.raises(OurFault, match=r"can't be used: Error querying device -1\."), Devices(Sounds(is_broken=True)).opened(print):
        pass


def test_the_latency_of_the_speakers_is_taken_into_account():
    with Devices(Sounds(latency_s=0.02)).opened(print) as playback:
        assert playback.latency_ms == 20
