"""Loads an operator's functions, in the process that runs them."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from antiphon.tools.functions.signature import ToolFunction, UnsuitableFunction

ENTRY_POINTS = "antiphon.tools"
"""The group of entry points; each is a function, a list of functions, or a module with some."""

MAX_FUNCTIONS = 128
"""As many as the original lets a request have; a model chooses badly among more."""

_MODULE = "antiphon_functions"


class LoadError(Exception):
    """Functions can't be loaded; the message says why, for the operator."""


def load_functions(file: str | None, entry_point: str | None) -> dict[str, ToolFunction]:
    """
    The functions of a file or of an entry point, by name.

    Raises:
        LoadError: they can't be loaded, or one is no tool.
    """
    try:
        target = _load_file(Path(file)) if file is not None else _load_entry_point(entry_point or "")
        functions = [ToolFunction(function) for function in _functions_of(target)]
    except (LoadError, UnsuitableFunction) as error:
        raise LoadError(str(error)) from None
    except BaseException as error:  # The operator's code may raise anything; `sys.exit` is no reason to end either.
        raise LoadError(_where(error)) from None
    if not 0 < len(functions) <= MAX_FUNCTIONS:
        raise LoadError(f"there must be 1 to {MAX_FUNCTIONS} functions without '_' in front, but there are {len(functions)}")
    names = [function.name for function in functions]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise LoadError(f"more than one function is named '{duplicates[0]}'")
    return {function.name: function for function in functions}


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoadError("there is no such file")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise LoadError("it is no Python file, whose name ends in '.py'")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses and type hints look their module up
    sys.path.insert(0, str(path.parent))  # as when Python runs a file
    spec.loader.exec_module(module)
    return module


def _load_entry_point(name: str) -> object:
    matches = [*entry_points(group=ENTRY_POINTS, name=name)]
    if len(matches) != 1:
        names = ", ".join(sorted({each.name for each in entry_points(group=ENTRY_POINTS)})) or "none"
        raise LoadError(f"{len(matches)} entry points of the group '{ENTRY_POINTS}' are named '{name}'; there are: {names}")
    return matches[0].load()


def _functions_of(target: object) -> Sequence[Callable[..., object]]:
    if isinstance(target, ModuleType):
        names = getattr(target, "__all__", None)
        if names is not None:
            return [getattr(target, name) for name in names if inspect.isroutine(getattr(target, name))]
        # Without `__all__`, what the file only imports from elsewhere is not meant as a tool.
        members = [value for name, value in vars(target).items() if not name.startswith("_") and inspect.isfunction(value)]
        return [function for function in members if function.__module__ == target.__name__]
    functions = target if isinstance(target, list | tuple) else (target,)
    if not all(inspect.isfunction(function) for function in functions):
        raise LoadError(f"expected a function, a list of functions or a module, got {type(target).__name__}")
    return functions


def _where(error: BaseException) -> str:
    """The error, with the line of the operator's file that it comes from."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    # Frames of Python's import machinery don't help the author of the file.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    line = f"line {frames[-1].lineno} of {Path(frames[-1].filename).name}: " if len(frames) > 1 else ""
    return f"{line}{type(error).__name__}: {error}"
