"""What several verbs take alike."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from antiphon.cli.common.shell import Shell

ConfigFlag = Annotated[Path | None, Parameter(name="--config", help="a configuration file, read after those in their usual places.")]
JsonFlag = Annotated[bool, Parameter(name="--json", help="as JSON.")]
UrlFlag = Annotated[str | None, Parameter(name="--url", help="base address of the server, such as http://127.0.0.1:8642/v1.")]
ShellParameter = Annotated[Shell, Parameter(parse=False)]
"""The shell that a verb runs in; given by the program, not typed."""
