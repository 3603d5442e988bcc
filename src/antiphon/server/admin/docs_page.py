"""`GET /docs`: the OpenAPI document as a page. It loads nothing from other hosts and runs only its own script."""

import base64
import hashlib
import re
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.operation import Operation

_DOCS = Operation("getDocumentPage", "Server", "The OpenAPI document as a page", media_types=("text/html",))


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/docs`."""
    page = files("antiphon.server.admin").joinpath("docs_page.html").read_text()
    headers = {
        "content-security-policy": _content_security_policy(page),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }

    async def docs(_request: Request) -> Response:
        return Response(page, headers=headers, media_type="text/html")

    return [GuardedRoute("/docs", docs, service=service, access="public", operation=_DOCS)]


def _content_security_policy(page: str) -> str:
    """Allows only the scripts and styles inside the page, and requests to this server."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {_source_hash('script', page)}",
            f"style-src {_source_hash('style', page)}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _source_hash(tag: str, page: str) -> str:
    # CSP 3, 2.3.1: the hash allows this very text. Another script that found its way into the page would not run.
    text = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert len(text) == 1
    return f"'sha256-{base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()}'"
