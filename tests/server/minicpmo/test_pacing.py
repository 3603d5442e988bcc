"""How fast sound may come."""

from antiphon.server.minicpmo.pacing import ALLOWANCE_S, BEHIND_S, TIMES_AS_FAST, SoundPace


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_burst_is_taken_at_once_and_what_is_beyond_it_has_to_wait():
    pace = SoundPace(Clock())
    assert pace.spend(ALLOWANCE_S) == 0
    assert pace.spend(1.0) == 1.0 / TIMES_AS_FAST


def test_who_sends_as_fast_as_it_is_spoken_never_waits():
    clock = Clock()
    pace = SoundPace(clock)
    for second in range(1000):
        clock.now = second
        assert pace.spend(1.0) == 0
    assert not pace.is_hopeless


def test_who_catches_up_after_a_burst_is_forgiven():
    clock = Clock()
    pace = SoundPace(clock)
    pace.spend(3 * ALLOWANCE_S)
    clock.now = 2 * ALLOWANCE_S / TIMES_AS_FAST + 1
    assert pace.spend(1.0) == 0
    clock.now += BEHIND_S + 1
    assert not pace.is_hopeless


def test_who_never_slows_down_is_hopeless_after_a_while():
    clock = Clock()
    pace = SoundPace(clock)
    taken_s = 0.0
    while not pace.is_hopeless:
        clock.now += pace.spend(1.0)
        taken_s += 1
    assert BEHIND_S < clock.now < BEHIND_S + 2
    assert taken_s <= ALLOWANCE_S + TIMES_AS_FAST * clock.now + 1


def test_pictures_count_where_they_come_with_little_sound():
    clock = Clock()
    pace = SoundPace(clock)
    for second in range(100):
        clock.now = second
        assert pace.spend(1.0, pictures=4) == 0, "they come with the sound"
    while not pace.is_hopeless:
        clock.now += max(pace.spend(0.0, pictures=8), 0.01)
    assert clock.now < 100 + BEHIND_S + ALLOWANCE_S
