"""The configuration, as commands read it. It loads pydantic, so `main` and what it imports stay clear of it."""

import re
from collections.abc import Mapping
from pathlib import Path

from antiphon.cli.common.shell import Shell, UsageError
from antiphon.config import load as config_files
from antiphon.config.load import Config, ConfigError, LoadedConfig

_QUERY_FIELD = re.compile(r"([?&;]([^=&;#\s]*)=)([^&;#\s]*)")

NO_KEYS_SETTING = "`require_keys = false` under `[server]`, which serves this machine without keys"
"""The way back for those who have no key for their own server, as the end of a sentence."""

MASK = "***"
"""What stands for a secret."""

_SECRET_WORDS = frozenset(
    "key apikey token secret password passwd pwd passphrase credential credentials signature sig authorization".split()
)


def load(shell: Shell, file: Path | None, flags: Mapping[str, object] | None = None) -> LoadedConfig:
    """
    The configuration of this run, and what set each setting.

    Args:
        file: the value of `--config`.
        flags: by dotted key; None stands for a flag that was not typed.

    Raises:
        UsageError: the configuration is wrong; one line for each error.
    """
    try:
        return config_files.load(flags or {}, file, shell.environ, shell.cwd)
    except ConfigError as error:
        raise UsageError(error.message) from error


def base_url(config: Config) -> str:
    """The address of a server with this configuration, from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.server.host, config.server.host)
    return f"http://[{host}]:{config.server.port}" if ":" in host else f"http://{host}:{config.server.port}"


def store_location(config: Config) -> str:
    """Where responses and keys are stored, without passwords."""
    if config.database_url is None:
        return "in memory, until it stops"
    return mask_password(config.database_url).removeprefix("sqlite:///")


def mask_password(url: str) -> str:
    """A text with addresses, without the passwords and keys in them."""
    without_password = re.sub(r"(?<=://)([^:@/?#\s]*):\S*@", rf"\1:{MASK}@", url)
    return re.sub(
        r"([?&;]([^=&;#\s]*)=)([^&;#\s]*)", lambda match: match[1] + (MASK if _is_secret(match[2]) else match[3]), without_password
    )


def mask_secrets(value: object, name: str = "") -> object:
    """
    A setting's value with a mask for each secret in it, at any depth: passwords in addresses, all values of `headers`,
    and what is named like a key.

    Args:
        name: of the setting.
    """
    if isinstance(value, dict):
        return {key: MASK if name == "headers" else mask_secrets(each, key) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [mask_secrets(each, name) for each in value]
    if isinstance(value, str):
        return MASK if value and _is_secret(name) else mask_password(value)
    return value


def _is_secret(name: str) -> bool:
    # Settings that end in `_env` name a variable, and no setting that holds a secret has a number in it.
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return not name.endswith(("_env", "_per_key")) and not _SECRET_WORDS.isdisjoint(words)
