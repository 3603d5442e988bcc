"""
Logging: readable lines on a terminal, JSON lines elsewhere. Never keys; prompts and answers only where
`logging.content` is set.
"""

import contextlib
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO, cast

import msgspec
import structlog

from antiphon.config.settings import LoggingSettings
from antiphon.server.transport.log_lines import LINES
from antiphon.server.transport.stderr_lines import StderrCapture

_logger: structlog.typing.FilteringBoundLogger | None = None
"""As it is configured now: structlog's own makes another one for each line."""

_capture: StderrCapture | None = None
"""Of this process, where all of its standard error is the log."""


def is_json(settings: LoggingSettings) -> bool:
    """Whether the log is JSON lines."""
    return settings.format == "json" or (settings.format == "auto" and not sys.stderr.isatty())


def own_stderr(settings: LoggingSettings) -> None:
    """
    Make all of this process's standard error the log, until its end: what libraries, native code and child processes
    write there, too. For the program of a server, and only where the log is JSON; people read a terminal as it is.
    """
    global _capture
    if not is_json(settings) or _capture is not None:
        return
    configure(settings)
    _capture = StderrCapture(_log_stderr)
    configure(settings)
    log_libraries()


def _log_stderr(message: str) -> None:
    """The program's own notes, such as how far a download is, warn of nothing; what libraries write may."""
    prefix = "antiphon: "
    if message.startswith(prefix):
        get().info("note", message=message.removeprefix(prefix))
    else:
        get().warning("stderr", message=message)


def release_stderr() -> None:
    """Give standard error back as it was before `own_stderr`."""
    global _capture
    if _capture is not None:
        _capture.close()
        _capture = None


def log_libraries() -> None:
    """Have what libraries log and warn of in this process become lines of the log."""
    logging.captureWarnings(True)
    logging.getLogger().addHandler(_LibraryHandler())


class _LibraryHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that don't fit the format are the library's mistake
            message = str(record.msg)
        fields = {"exc_info": record.exc_info} if record.exc_info else {}
        get().log(record.levelno, "library", name=record.name, message=message, **fields)


class _LogFile:
    """A stream for the log; what can't be written is lost, as on a terminal that was closed or a full disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(settings: LoggingSettings) -> None:
    """Log to standard error, with the configured format and level."""
    global _logger
    _logger = None
    pretty = not is_json(settings)
    stream = _LogFile(sys.stderr if _capture is None else _capture.file)
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(pad_event_to=0) if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if pretty else "iso", utc=not pretty),
            structlog.processors.format_exc_info,
            _put_event_first,
            _keep_line,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.level.upper())),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, stream)),
        cache_logger_on_first_use=False,
    )
    for name in ("uvicorn", "uvicorn.error", "asyncio", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _put_event_first(_logger: object, _method: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {"event": entry.pop("event"), **entry}


def _keep_line(_logger: object, _method: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    LINES.add(entry)
    return entry


def get() -> structlog.typing.FilteringBoundLogger:
    """The server's logger."""
    global _logger
    if _logger is None:
        _logger = structlog.get_logger().bind()
    return _logger


_CREDENTIALS: Mapping[str, Sequence[str]] = {
    "mcp": ("authorization", "headers"),
    "allowlist": ("domain_secrets",),
    "url": ("authorization_token",),
}
"""The secret fields of objects, by their type: of the Responses API, and of the Messages API the last."""

_CREDENTIAL_WORDS = (b'"mcp"', b'"domain_secrets"', b'"authorization_token"')
"""One of them is in each request that has credentials."""


def content_text(body: bytes) -> str:
    """JSON of a client as it is logged where `logging.content` is set: as it came, without credentials of tools."""
    if any(word in body for word in _CREDENTIAL_WORDS):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):  # what can't be read is refused, and opens nothing
            body = msgspec.json.encode(_without_credentials(msgspec.json.decode(body)))
    return body.decode(errors="replace")


def _without_credentials(value: object) -> object:
    if isinstance(value, list):
        return [_without_credentials(each) for each in value]
    if not isinstance(value, dict):
        return value
    names = _CREDENTIALS.get(kind, ()) if isinstance(kind := value.get("type"), str) else ()
    return {name: _without_credentials(each) for name, each in value.items() if name not in names}
