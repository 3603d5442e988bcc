"""Whose turn it is."""

from hypothesis import given, strategies as st

from antiphon.protocols.realtime.turn import TURN_TRANSITIONS, SpeechTurn, TurnAction, TurnEvent, TurnState


def test_every_sign_has_its_row_on_both_floors():
    assert set(TURN_TRANSITIONS) == set(TurnState)
    assert all(set(row) == set(TurnEvent) for row in TURN_TRANSITIONS.values())


def test_a_turn_starts_and_stops_and_is_committed():
    turn = SpeechTurn()
    assert turn.apply(TurnEvent.SPEECH_STARTED) == (TurnAction.SEND_SPEECH_STARTED,)
    assert turn.is_open
    assert turn.apply(TurnEvent.SPEECH_STOPPED) == (TurnAction.SEND_SPEECH_STOPPED, TurnAction.COMMIT_TURN)
    assert not turn.is_open


def test_a_stop_without_a_start_is_nothing():
    assert SpeechTurn().apply(TurnEvent.SPEECH_STOPPED) == ()


def test_a_second_start_is_nothing():
    turn = SpeechTurn()
    turn.apply(TurnEvent.SPEECH_STARTED)
    assert turn.apply(TurnEvent.SPEECH_STARTED) == ()


def test_a_turn_that_is_dropped_stops_and_is_no_item():
    for sign in (TurnEvent.AUDIO_CLEARED, TurnEvent.DETECTION_DISABLED):
        turn = SpeechTurn(TurnState.SPEAKING)
        assert turn.apply(sign) == (TurnAction.SEND_SPEECH_STOPPED,)
        assert not turn.is_open


@given(st.lists(st.sampled_from(TurnEvent)))
def test_starts_and_stops_alternate_and_an_open_turn_is_one_that_was_told(signs):
    turn, is_told = SpeechTurn(), False
    for sign in signs:
        for step in turn.apply(sign):
            if step is TurnAction.SEND_SPEECH_STARTED:
                assert not is_told
                is_told = True
            elif step is TurnAction.SEND_SPEECH_STOPPED:
                assert is_told
                is_told = False
        assert turn.is_open == is_told
