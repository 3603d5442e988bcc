"""The log of commands that serve until a signal."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from antiphon.cli.common import lazy
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.config.load import Config
from antiphon.errors import ApiError


def own_log(config: Config, shell: Shell) -> Callable[[str], None]:
    """
    Make all that this process writes to standard error lines of the log, where the log is JSON.

    Returns:
        What takes lines for the operator.
    """
    if shell.stderr is not sys.__stderr__ or not lazy.logs.is_json(config.logging):
        return shell.note
    lazy.logs.own_stderr(config.logging)
    return lambda line: lazy.logs.get().warning("notice", message=line)


def own_report(config: Config, shell: Shell) -> Callable[[str], None]:
    """What takes lines that tell an operator that all is well; call `own_log` before."""
    if shell.stderr is not sys.__stderr__ or not lazy.logs.is_json(config.logging):
        return shell.note
    return lambda line: lazy.logs.get().info("notice", message=line)


@contextlib.contextmanager
def log_failure(config: Config, shell: Shell) -> Iterator[None]:
    """
    Log why this program ends, where its log is JSON, and end it; mistakes in arguments and configuration stay plain
    text.

    Raises:
        SystemExit: it was logged.
    """
    if shell.stderr is not sys.__stderr__ or not lazy.logs.is_json(config.logging):
        yield
        return
    try:
        yield
    except UsageError:
        lazy.logs.release_stderr()
        raise
    except ApiError as error:
        lazy.logs.get().error("failure", message=error.operator_message)
        raise SystemExit(1) from None
    except OSError as error:
        lazy.logs.get().error("failure", message=str(error))
        raise SystemExit(1) from None
