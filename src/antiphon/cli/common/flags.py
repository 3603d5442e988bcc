"""What commands share of the command line: options, and messages about what was typed wrongly."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from antiphon.cli.common.shell import Shell
from antiphon.errors import quote_list

ConfigFlag = Annotated[
    Path | None, Parameter(name="--config", help="a configuration file; its settings override those of the files in the usual places.")
]
JsonFlag = Annotated[bool, Parameter(name="--json", help="print JSON.")]
UrlFlag = Annotated[str | None, Parameter(name="--url", help="base address of the server, such as http://127.0.0.1:8642/v1.")]
RecordingPath = Annotated[
    Path, Parameter(help="WAV files; with the extra `speech` also FLAC, MP3 and Ogg, with `formats` also M4A, MP4, WebM and AAC.")
]
SampleFlag = Annotated[bool, Parameter(help="ask a short spoken question that comes with antiphon, instead of a recording.")]
OutputFlag = Annotated[Path | None, Parameter(name=["--output", "-o"], help="write the answers' audio to this WAV file, at 24 kHz.")]
RecordFlag = Annotated[bool, Parameter(help="ask a running server to record this session; it says afterwards where the recording is.")]
ShellParameter = Annotated[Shell, Parameter(parse=False)]
"""The shell that a command runs in; `main` passes it, nobody types it."""


def describe_usage_error(error: CycloptsError) -> str:
    """One line that says what is wrong, and which `--help` to read."""
    command = " ".join(("antiphon", *(error.command_chain or ())))
    return f"{_describe_problem(error, command)} See `{command} --help`."


def _describe_problem(error: CycloptsError, command: str) -> str:
    tokens = error.unused_tokens or []
    match error:
        case UnknownCommandError() if error.app is not None:
            return _describe_unknown(tokens[0], error.app)
        case UnknownOptionError() if error.app is not None and error.token is not None:
            return _describe_unknown(error.token.keyword or error.token.value, error.app)
        case ValidationError() if error.app is not None and (unknown := _unknown_option(_values(error), error.app)) is not None:
            return _describe_unknown(unknown, error.app)
        case UnusedCliTokensError():
            return f"`{command}` takes no {quote_list(tokens)}{'; put the question in quotes' if command == 'antiphon ask' else ''}."
        case MissingArgumentError() if error.app is not None and (unknown := _unknown_option(tokens, error.app)) is not None:
            return _describe_unknown(unknown, error.app)
        case MissingArgumentError() if error.argument is not None:
            name = error.argument.name
            has_name = any(token.partition("=")[0] in error.argument.names for token in tokens)
            return f"{name} needs a value." if has_name else f"`{command}` needs {name}."
        case CoercionError() if error.token is not None and error.target_type is int:
            return f"{error.token.keyword} takes a whole number, not '{error.token.value}'."
        case ValidationError() if error.exception_message:
            return error.exception_message
        case _:
            return str(error)


def _values(error: ValidationError) -> list[str]:
    """What was typed for the argument that is wrong."""
    return [token.value for token in error.argument.tokens] if error.argument is not None else []


def _options(app: App) -> set[str]:
    """The options of a command, or of a group of them and of its commands."""
    names = {name for name in app if name.startswith("-")}
    if app.default_command is not None:
        arguments = [each for each in app.assemble_argument_collection() if each.parse]
        return names.union(name for each in arguments for name in each.names if name.startswith("-"))
    if app.name == ("antiphon",):  # to load all of its commands takes a second
        return names
    return names.union(*(_options(app[name]) for name in app if not name.startswith("-")))


def _unknown_option(tokens: Sequence[str], app: App) -> str | None:
    """The first of the tokens that is an option which a command does not have."""
    names = _options(app)
    return next((name for token in tokens if (name := token.partition("=")[0]).startswith("--") and name not in names), None)


def _describe_unknown(name: str, app: App) -> str:
    if name.startswith("-"):
        by_word = {option.lstrip("-"): option for option in _options(app)}  # all begin alike
        close = get_close_matches(name.partition("=")[0].lstrip("-"), sorted(by_word), n=1)
        return f"There is no option {name}; did you mean {by_word[close[0]]}?" if close else f"There is no option {name}."
    names = [each for each in app if not each.startswith("-")]
    if close := get_close_matches(name, names, n=1):
        return f"There is no '{name}'; did you mean '{close[0]}'?"
    return f"There is no '{name}'; there are {quote_list(names)}."
