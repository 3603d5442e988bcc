"""How this copy of antiphon was installed, and so what installs more of it."""

import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

_PACKAGE_FOLDER = Path(__file__).resolve().parent


def install_hint(*extras: str) -> str:
    """A sentence with the command that adds these extras of antiphon, or without any, what antiphon itself requires."""
    return describe_command(extras, _read_origin(), _PACKAGE_FOLDER, sys.prefix)


def describe_command(extras: Iterable[str], origin: Mapping[str, object] | None, package_folder: Path, prefix: str) -> str:
    """
    The sentence of `install_hint`, for any installation. It names no folder outside the clone, as clients read it too.

    Args:
        origin: `direct_url.json` of the installation; None where there is none, as after an installation by name.
            Source: https://packaging.python.org/en/latest/specifications/direct-url/
        package_folder: where the package is imported from.
        prefix: of the environment.
    """
    names = ",".join(extras)
    suffix = f"[{names}]" if names else ""
    clone = _clone(origin, package_folder)
    if clone is None:
        return f"Run `pip install 'antiphon{suffix}'`."
    folder = origin.get("dir_info") if origin is not None else None
    is_copy = isinstance(folder, Mapping) and not folder.get("editable")
    # What `make install` made is used without being activated, and then another environment's pip comes first.
    pip = f"{os.path.relpath(prefix, clone)}/bin/pip" if Path(prefix).is_relative_to(clone) else "pip"
    return f"Run `{pip} install {'' if is_copy else '-e '}'.{suffix}'` in the clone."


def missing_modules(names: Iterable[str]) -> list[str]:
    """Those of the modules that are not installed; none is imported."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def _clone(origin: Mapping[str, object] | None, package_folder: Path) -> Path | None:
    """The folder with `pyproject.toml` that this copy comes from; None if it comes from a package index or a wheel."""
    if origin is None:
        folder = package_folder.parent.parent
        return folder if (folder / "pyproject.toml").is_file() else None
    return Path(unquote(urlsplit(str(origin.get("url", ""))).path)) if "dir_info" in origin else None


def _read_origin() -> Mapping[str, object] | None:
    try:
        text = metadata.distribution("antiphon").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin = json.loads(text) if text else None
    return origin if isinstance(origin, dict) else None
