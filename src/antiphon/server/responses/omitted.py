"""What a client and the log are told of a request that the model is given only part of."""

import re
from collections.abc import Iterable

from antiphon.protocols.responses.tools import Omissions
from antiphon.server.transport import logs

HEADERS = {
    "antiphon-tools-not-offered": "tools",
    "antiphon-grammars-not-enforced": "grammars",
    "antiphon-items-not-told": "items",
}
"""Each header, and the field of `Omissions` that it lists."""

MAX_NAMES = 32


def omission_headers(omissions: Omissions) -> dict[str, str]:
    """The headers that say what was left out; none where nothing was."""
    return {header: _join_names(names) for header, field in HEADERS.items() if (names := getattr(omissions, field))}


def log_omissions(omissions: Omissions, model: str) -> None:
    """One line for the operator."""
    named = {field: _join_names(names) for field in HEADERS.values() if (names := getattr(omissions, field))}
    logs.get().info("left_out", model=model, **named)


def _join_names(names: Iterable[str]) -> str:
    """Each name once; names come from requests, and in a header they may be nothing but words."""
    words = dict.fromkeys(re.sub(r"[^\w.:-]", "_", name, flags=re.ASCII)[:64] for name in names)
    return ", ".join(list(words)[:MAX_NAMES])
