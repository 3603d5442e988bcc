"""
The program: its commands, how errors are reported, and how it exits.

Exit codes: 0 success; 1 failure; 2 wrong arguments or configuration; 130 interrupted; 141 broken pipe.
"""

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from cyclopts import App, CycloptsError, Parameter

from antiphon import __version__
from antiphon.cli.common.flags import JsonFlag, ShellParameter, describe_usage_error
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.errors import ApiError

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141

_HELP = """
One server for every conversation protocol that AI clients use, in front of any engine.

Try:
    antiphon serve                        serve a model on 127.0.0.1:8642
    antiphon ask "What is a fugue?"       ask it something
    antiphon talk --sample                say something to it
    antiphon doctor                       see what is missing

Every command says more with --help.
"""

COMMANDS = {
    "serve": ("antiphon.cli.commands.serve:serve", "Serve the configured models, or the default one."),
    "reload": ("antiphon.cli.commands.reload:reload", "Have a running server read its configuration again."),
    "worker": ("antiphon.cli.commands.worker:worker", "Run an engine for a server in another process or on another machine."),
    "ask": ("antiphon.cli.commands.ask:ask", "Ask a model a question."),
    "talk": ("antiphon.cli.voice.talk:talk", "Talk to a model, by microphone or with recordings."),
    "duplex": ("antiphon.cli.voice.duplex:duplex", "Talk to a model that listens and speaks at the same time."),
    "models": ("antiphon.cli.commands.models:app", "See, fetch and remove model weights."),
    "keys": ("antiphon.cli.commands.keys:app", "Create, list and revoke API keys."),
    "prompts": ("antiphon.cli.commands.prompts:app", "Add, change and see stored prompts."),
    "sessions": ("antiphon.cli.recordings.sessions:app", "See, export, replay and delete recordings of sessions."),
    "webhooks": ("antiphon.cli.commands.webhooks:app", "See and test the endpoints that get events of background responses."),
    "queue": ("antiphon.cli.commands.queue:app", "See who waits for a busy model, and cancel tickets."),
    "workers": ("antiphon.cli.commands.workers:app", "See the workers that run the models, and take some out of service."),
    "route": ("antiphon.cli.commands.route:route", "See which model a request would get, and why."),
    "config": ("antiphon.cli.commands.config:app", "See and check the configuration."),
    "doctor": ("antiphon.cli.commands.doctor:doctor", "Check what is missing here, and how to get it."),
    "demo": ("antiphon.cli.commands.demo:demo", "See it work: real questions, real answers, and how fast."),
}
"""
Where each command is, and its line in `antiphon --help`. Commands are imported when they run, as they load slowly.
"""

_USAGES = {
    "talk": "Usage: antiphon talk [OPTIONS] [RECORDINGS...]",
    "duplex": "Usage: antiphon duplex [OPTIONS] [RECORDINGS...]",
}


def build_app(arguments: Sequence[str] = ()) -> App:
    """The command line; `arguments` decide which commands bring their full help, and are not parsed yet."""
    app = App(
        name="antiphon",
        help=_HELP,
        version=__version__,
        help_format="plaintext",
        # `negative=()`: else every switch would get a `--no-` twin.
        default_parameter=Parameter(negative=(), show_default=False),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, (path, summary) in COMMANDS.items():
        # Cyclopts lists the summary without an import, but lets it replace the help of a command once it is imported.
        help_text = {} if name in arguments else {"help": summary}
        usage = {"usage": _USAGES[name]} if name in _USAGES else {}
        app.command(path, name=name, **help_text, **usage)
    app.command(version)
    return app


def version(*, as_json: JsonFlag = False, shell: ShellParameter) -> None:
    """
    Print the version.

    Try:
        antiphon version --json

    Args:
        as_json: print JSON, with the versions of Python and of the system.
    """
    if not as_json:
        return shell.say(__version__)
    return shell.say_json({"version": __version__, "python": platform.python_version(), "platform": platform.platform()})


def run(arguments: Sequence[str], shell: Shell) -> int:
    """
    Run a command.

    Returns:
        The exit code.
    """
    try:
        return _dispatch(arguments, shell)
    except CycloptsError as error:
        shell.note(describe_usage_error(error))
        return EXIT_USAGE
    except ApiError as error:
        shell.note(error.operator_message)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except OSError as error:
        shell.note(str(error))
        return EXIT_FAILURE


def _dispatch(arguments: Sequence[str], shell: Shell) -> int:
    command, bound_arguments, ignored_parameters = build_app(arguments).parse_args(list(arguments), exit_on_error=False, print_error=False)
    # `parse=False` hides the shell from the command line; cyclopts then leaves it to us.
    if "shell" in ignored_parameters:
        bound_arguments.arguments["shell"] = shell
    else:  # `--help` and `--version` are cyclopts' own commands
        bound_arguments.arguments["console"] = shell.console()
    code: int | None = command(*bound_arguments.args, **bound_arguments.kwargs)
    return code or 0


def _open_missing_streams() -> None:
    """Take nothing from the streams that the parent process has closed, and write nothing to them."""
    missing: dict[str, TextIO | None] = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    for name, stream in missing.items():
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))


def _command_name(path: Path) -> str:
    """What to type to run the program at this path: its bare name where the shell would find the same one."""
    if path.name == "__main__.py":
        return "python -m antiphon"
    if shutil.which(path.name) == str(path.absolute()):
        return path.name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def main() -> None:
    """Run as the program `antiphon`."""
    _open_missing_streams()
    shell = Shell(
        environ=os.environ, cwd=Path.cwd(), stdin=sys.stdin, stdout=sys.stdout, stderr=sys.stderr, name=_command_name(Path(sys.argv[0]))
    )
    code = run(sys.argv[1:], shell)
    if code == EXIT_BROKEN_PIPE:  # the interpreter would complain when it flushes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
