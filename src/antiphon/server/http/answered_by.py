"""Headers that say who answered: the model, how many were asked, why another one was, and what became of the answer."""

import functools
import re
from collections.abc import Callable, MutableMapping

from antiphon.engine_api.events import AttemptsReported, RewriteStatus
from antiphon.runtime.routing.router import ROUTE_HEADER
from antiphon.runtime.service import Service
from antiphon.server.http.operation import Header

MAX_HEADER_CHARS = 256

MODEL_HEADER = "antiphon-model"
ATTEMPTS_HEADER = "antiphon-attempts"
FALLBACK_HEADER = "antiphon-fallback"
UPSTREAM_HEADER = "antiphon-upstream"
REWRITE_HEADER = "antiphon-rewrite"

ANSWER_HEADERS = {
    MODEL_HEADER: Header("The model that answered.", {"type": "string"}),
    ATTEMPTS_HEADER: Header(
        "How many upstreams were asked, for a model with several or with fallbacks.", {"type": "integer", "minimum": 1}
    ),
    FALLBACK_HEADER: Header("The model asked for, the one that answered instead, and why.", {"type": "string"}),
    UPSTREAM_HEADER: Header("The name of the upstream that answered, if `server.upstream_header` is set.", {"type": "string"}),
}
ROUTE_HEADERS = {
    ROUTE_HEADER: Header(
        "Why a request that named a route got its model.",
        {"type": "string", "examples": ['category=reasoning; source=rule; rule=2; reason="Input length >= 500 tokens"']},
    )
}
REWRITE_HEADERS = {
    REWRITE_HEADER: Header("What became of rewriting the answer, if it is whole.", {"type": "string", "enum": ["completed", "failed"]})
}


def report_attempts(service: Service, model: str, headers: MutableMapping[str, str]) -> Callable[[AttemptsReported], None]:
    """
    Set the headers of an answer, before it begins, to who is to give it.

    Args:
        model: that was asked for.

    Returns:
        What takes the report of who does, and updates `headers`.
    """
    headers[MODEL_HEADER] = _header_text(model)

    def on_attempts(report: AttemptsReported) -> None:
        last = report.attempts[-1]
        headers[MODEL_HEADER] = _header_text(last.model)
        headers[ATTEMPTS_HEADER] = str(len(report.attempts))
        if report.fallback_reason:
            headers[FALLBACK_HEADER] = _header_text(f"{model}>{last.model}; reason={report.fallback_reason}")
        if service.config.server.upstream_header and last.upstream:
            headers[UPSTREAM_HEADER] = _header_text(last.upstream)

    return on_attempts


def rewrite_headers(status: RewriteStatus | None) -> dict[str, str]:
    """The header of a whole answer that was rewritten; nothing for one that was not."""
    return {} if status is None else {REWRITE_HEADER: status}


@functools.lru_cache(maxsize=256)
def _header_text(text: str) -> str:
    """The text as a header may have it: names of models come from requests."""
    return re.sub(r"[^\x20-\x7e]", "_", text).strip()[:MAX_HEADER_CHARS]
