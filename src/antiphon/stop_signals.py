"""
The signals that stop a server or a worker after what is under way.

SIGINT and SIGTERM, as everywhere. SIGQUIT, as nginx has it. SIGHUP, with which a terminal goes away; a server without
one reads its configuration again instead. A parent that has SIGHUP or SIGQUIT ignored, as `nohup` does, is obeyed.
"""

import os
import signal
from typing import Literal

_ALWAYS = (signal.SIGINT, signal.SIGTERM)
_UNLESS_IGNORED = (signal.SIGQUIT, signal.SIGHUP)

StopStep = Literal["finish", "at_once"]
"""What a signal asks for: to finish what is under way, or not even that."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that this process should handle."""
    return *_ALWAYS, *(number for number in _UNLESS_IGNORED if signal.getsignal(number) is not signal.SIG_IGN)


def has_terminal() -> bool:
    """Whether this process belongs to a terminal, so that SIGHUP says that it has gone."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class StopSignals:
    """Decides what each signal asks for."""

    def __init__(self) -> None:
        self._is_stopping = False
        self._count = 0

    def next_step(self, number: int) -> StopStep | None:
        """
        What the signal asks for, in the order of arrival; None for nothing more.

        A SIGHUP never hurries: systemd sends one right behind a SIGTERM (`SendSIGHUP=`), and both the shell and the
        kernel do when a terminal goes away.
        """
        is_first, self._is_stopping = not self._is_stopping, True
        self._count += number != signal.SIGHUP
        if is_first:
            return "finish"
        return "at_once" if self._count > 1 and number != signal.SIGHUP else None
