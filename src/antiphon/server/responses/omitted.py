"""Reports what the model did not get of a request: headers for the client, a log line for the operator."""

import re
from collections.abc import Iterable

from antiphon.protocols.omissions import Omissions
from antiphon.server.transport import logs

HEADERS = {
    "antiphon-tools-not-offered": "tools",
    "antiphon-grammars-not-enforced": "grammars",
    "antiphon-items-not-told": "items",
}
"""Headers, and the field of `Omissions` that each lists."""

MAX_NAMES = 32


def omission_headers(omissions: Omissions) -> dict[str, str]:
    """Headers that name what was left out; empty where nothing was."""
    return {header: _join_names(names) for header, field in HEADERS.items() if (names := getattr(omissions, field))}


def log_omissions(omissions: Omissions, model: str) -> None:
    """Log what was left out."""
    fields = {field: _join_names(names) for field in HEADERS.values() if (names := getattr(omissions, field))}
    logs.get().info("left_out", model=model, **fields)


def _join_names(names: Iterable[str]) -> str:
    """Each name once. Names come from requests, so characters that are not safe in a header are replaced."""
    safe_names = dict.fromkeys(re.sub(r"[^\w.:-]", "_", name, flags=re.ASCII)[:64] for name in names)
    return ", ".join(list(safe_names)[:MAX_NAMES])
