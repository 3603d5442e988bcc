"""The order in which audio is played, in chunks of any length."""

from antiphon.server.webrtc import playback
from antiphon.server.webrtc.playback import PlaybackQueue

FIRST, SECOND = ("item_1", 0), ("item_2", 0)


def test_sound_is_played_in_pieces_as_long_as_there_is_any():
    playing = PlaybackQueue()
    playing.append(FIRST, b"abc")
    playing.append(FIRST, b"de")
    assert [playing.take(2) for _ in range(4)] == [b"ab", b"cd", b"e", b""]


def test_a_part_waits_for_the_end_of_the_one_before_it():
    playing = PlaybackQueue()
    playing.append(FIRST, b"ab")
    playing.append(SECOND, b"xy")
    assert playing.take(4) == b"ab" and playing.take(4) == b""
    playing.append(FIRST, b"cd")
    playing.close_part(FIRST)
    assert playing.take(3) == b"cdx" and playing.take(3) == b"y"


def test_a_part_whose_end_came_without_more_sound_lets_the_next_one_play():
    playing = PlaybackQueue()
    playing.append(FIRST, b"ab")
    playing.append(SECOND, b"xy")
    assert playing.take(4) == b"ab"
    playing.close_part(FIRST)
    assert playing.take(4) == b"xy"


def test_what_is_cleared_is_not_played():
    playing = PlaybackQueue()
    playing.append(FIRST, b"ab")
    playing.clear()
    playing.append(SECOND, b"xy")
    assert playing.take(4) == b"xy"


def test_the_end_of_what_never_sounded_is_nothing():
    playing = PlaybackQueue()
    playing.close_part(FIRST)
    assert playing.take(4) == b""


def test_what_is_too_much_to_wait_is_not_played():
    playing = PlaybackQueue()
    half = bytes(playback.MAX_QUEUED_BYTES // 2)
    for pcm in (half, half, b"ab"):
        playing.append(FIRST, pcm)
    assert len(playing.take(len(half) * 3)) == 2 * len(half)
    playing.append(FIRST, b"ab")
    assert playing.take(2) == b"ab"
