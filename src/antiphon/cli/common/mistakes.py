"""What was typed wrongly, in words that say what to type instead."""

from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import CoercionError, CycloptsError, MissingArgumentError, UnknownCommandError, UnusedCliTokensError, ValidationError

from antiphon.errors import quote_list


def describe_usage_error(error: CycloptsError) -> str:
    """What is wrong, in one line, and which help says what there is."""
    verb = " ".join(("antiphon", *(error.command_chain or ())))
    return f"{_describe_problem(error, verb)} `{verb} --help` says what there is."


def _describe_problem(error: CycloptsError, verb: str) -> str:
    typed = error.unused_tokens or []
    match error:
        case UnknownCommandError() if error.app is not None:
            return _describe_unknown(typed[0], [name for name in error.app if not name.startswith("-")])
        case UnusedCliTokensError():
            return f"`{verb}` takes no {quote_list(typed)}{'; put the question in quotes' if verb == 'antiphon ask' else ''}."
        case MissingArgumentError() if error.argument is not None:
            name = error.argument.name
            has_name = any(token.partition("=")[0] in error.argument.names for token in typed)
            return f"{name} needs a value." if has_name else f"`{verb}` needs {name}."
        case CoercionError() if error.token is not None and error.target_type is int:
            return f"{error.token.keyword} takes a whole number, not '{error.token.value}'."
        case ValidationError() if error.exception_message:
            return error.exception_message
        case _:
            return str(error)


def _describe_unknown(name: str, names: Sequence[str]) -> str:
    if name.startswith("-"):
        return f"There is no option {name}."
    if close := get_close_matches(name, names, n=1):
        return f"There is no '{name}'; did you mean '{close[0]}'?"
    return f"There is no '{name}'; there are {quote_list(names)}."
