"""Descriptions of mistakes in settings."""

import difflib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from antiphon.errors import quote_list
from antiphon.masking import mask_password, mask_secrets

FOLDER_SETTINGS = (("home",), ("models_dir",), ("tools", "code_interpreter", "packages_folder"), ("tools", "web_search", "file"))
"""Settings that are paths, and may be relative to the file that they stand in."""

TABLE_LISTS = ("models", "prompts", "routing", "webhooks", "rewrites")
"""Settings that are lists of tables."""

_FORMER_KEYS = {
    "recording.most_gb": "recording.max_gb",
    "speech.ears": "speech.stt",
    "speech.ears_key_env": "speech.stt_key_env",
    "speech.ears_languages": "speech.stt_languages",
    "speech.ears_url": "speech.stt_url",
}
"""New keys of renamed settings, by their former ones: an error names the new one."""

_TABLE_ARRAYS = (*TABLE_LISTS, "rules", "examples", "mcp", "functions", "images")
"""Keys whose value is an array of tables, at any depth; others are arrays of strings."""


def describe_mistake(error: ErrorDetails, kind: type[BaseModel]) -> str:
    """
    What was expected and what it got.

    Args:
        kind: the class of the whole configuration, in which the path of keys begins.
    """
    names = [part for part in error["loc"] if isinstance(part, str)]
    # The message goes to logs and terminals, and a mistaken value may be a secret.
    value = repr(mask_secrets(error["input"], names[-1]))
    match error["type"]:
        case "extra_forbidden":
            return f"there is no such setting; {_suggestion(error['loc'], kind)}"
        # All unknown keys of a model's table are in `options`, for its engine: a misspelt `engine` is among them.
        case "missing" if similar := difflib.get_close_matches(str(error["loc"][-1]), error["input"].get("options", ()), n=1):
            return f"is missing; did you write {quote_list(similar)} for it?"
        case "missing":
            return "is missing, and HOME is not set to take it from" if error["loc"] in FOLDER_SETTINGS else "is missing"
        case "model_type":
            return f"expected a table, got {value}"
        case "tuple_type":
            return f"expected an array of {'tables' if error['loc'][-1] in _TABLE_ARRAYS else 'strings'}, got {value}"
        case "path_type":
            return f"expected a path, got {value}"
        case "too_short":
            return "must not be empty"
        case "string_pattern_mismatch" if names[-1] == "category":
            return f"expected up to 64 letters, digits, '.', '_' and '-', without spaces; got {value}"
        case "value_error":
            return mask_password(error["msg"].removeprefix("Value error, "))
        case _:
            return f"{error['msg'].replace('Input should be', 'expected')}, got {value}"


def _suggestion(path: tuple[str | int, ...], kind: type[BaseModel]) -> str:
    """The new key for a former one; for an unknown one a similar key, or else all keys."""
    if new_key := _FORMER_KEYS.get(".".join(map(str, path))):
        return f"it is called '{new_key}' now"
    *above, key = path
    model: Any = kind  # pydantic's annotations have no common type.
    for part in above:
        model = get_args(model)[0] if isinstance(part, int) else model.model_fields[part].annotation
        if type(None) in get_args(model):  # A table that may be left out.
            model = get_args(model)[0]
    names: Iterable[str] = model.model_fields
    similar = difflib.get_close_matches(str(key), names, n=1)
    return f"did you mean {quote_list(similar)}?" if similar else f"there are {quote_list(names)}"
