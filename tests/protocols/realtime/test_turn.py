"""Whose turn it is."""

from hypothesis import given, strategies as st

from antiphon.protocols.realtime.turn import MOVES, Floor, Sign, Step, Turn


def test_every_sign_has_its_row_on_both_floors():
    assert set(MOVES) == set(Floor)
    assert all(set(row) == set(Sign) for row in MOVES.values())


def test_a_turn_starts_and_stops_and_is_committed():
    turn = Turn()
    assert turn.take(Sign.STARTED) == (Step.TELL_START,)
    assert turn.is_open
    assert turn.take(Sign.STOPPED) == (Step.TELL_STOP, Step.COMMIT)
    assert not turn.is_open


def test_a_stop_without_a_start_is_nothing():
    assert Turn().take(Sign.STOPPED) == ()


def test_a_second_start_is_nothing():
    turn = Turn()
    turn.take(Sign.STARTED)
    assert turn.take(Sign.STARTED) == ()


def test_a_turn_that_is_dropped_stops_and_is_no_item():
    for sign in (Sign.DROPPED, Sign.UNWATCHED):
        turn = Turn(Floor.SPEAKING)
        assert turn.take(sign) == (Step.TELL_STOP,)
        assert not turn.is_open


@given(st.lists(st.sampled_from(Sign)))
def test_starts_and_stops_alternate_and_an_open_turn_is_one_that_was_told(signs):
    turn, is_told = Turn(), False
    for sign in signs:
        for step in turn.take(sign):
            if step is Step.TELL_START:
                assert not is_told
                is_told = True
            elif step is Step.TELL_STOP:
                assert is_told
                is_told = False
        assert turn.is_open == is_told
