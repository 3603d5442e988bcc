"""
The page's cookie: with it a browser asks for the page's next key, and can do nothing else.

It counts only in requests of the server's own page, so that no other page can use it. Browsers share cookies between all
ports of a host, so its name has the port.
"""

import ipaddress
import re

from starlette.datastructures import Headers

from antiphon.server.transport.host import parse_host

PATH = "/console/keys"

_PORT = re.compile(r":([0-9]{1,5})$")


def can_keep_cookie(headers: Headers) -> bool:
    """Whether a request comes from the server's own page, over TLS or from this machine: nobody else reads the cookie then."""
    host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
    # Fetch: a page can't set headers that begin with `Sec-`, nor `Origin`, so both are the browser's own word.
    if headers.get("sec-fetch-site") != "same-origin" or not host:
        return False
    # Its scheme is the browser's: behind a proxy that ends TLS, this server sees plain HTTP.
    return origin == f"https://{host}" or (origin == f"http://{host}" and _is_loopback(parse_host(host) or ""))


def sent_cookie(headers: Headers) -> str | None:
    """The cookie in such a request; None where there is none, or several, of which one may be another server's."""
    if not can_keep_cookie(headers):
        return None
    pairs = [pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";")]
    values = [value for name, _, value in pairs if name == _name(headers)]
    return values[0] if len(values) == 1 else None


def cookie_header(headers: Headers, value: str, max_age_s: int) -> str:
    """The value of `Set-Cookie`; `max_age_s` of 0 deletes it."""
    attributes = f"Path={PATH}; Max-Age={max_age_s}; HttpOnly; SameSite=Strict"
    # Browsers ignore a cookie with `Secure` that comes over plain HTTP.
    secure = "; Secure" if headers.get("origin", "").lower().startswith("https://") else ""
    return f"{_name(headers)}={value}; {attributes}{secure}"


def _name(headers: Headers) -> str:
    port = _PORT.search(headers.get("host", ""))
    return f"antiphon_console_{port[1]}" if port else "antiphon_console"


def _is_loopback(name: str) -> bool:
    # Secure Contexts, 3.1: the addresses and names that browsers trust without TLS.
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
