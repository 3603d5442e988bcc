"""`antiphon version`."""

import platform

from antiphon import __version__
from antiphon.cli.common.flags import JsonFlag, ShellParameter


def version(*, as_json: JsonFlag = False, shell: ShellParameter) -> None:
    """
    Say which antiphon this is.

    Try:
        antiphon version --json

    Args:
        as_json: as JSON, with the Python and the machine it runs on.
    """
    if not as_json:
        return shell.say(__version__)
    shell.say_json({"version": __version__, "python": platform.python_version(), "platform": platform.platform()})
