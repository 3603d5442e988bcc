"""The log of commands that serve until a signal."""

import sys
from collections.abc import Callable

from antiphon.cli.common import lazy
from antiphon.cli.common.shell import Shell
from antiphon.config.load import Config


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
