"""
The program: verbs, and what every verb shares - how it ends and what is said when it fails.

Exit codes: 0 done; 1 it failed; 2 it was asked or configured wrongly; 130 interrupted; 141 nobody reads the output any more.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from cyclopts import App, CycloptsError, Parameter

from antiphon import __version__
from antiphon.cli import version
from antiphon.cli.commands import ask, config, demo, doctor, keys, models, queue, serve, sessions, worker, workers
from antiphon.cli.common import mistakes
from antiphon.cli.common.shell import Shell, UsageMistake
from antiphon.cli.voice import duplex, talk
from antiphon.errors import Fault

FAILED, USAGE, INTERRUPTED, UNREAD = 1, 2, 130, 141

_HELP = """
One server for every conversation protocol AI clients use, before any engine.

Try:
    antiphon serve                        serve a model on 127.0.0.1:8642
    antiphon ask "What is a fugue?"       ask it something
    antiphon talk question.wav            talk to it
    antiphon doctor                       see what is missing

Every verb says more with --help.
"""


def program() -> App:
    """The command line, verb by verb."""
    app = App(
        name="antiphon",
        help=_HELP,
        version=__version__,
        help_format="plaintext",
        default_parameter=Parameter(negative=(), show_default=False),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for verb in (
        serve.serve,
        worker.worker,
        ask.ask,
        talk.talk,
        duplex.duplex,
        models.verbs(),
        keys.verbs(),
        sessions.verbs(),
        queue.verbs(),
        workers.verbs(),
        config.verbs(),
        doctor.doctor,
        demo.demo,
        version.version,
    ):
        app.command(verb)
    app["talk"].usage = "Usage: antiphon talk [OPTIONS] [RECORDINGS...]"
    app["duplex"].usage = "Usage: antiphon duplex [OPTIONS] RECORDINGS..."
    return app


def run(arguments: Sequence[str], shell: Shell) -> int:
    """
    Do what the arguments say.

    Returns:
        The exit code.
    """
    try:
        return _perform(arguments, shell)
    except CycloptsError as mistake:
        shell.note(mistakes.told(mistake))
        return USAGE
    except Fault as fault:
        shell.note(fault.message)
        return USAGE if isinstance(fault, UsageMistake) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return UNREAD
    except OSError as trouble:
        shell.note(str(trouble))
        return FAILED


def _perform(arguments: Sequence[str], shell: Shell) -> int:
    command, bound, left_to_us = program().parse_args(list(arguments), exit_on_error=False, print_error=False)
    if "shell" in left_to_us:
        bound.arguments["shell"] = shell
    else:  # `--help` and `--version`, which the parser performs itself
        bound.arguments["console"] = shell.console()
    code: int | None = command(*bound.args, **bound.kwargs)
    return code or 0


def _typed(started: Path) -> str:
    """What to type for the program that was started so: its bare name where the shell would find the same one."""
    if started.name == "__main__.py":
        return "python -m antiphon"
    if shutil.which(started.name) == str(started.absolute()):
        return started.name
    return str(started.relative_to(Path.cwd()) if started.is_relative_to(Path.cwd()) else started)


def main() -> None:
    """Run as the program `antiphon`."""
    shell = Shell(environ=os.environ, cwd=Path.cwd(), stdin=sys.stdin, stdout=sys.stdout, stderr=sys.stderr, name=_typed(Path(sys.argv[0])))
    code = run(sys.argv[1:], shell)
    if code == UNREAD:  # else the interpreter complains when it flushes what can't be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
