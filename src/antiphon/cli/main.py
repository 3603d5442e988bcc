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
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.cli.voice import duplex, talk
from antiphon.errors import ApiError

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141

_HELP = """
One server for every conversation protocol AI clients use, before any engine.

Try:
    antiphon serve                        serve a model on 127.0.0.1:8642
    antiphon ask "What is a fugue?"       ask it something
    antiphon talk question.wav            talk to it
    antiphon doctor                       see what is missing

Every verb says more with --help.
"""


def build_app() -> App:
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
        models.build_app(),
        keys.build_app(),
        sessions.build_app(),
        queue.build_app(),
        workers.build_app(),
        config.build_app(),
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
        return _dispatch(arguments, shell)
    except CycloptsError as mistake:
        shell.note(mistakes.describe_usage_error(mistake))
        return EXIT_USAGE
    except ApiError as fault:
        shell.note(fault.message)
        return EXIT_USAGE if isinstance(fault, UsageError) else EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except OSError as trouble:
        shell.note(str(trouble))
        return EXIT_FAILURE


def _dispatch(arguments: Sequence[str], shell: Shell) -> int:
    command, bound, left_to_us = build_app().parse_args(list(arguments), exit_on_error=False, print_error=False)
    if "shell" in left_to_us:
        bound.arguments["shell"] = shell
    else:  # `--help` and `--version`, which the parser performs itself
        bound.arguments["console"] = shell.console()
    code: int | None = command(*bound.args, **bound.kwargs)
    return code or 0


def _command_name(path: Path) -> str:
    """What to type for the program that was started so: its bare name where the shell would find the same one."""
    if path.name == "__main__.py":
        return "python -m antiphon"
    if shutil.which(path.name) == str(path.absolute()):
        return path.name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def main() -> None:
    """Run as the program `antiphon`."""
    shell = Shell(
        environ=os.environ, cwd=Path.cwd(), stdin=sys.stdin, stdout=sys.stdout, stderr=sys.stderr, name=_command_name(Path(sys.argv[0]))
    )
    code = run(sys.argv[1:], shell)
    if code == EXIT_BROKEN_PIPE:  # else the interpreter complains when it flushes what can't be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
