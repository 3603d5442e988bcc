"""The page `docs/reference/cli.md`, made from the program's own help. Run it to write the page anew; `make fix` does."""

import io
from pathlib import Path

from antiphon.cli.common.shell import Shell
from antiphon.cli.main import build_app, run

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"

_TOP = """# Command line

Made from the program's own help by `make fix`; a test compares the two.

What was asked for goes to the standard output, everything else to the standard error. Exit codes:

| code | |
|---|---|
| 0 | done |
| 1 | it failed; one line on the standard error says why and what to do |
| 2 | it was asked or configured wrongly |
| 130 | interrupted |
| 141 | nobody reads the output any more |

What is configured and can't be had at the moment is 1: an address that is taken or is none of this machine's, a store that doesn't answer,
keys that are still to be made. So is what several processes find only as they start.
"""


def page() -> str:
    sections = [f"## {' '.join(('antiphon', *verb))}\n\n```text\n{_help(verb)}\n```\n" for verb in verbs()]
    return "\n".join([_TOP, *sections])


def verbs() -> list[tuple[str, ...]]:
    """Every verb, the program itself first."""
    found: list[tuple[str, ...]] = [()]
    app = build_app()
    for name in (name for name in app if not name.startswith("-")):
        found.append((name,))
        found.extend((name, inner) for inner in app[name] if not inner.startswith("-"))
    return found


def _help(verb: tuple[str, ...]) -> str:
    out = io.StringIO()
    run((*verb, "--help"), Shell(environ={}, cwd=Path("/"), stdin=io.StringIO(), stdout=out, stderr=out))
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(page())
