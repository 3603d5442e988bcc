"""
`GET /` and `GET /console/assets/{name}`: the page, for browsers.

Other clients get a 404 at `/`, because some of them probe it to guess what server this is. Without the page a browser
is redirected to `/docs`.
"""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from antiphon.runtime.service import Service
from antiphon.server.console.assets import Asset, PageFiles, page_files
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import on_http_exception
from antiphon.server.http.operation import Header, Operation

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
"""Nothing is loaded from elsewhere, nothing runs inline, and no text becomes code."""

PAGE_HEADERS: Mapping[str, str] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,  # for scripts too: a worker has the policy that comes with its own file
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(self)",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

IMMUTABLE, REVALIDATE = "public, max-age=31536000, immutable", "no-cache"

# Its link is relative, as all of the page's: a proxy may serve it below a prefix.
MISSING_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>antiphon</title>"
    "<h1>This antiphon server is installed without its web page</h1>"
    "<p>The files of the page are missing in this installation. Everything else works: <a href=docs>what there is</a>."
)

_CACHING = {
    "etag": Header("Identifies the content.", {"type": "string"}),
    "cache-control": Header("How long it may be kept.", {"enum": [IMMUTABLE, REVALIDATE]}),
}
_NOT_MODIFIED = "304 where `if-none-match` names its `etag`. Compressed for clients that take gzip."
_INDEX = Operation(
    "getFrontPage",
    "Console",
    "The page",
    errors={404: "The client does not accept HTML."},
    description=_NOT_MODIFIED,
    media_types=("text/html",),
    headers=_CACHING,
)
_REDIRECT = Operation(
    "getFrontPage",
    "Server",
    "Redirect a browser to `/docs`",
    errors={404: "The client does not accept HTML."},
    status=307,
    media_types=("text/html",),
)
_ASSET = Operation(
    "getConsoleAsset",
    "Console",
    "A file of the page",
    errors={404: "There is no such file."},
    description=_NOT_MODIFIED,
    media_types=("*/*",),
    headers=_CACHING,
)


def routes(service: Service) -> list[GuardedRoute]:
    """The routes of the page; without it, a redirect of `/` to `/docs`."""
    return page_routes(service, page_files()) if service.config.server.console else _redirect(service)


def _redirect(service: Service) -> list[GuardedRoute]:
    async def index(request: Request) -> Response:
        if not accepts_html(request):
            return await _not_found(request)
        # RFC 9110, 12.5.5: the response depends on these headers, so a cache keeps one for each.
        return Response(status_code=307, headers={"location": "/docs", "vary": "Origin, Accept"}, media_type="text/html")

    return [GuardedRoute("/", index, service=service, access="public", operation=_REDIRECT)]


def page_routes(service: Service, page: PageFiles) -> list[GuardedRoute]:
    """The routes `/` and `/console/assets/{name}`."""

    async def index(request: Request) -> Response:
        return await answer_index(request, page)

    async def asset(request: Request) -> Response:
        return await answer_asset(request, page, request.path_params["name"])

    return guarded_routes(
        service,
        [
            ("GET", "/", index, "public", _INDEX),
            ("GET", "/console/assets/{name}", asset, "public", _ASSET),
        ],
    )


async def answer_index(request: Request, page: PageFiles) -> Response:
    """The page for a browser, a 404 for other clients."""
    if not accepts_html(request):
        return await _not_found(request)
    if page.index_page is None:
        headers = dict(PAGE_HEADERS) | {"cache-control": REVALIDATE, "vary": "Origin, Accept"}
        return Response(MISSING_PAGE, headers=headers, media_type="text/html")
    return await _answer(request, page.index_page, vary="Origin, Accept, Accept-Encoding")


async def answer_asset(request: Request, page: PageFiles, name: str) -> Response:
    """
    A file of the page.

    Raises:
        HTTPException: 404; there is no such file.
    """
    # A look into a table, never at the disk: no name leads out of the page.
    file = page.assets.get(name)
    if file is None:
        raise HTTPException(404)
    return await _answer(request, file, vary="Accept-Encoding")


async def _not_found(request: Request) -> Response:
    # A cache must not give it to a browser.
    response = await on_http_exception(request, HTTPException(404))
    response.headers.add_vary_header("Origin")
    response.headers.add_vary_header("Accept")
    return response


async def _answer(request: Request, asset: Asset, *, vary: str) -> Response:
    content = await asset.content()
    is_small = content.gzip is not None and _accepts_gzip(request)
    # RFC 9110 8.8.3.3: what is encoded differently has another tag.
    etag = f'"{content.etag}-gzip"' if is_small else f'"{content.etag}"'
    # A name with a hash never gets other content, so a browser need not ask again.
    headers = dict(PAGE_HEADERS) | {"etag": etag, "vary": vary, "cache-control": IMMUTABLE if asset.is_immutable else REVALIDATE}
    if _has_tag(request, etag):
        return Response(status_code=304, headers=headers)
    if is_small:
        headers["content-encoding"] = "gzip"
    headers["content-type"] = asset.media_type
    return Response(content.gzip if is_small else content.plain, headers=headers)


def _has_tag(request: Request, etag: str) -> bool:
    """Whether `If-None-Match` names the tag, compared weakly as RFC 9110 13.1.2 says."""
    tags = [tag.strip().removeprefix("W/") for tag in ",".join(request.headers.getlist("if-none-match")).split(",")]
    return etag in tags or "*" in tags


def _accepts_gzip(request: Request) -> bool:
    """Whether the client takes gzip; one that says nothing gets the file as it is (RFC 9110 12.5.3)."""
    weights: dict[str, bool] = {}
    for coding in ",".join(request.headers.getlist("accept-encoding")).lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        quality = next((part.removeprefix("q=") for part in parameters if part.startswith("q=")), "1")
        # RFC 9110, 12.4.2: zero, in any spelling, is "not acceptable".
        weights[name] = quality.strip("0.") != ""
    return weights.get("gzip", weights.get("*", False))


def accepts_html(request: Request) -> bool:
    """Whether the `Accept` header names HTML; `*/*` does not count, as programs send that too."""
    media_ranges = ",".join(request.headers.getlist("accept")).split(",")
    return any(media_range.partition(";")[0].strip().lower() == "text/html" for media_range in media_ranges)
