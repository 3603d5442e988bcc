"""Which of the server's own packages code may import: some by name with what they need, never the whole environment."""

import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

DEFAULT_PACKAGES = ("numpy", "pandas", "matplotlib", "pillow")

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def find_packages(names: Iterable[str]) -> dict[str, Path]:
    """
    The files and folders that make up the packages that are installed, with all that they require.

    Args:
        names: of distributions; those that are not installed are left out.

    Returns:
        Paths by the names that they have in `site-packages`.
    """
    paths: dict[str, Path] = {}
    pending, known_names = list(names), set[str]()
    while pending:
        name = pending.pop()
        if (key := re.sub(r"[-_.]+", "-", name).lower()) in known_names:
            continue
        known_names.add(key)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        # Extras are optional. Of other markers none is evaluated: what they exclude is rarely installed.
        pending += [_NAME.match(each)[0] for each in distribution.requires or () if "extra ==" not in each and _NAME.match(each)]  # type: ignore[index]
        paths |= _top_paths(distribution)
    return paths


def _top_paths(distribution: metadata.Distribution) -> dict[str, Path]:
    # `..` leads to scripts in `bin`, and a `.pth` file is nothing to import.
    tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    paths = {top: Path(str(distribution.locate_file(top))) for top in sorted(tops) if not top.endswith(".pth")}
    return {top: path.resolve() for top, path in paths.items() if path.exists()}
