"""The configuration as the verbs use it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.cli.common.shell import Shell, UsageError

if TYPE_CHECKING:
    from antiphon.config.load import Config, LoadedConfig


def load(shell: Shell, file: Path | None, flags: Mapping[str, Any] | None = None) -> "LoadedConfig":
    """
    The configuration that holds for this run, and who set what.

    Args:
        file: what `--config` named.
        flags: by dotted key; None stands for a flag that was not given.

    Raises:
        UsageError: with a line for each mistake.
    """
    from antiphon.config import load as config  # noqa: PLC0415 - pydantic takes longer to load than `--help` takes altogether

    try:
        return config.load(flags or {}, file, shell.environ, shell.cwd)
    except config.ConfigError as mistake:
        raise UsageError(mistake.message) from mistake


def base_url(config: "Config") -> str:
    """Where a server with this configuration is reached from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.server.host, config.server.host)
    return f"http://[{host}]:{config.server.port}" if ":" in host else f"http://{host}:{config.server.port}"


def mask_password(url: str) -> str:
    """A database's address without the password in it."""
    return re.sub(r"(?<=://)([^:@/]*):[^@/]*@", r"\1:***@", url)
