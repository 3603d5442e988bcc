"""
The program, by either name: `antiphon` and `python -m antiphon`.

Loading it takes a moment, in which somebody may change their mind. There is nothing to clean up then, and no exception is of use: Python
would tell at length what was being loaded, and in the middle of a class makes another exception of it.
"""

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run as the program `antiphon`; whoever interrupts it while it loads ends it without a word."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started it wants interruptions ignored
    if heeds:
        signal.signal(signal.SIGINT, _exit_now)
    from antiphon.cli.main import main as begin  # noqa: PLC0415 - the moment that is meant

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        begin()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _exit_now(_signum: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
