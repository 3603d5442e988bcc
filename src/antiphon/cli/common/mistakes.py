"""What was typed wrongly, in words that say what to type instead."""

from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import CoercionError, CycloptsError, MissingArgumentError, UnknownCommandError, UnusedCliTokensError, ValidationError

from antiphon.errors import listed


def told(mistake: CycloptsError) -> str:
    """What is wrong, in one line, and which help says what there is."""
    verb = " ".join(("antiphon", *(mistake.command_chain or ())))
    return f"{_said(mistake, verb)} `{verb} --help` says what there is."


def _said(mistake: CycloptsError, verb: str) -> str:
    typed = mistake.unused_tokens or []
    match mistake:
        case UnknownCommandError() if mistake.app is not None:
            return _unknown(typed[0], [name for name in mistake.app if not name.startswith("-")])
        case UnusedCliTokensError():
            return f"`{verb}` takes no {listed(typed)}{'; put the question in quotes' if verb == 'antiphon ask' else ''}."
        case MissingArgumentError() if mistake.argument is not None:
            name = mistake.argument.name
            has_name = any(token.partition("=")[0] in mistake.argument.names for token in typed)
            return f"{name} needs a value." if has_name else f"`{verb}` needs {name}."
        case CoercionError() if mistake.token is not None and mistake.target_type is int:
            return f"{mistake.token.keyword} takes a whole number, not '{mistake.token.value}'."
        case ValidationError() if mistake.exception_message:
            return mistake.exception_message
        case _:
            return str(mistake)


def _unknown(typed: str, names: Sequence[str]) -> str:
    if typed.startswith("-"):
        return f"There is no option {typed}."
    if close := get_close_matches(typed, names, n=1):
        return f"There is no '{typed}'; did you mean '{close[0]}'?"
    return f"There is no '{typed}'; there are {listed(names)}."
