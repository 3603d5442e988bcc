"""How fast sound may come."""

from antiphon.server.minicpmo.pacing import BURST_S, MAX_SPEED, MAX_TOO_FAST_S, AudioPacer


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_burst_is_taken_at_once_and_what_is_beyond_it_has_to_wait():
    pace = AudioPacer(Clock())
    assert pace.consume(BURST_S) == 0
    assert pace.consume(1.0) == 1.0 / MAX_SPEED


def test_who_sends_as_fast_as_it_is_spoken_never_waits():
    clock = Clock()
    pace = AudioPacer(clock)
    for second in range(1000):
        clock.now = second
        assert pace.consume(1.0) == 0
    assert not pace.is_over_limit


def test_who_catches_up_after_a_burst_is_forgiven():
    clock = Clock()
    pace = AudioPacer(clock)
    pace.consume(3 * BURST_S)
    clock.now = 2 * BURST_S / MAX_SPEED + 1
    assert pace.consume(1.0) == 0
    clock.now += MAX_TOO_FAST_S + 1
    assert not pace.is_over_limit


def test_who_never_slows_down_is_hopeless_after_a_while():
    clock = Clock()
    pace = AudioPacer(clock)
    taken_s = 0.0
    while not pace.is_over_limit:
        clock.now += pace.consume(1.0)
        taken_s += 1
    assert MAX_TOO_FAST_S < clock.now < MAX_TOO_FAST_S + 2
    assert taken_s <= BURST_S + MAX_SPEED * clock.now + 1


def test_pictures_count_where_they_come_with_little_sound():
    clock = Clock()
    pace = AudioPacer(clock)
    for second in range(100):
        clock.now = second
        assert pace.consume(1.0, images=4) == 0, "they come with the sound"
    while not pace.is_over_limit:
        clock.now += max(pace.consume(0.0, images=8), 0.01)
    assert clock.now < 100 + MAX_TOO_FAST_S + BURST_S
