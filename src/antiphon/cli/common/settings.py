"""The configuration, as commands read it. It loads pydantic, so `main` and what it imports stay clear of it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from antiphon.cli.common import lazy
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.config import load as config_files
from antiphon.config.load import Config, ConfigError, LoadedConfig
from antiphon.masking import mask_password
from antiphon.stores.base import Store

NO_KEYS_SETTING = "`require_keys = false` under `[server]`, which serves this machine without keys"
"""The way back for those who have no key for their own server, as the end of a sentence."""

ResultT = TypeVar("ResultT")


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
    scheme = config.server.scheme
    return f"{scheme}://[{host}]:{config.server.port}" if ":" in host else f"{scheme}://{host}:{config.server.port}"


def store_location(config: Config) -> str:
    """Where responses and keys are stored, without passwords."""
    if config.database_url is None:
        return "in memory, until it stops"
    return mask_password(config.database_url).removeprefix("sqlite:///")


def with_store(config: Config, what: str, work: Callable[[Store], Awaitable[ResultT]]) -> ResultT:
    """
    Do something with the configured store, beside the servers that use it.

    Args:
        what: needs the store, as the start of a sentence.

    Raises:
        UsageError: it does not last.
    """
    url = config.database_url
    if url is None:
        raise UsageError(f"{what} need a store that lasts, and `store.url` is `memory`.")

    async def open_and_work() -> ResultT:
        store = lazy.store.SqlStore(url)
        try:
            await store.open()
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(open_and_work())
