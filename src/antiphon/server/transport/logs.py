"""
Logging: readable lines on a terminal, JSON lines elsewhere. Never keys; prompts and answers only where
`logging.content` is set.
"""

import logging
import sys

import structlog

from antiphon.config.settings import LoggingSettings


def configure(settings: LoggingSettings) -> None:
    """Log to standard error, with the configured format and level."""
    pretty = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(pad_event_to=0) if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if pretty else "iso", utc=not pretty),
            structlog.processors.format_exc_info,
            _put_event_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    for name in ("uvicorn", "uvicorn.error", "asyncio", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _put_event_first(_logger: object, _method: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {"event": entry.pop("event"), **entry}


def get() -> structlog.typing.FilteringBoundLogger:
    """The server's logger."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
