"""Reading the configuration again while the server runs."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from antiphon.config.listing import hide_folders
from antiphon.config.load import Config, ConfigError
from antiphon.errors import ApiError, ClientError
from antiphon.wire.http.reload import ReloadReport

LoadConfig = Callable[[], Config]
"""Reads the configuration from the files, variables and flags that the server was started with; raises `ConfigError`."""


async def load_again(load: LoadConfig | None) -> Config:
    """
    The configuration, read in a thread.

    Raises:
        ClientError: there is a mistake in it, or there is none to be read.
    """
    if load is None:
        raise ClientError("This server has no configuration to read again.", status=409, code="reload_unavailable")
    try:
        return await asyncio.to_thread(load)
    except ConfigError as error:
        raise invalid_configuration(error) from None


def invalid_configuration(error: ApiError) -> ClientError:
    """The error for who asked for a reload: a line for each mistake, which names files without their folders."""
    structlog.get_logger().error("reload_failed", message=error.operator_message)
    return ClientError(f"The configuration stays as it was. {hide_folders(error.message)}", status=409, code="invalid_configuration")


def log_report(report: ReloadReport, problems: Mapping[str, str]) -> None:
    """
    Log what changed.

    Args:
        problems: why models can't be served, by name.
    """
    log = structlog.get_logger()
    log.info("reloaded", added=report.added, changed=report.changed, removed=report.removed, settings=report.settings)
    for name, message in problems.items():
        log.error("model_failed", model=name, message=message)
    if report.restart:
        log.warning("restart_needed", settings=report.restart, message="These settings are changed by a restart only.")
