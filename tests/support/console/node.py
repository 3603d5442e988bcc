"""The page's packages: the environment that the conformance suites' runner keeps, with Node.js from a wheel where none is installed."""

import functools
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
CONSOLE = ROOT / "console"
BUILT = ROOT / "src" / "antiphon" / "console"

UNREACHABLE = ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "No matching distribution")
"""What npm and pip say where there is no network."""


class Packages(NamedTuple):
    """
    What builds the page.

    Attributes:
        node: the program.
        folder: has `node_modules`.
    """

    node: str
    folder: Path

    def program(self, package: str, path: str) -> list[str]:
        """The command that runs a package's program."""
        return [self.node, str(self.folder / "node_modules" / package / path)]


@functools.cache
def packages() -> Packages:
    """Installed once, by `npm ci`; skips the test where the registry can't be reached."""
    spec = importlib.util.spec_from_file_location("conformance_run", ROOT / "conformance" / "run.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    try:
        return _installed(runner)
    except SystemExit as failed:
        if any(sign in str(failed) for sign in UNREACHABLE):
            pytest.skip(f"the page's packages can't be fetched, so its build is not checked: {failed}")
        raise


def _installed(runner) -> Packages:
    programs = runner.python_environment("node", runner.NODE, runner.NODE) / "bin"
    node, npm = programs / "node", programs / "npm"

    def build(folder: Path) -> None:
        folder.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(CONSOLE / name, folder / name)
        runner.run_quietly([npm, "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder)

    contents = str(node) + (CONSOLE / "package-lock.json").read_text()
    return Packages(str(node), runner.cached_environment("console", contents, build))


def checkout(folder: Path) -> Path:
    """A copy of the page's source beside its packages, laid out as in the repository so that nothing in the repository is written."""
    source = folder / "console"
    shutil.copytree(CONSOLE, source, ignore=shutil.ignore_patterns("node_modules"))
    (source / "node_modules").symlink_to(packages().folder / "node_modules")
    return source


def run(command: list[str], cwd: Path) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout
