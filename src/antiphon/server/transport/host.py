"""The `Host` header."""

import functools
import ipaddress
import re

MAX_PORT = 65_535

_HOST = re.compile(
    r"""(?: \[ (?P<ipv6> [0-9A-Fa-f:.]+ ) \]
        | (?P<name> (?: [A-Za-z0-9._~!$&'()*+,;=-] | %[0-9A-Fa-f]{2} )+ )
        ) (?: : (?P<port> [0-9]* ) )?""",
    re.VERBOSE,
)


@functools.lru_cache(maxsize=256)
def parse_host(text: str) -> str | None:
    """
    The name or address in a `Host` header: in lower case, without port and brackets; None if the header is malformed.

    Source: RFC 9112 3.2 and RFC 3986 3.2.2. An empty host is malformed because addresses of the schemes `http` and
    `https` have one (RFC 9110 4.2).
    """
    match = _HOST.fullmatch(text)
    # A URL's port may begin with zeros; more digits than `MAX_PORT` has are too many, however many come.
    if match is None or int((match["port"] or "").lstrip("0")[:6] or 0) > MAX_PORT:
        return None
    if match["name"]:
        return match["name"].lower().rstrip(".") or None
    try:
        return str(ipaddress.IPv6Address(match["ipv6"]))
    except ValueError:
        return None
