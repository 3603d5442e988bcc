"""The page `docs/reference/cli.md`, made from the program's own help. Run this file, or `make fix`, to write the page anew."""

import io
from pathlib import Path

from antiphon.cli.common.shell import Shell
from antiphon.cli.main import COMMANDS, build_app, run

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"

_TOP = """# Command line

Made from the program's own help by `make fix`; a test compares the two.

Results go to standard output, everything else to standard error. Exit codes:

| code | |
|---|---|
| 0 | success |
| 1 | failure; one line on standard error says why and what to do |
| 2 | the arguments or the configuration are wrong |
| 130 | interrupted |
| 141 | the reader of the output has gone |

A valid configuration that can't be used at the moment exits with 1: the address is taken or belongs to another machine, the store doesn't
answer, or there are no keys yet. So does an error that several processes find only as they start.
"""


def page() -> str:
    sections = [f"## {' '.join(('antiphon', *command))}\n\n```text\n{_help(command)}\n```\n" for command in commands()]
    return "\n".join([_TOP, *sections])


def commands() -> list[tuple[str, ...]]:
    """Every command, the program itself first."""
    paths: list[tuple[str, ...]] = [()]
    app = build_app(tuple(COMMANDS))
    for name in (name for name in app if not name.startswith("-")):
        paths.append((name,))
        paths.extend((name, inner) for inner in app[name] if not inner.startswith("-"))
    return paths


def _help(command: tuple[str, ...]) -> str:
    out = io.StringIO()
    run((*command, "--help"), Shell(environ={}, cwd=Path("/"), stdin=io.StringIO(), stdout=out, stderr=out))
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(page())
