"""
The program `antiphon`, also as `python -m antiphon`.

Loading takes a moment, and Ctrl-C during it ends the program at once: there is nothing to clean up yet, and a
KeyboardInterrupt would print a traceback through whatever is being imported.
"""

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run as the program `antiphon`."""
    handles_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where the parent process ignores them
    if handles_interrupts:
        signal.signal(signal.SIGINT, _exit_now)
    from antiphon.cli.main import main as run_cli  # noqa: PLC0415 - has to load after the signal handler is set

    if handles_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_cli()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _exit_now(_signum: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
