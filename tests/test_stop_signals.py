"""What signals ask of a server."""

import signal

import pytest

from antiphon.stop_signals import StopSignals

INT, TERM, QUIT, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP


@pytest.mark.parametrize(
    ("numbers", "steps"),
    [
        ((TERM, TERM), ("finish", "at_once")),
        ((QUIT, INT), ("finish", "at_once")),
        ((HUP, HUP), ("finish", None)),
        ((TERM, HUP), ("finish", None)),
        ((HUP, TERM, TERM), ("finish", None, "at_once")),
        ((TERM, HUP, QUIT), ("finish", None, "at_once")),
    ],
)
def test_the_second_signal_hurries_but_a_hangup_never_does(numbers, steps):
    signals = StopSignals()
    assert tuple(map(signals.next_step, numbers)) == steps
