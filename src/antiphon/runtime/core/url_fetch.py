"""
Fetches what a client's URL names, from the public internet only: nothing that the client could not have fetched itself.

A name is resolved once, all its addresses are checked, and the connection goes to a checked address: a name that
resolves differently a moment later (DNS rebinding) gains nothing. Each redirect is checked like the first URL.

Webhooks are sent past the same checks.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import AddrInfoType
from msgspec import Struct
from yarl import URL

from antiphon.engine_api.engine import Fetch
from antiphon.errors import ClientError
from antiphon.runtime.core.resolver import system_resolver

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a host name; raises `OSError` if it has none."""

CHUNK_BYTES = 1 << 16
# RFC 9110 15.4: those that have a `Location` to follow.
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
WEB_PORTS = (80, 443)
MAX_HOST_LENGTH = 253
MAX_PAGE_REDIRECTS = 5
FIRST_UNPRIVILEGED_PORT = 1024
"""Lower ports are refused except the web's: other services there might misread a request."""
BAD_PORTS = frozenset({1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080})
"""And so are these. Source: https://fetch.spec.whatwg.org/#port-blocking"""
MAX_ADDRESSES = 100
"""That a name may have."""


class FetchLimits(Struct, frozen=True, kw_only=True):
    """
    Limits of a fetch.

    Attributes:
        timeout_s: for the whole fetch, redirects included.
        content_types: prefixes of accepted types, such as `image/`; empty for any.
        allowed_networks: networks that may be reached though they are not public.
    """

    max_bytes: int = 20 << 20
    timeout_s: float = 10.0
    max_redirects: int = 3
    content_types: tuple[str, ...] = ()
    allowed_networks: tuple[Network, ...] = ()


class FetchResult(NamedTuple):
    """The body, and its type without parameters."""

    body: bytes
    content_type: str


class PageResult(NamedTuple):
    """A page: `url` is where its redirects ended, `charset` the parameter of its type, or empty."""

    url: str
    body: bytes
    content_type: str
    charset: str


UrlCheck = Callable[[str], str | None]
"""Takes a URL, and returns why it must not be asked, as the end of a sentence; None if it may be."""


async def fetch(url: str, param: str, limits: FetchLimits, resolve: Resolve = system_resolver.resolve) -> FetchResult:
    """
    Fetch `url`.

    Args:
        param: the path of the field with the URL, for errors.

    Raises:
        ClientError: it can't or may not be fetched.
    """
    page = await _fetch(url, param, limits, resolve, _check_nothing)
    return FetchResult(page.body, page.content_type)


def page_fetcher(networks: Iterable[str], resolve: Resolve = system_resolver.resolve) -> "FetchPage":
    """Fetches pages from the public internet, and from `networks`; the caller checks each redirect, too."""
    allowed_networks = tuple(ipaddress.ip_network(network) for network in networks)

    async def fetch_page(url: str, check_url: UrlCheck, max_bytes: int, timeout_s: float) -> PageResult:
        limits = FetchLimits(max_bytes=max_bytes, timeout_s=timeout_s, max_redirects=MAX_PAGE_REDIRECTS, allowed_networks=allowed_networks)
        return await _fetch(url, "url", limits, resolve, check_url)

    return fetch_page


FetchPage = Callable[[str, UrlCheck, int, float], Coroutine[None, None, PageResult]]
"""
Takes a URL, what checks the URLs that redirects lead to, and the most bytes and seconds; raises `ClientError` if the page
can't or may not be fetched.
"""


def _check_nothing(_url: str) -> None:
    return None


async def _fetch(url: str, param: str, limits: FetchLimits, resolve: Resolve, check_url: UrlCheck) -> PageResult:
    try:
        async with asyncio.timeout(limits.timeout_s), _open_session(limits, resolve) as session:
            return await _follow_redirects(session, _parse_url(url, limits), limits, check_url)
    except TimeoutError:
        reason = f"it took longer than {limits.timeout_s:g} seconds"
    except _FetchRefused as error:
        reason = str(error)
    except aiohttp.ClientError as error:
        # aiohttp wraps the resolver's errors. Others are not quoted: they may reveal something about the internal
        # network.
        reason = str(error.__cause__) if isinstance(error.__cause__, _FetchRefused) else "the server could not be reached"
    raise ClientError(f"Failed to download '{param}': {reason}.", code="invalid_url", param=param)


class PostReply(NamedTuple):
    """The status of an answer, and its `Retry-After`, None where it has none."""

    status: int
    retry_after: str | None


class PostFailure(OSError):
    """There is no answer; the message says why, for the operator of this server."""


async def post(
    url: str, body: bytes, headers: Mapping[str, str], limits: FetchLimits, resolve: Resolve = system_resolver.resolve
) -> PostReply:
    """
    Send `body` to a URL. A redirect is not followed, and the answer's body is not read.

    Raises:
        PostFailure: the URL may not be called, or no answer came in time.
    """
    try:
        async with asyncio.timeout(limits.timeout_s), _open_session(limits, resolve) as session:
            target = _parse_url(url, limits)
            async with session.post(target, data=body, headers=headers, allow_redirects=False) as reply:
                return PostReply(reply.status, reply.headers.get("retry-after"))
    except TimeoutError:
        reason = f"no answer came within {limits.timeout_s:g} seconds"
    except _FetchRefused as error:
        reason = str(error)
    except aiohttp.ClientError as error:
        reason = str(error.__cause__) if isinstance(error.__cause__, _FetchRefused) else f"no answer came: {error}"
    raise PostFailure(reason)


def fetcher(networks: Iterable[str]) -> Fetch:
    """A `Fetch` from the public internet, and from `networks`."""
    allowed_networks = tuple(ipaddress.ip_network(network) for network in networks)

    async def fetch_it(url: str, param: str, content_types: tuple[str, ...]) -> FetchResult:
        return await fetch(url, param, FetchLimits(content_types=content_types, allowed_networks=allowed_networks))

    return fetch_it


class _FetchRefused(OSError):
    """Why a URL may not be fetched, as the end of a sentence; an `OSError`, as aiohttp expects of a resolver."""


@asynccontextmanager
async def _open_session(limits: FetchLimits, resolve: Resolve) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(
        resolver=_CheckingResolver(limits, resolve), use_dns_cache=False, force_close=True, socket_factory=partial(_checked_socket, limits)
    )
    # No proxy from the environment, no cookies passed between hosts, and no compression: it would unpack to more than
    # was counted.
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"accept-encoding": "identity", "user-agent": "antiphon"},
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        yield session


def _checked_socket(limits: FetchLimits, address_info: AddrInfoType) -> socket.socket:
    """The last check: whatever happened before, no socket is opened to a forbidden address."""
    address = _parse_address(str(address_info[4][0]))
    if address is None or not is_fetchable(address, limits.allowed_networks):
        raise _FetchRefused(_NOT_PUBLIC)
    return socket.socket(*address_info[:3])


async def _follow_redirects(session: aiohttp.ClientSession, url: URL, limits: FetchLimits, check_url: UrlCheck) -> PageResult:
    for _ in range(limits.max_redirects + 1):
        async with session.get(url, allow_redirects=False) as reply:
            if reply.status not in REDIRECT_STATUSES:
                return await _read(reply, limits)
            if not (target := reply.headers.get("location")):
                raise _FetchRefused("it redirects to nowhere")
        url = _parse_url(target, limits, url)
        if (reason := check_url(str(url))) is not None:
            raise _FetchRefused(f"it redirects to a page that can't be opened: {reason}")
    raise _FetchRefused(f"it redirects more than {limits.max_redirects} times")


async def _read(reply: aiohttp.ClientResponse, limits: FetchLimits) -> PageResult:
    if reply.status != 200:
        raise _FetchRefused(f"the server answered with status {reply.status}")
    if limits.content_types and not reply.content_type.startswith(limits.content_types):
        raise _FetchRefused(f"it is of type '{reply.content_type}'")
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise _FetchRefused("it is compressed, although that was not requested")
    body = bytearray()
    if (reply.content_length or 0) <= limits.max_bytes:
        async for chunk in reply.content.iter_chunked(CHUNK_BYTES):
            body += chunk
            if len(body) > limits.max_bytes:
                break
        else:
            return PageResult(str(reply.url), bytes(body), reply.content_type, reply.charset or "")
    raise _FetchRefused(f"it is larger than {limits.max_bytes} bytes")


def _parse_url(text: str, limits: FetchLimits, base: URL | None = None) -> URL:
    """The URL, if its form is allowed."""
    try:
        url = base.join(URL(text)) if base else URL(text)
        host, port = url.host, url.port
    except (ValueError, IndexError):  # yarl 1.25 raises `IndexError` for an empty host after brackets, as in `//[::1]@/`
        raise _FetchRefused(_NOT_VALID) from None
    if url.scheme not in ("http", "https") or not host:
        raise _FetchRefused("only http and https URLs are fetched")
    if url.user is not None or url.password is not None:
        raise _FetchRefused("it carries credentials")
    if port is None or port in BAD_PORTS or (port not in WEB_PORTS and port < FIRST_UNPRIVILEGED_PORT):
        raise _FetchRefused("its port is not one of the web")
    address = _parse_address(host)
    # Such as `127.1`: libc reads it as an address without asking the resolver.
    if address is None and (host.replace(".", "").isdigit() or not _is_host_name(url.raw_host or "")):
        raise _FetchRefused(_NOT_VALID)
    if address is not None and not is_fetchable(address, limits.allowed_networks):
        raise _FetchRefused(_NOT_PUBLIC)
    return url


def _is_host_name(host: str) -> bool:
    """
    Whether a resolver can be asked for it: `getaddrinfo` raises anything but `OSError` for other names.

    Source: RFC 1123 2.1, RFC 1035 2.3.4 (63 characters a label, 253 in all), and the `_` that names have in practice.
    """
    name = host.removesuffix(".")
    return len(name) <= MAX_HOST_LENGTH and all(map(_HOST_LABEL.fullmatch, name.split(".")))


_HOST_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
_NOT_PUBLIC = "its address is not public"
_NOT_VALID = "it is not a valid URL"


class _CheckingResolver(AbstractResolver):
    """Resolves names, and refuses those with any forbidden address."""

    def __init__(self, limits: FetchLimits, resolve: Resolve) -> None:
        self._limits = limits
        self._resolve = resolve

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        texts = await self._resolve(host)
        if not 0 < len(texts) <= MAX_ADDRESSES:
            raise _FetchRefused("its name has no address" if not texts else f"its name has more than {MAX_ADDRESSES} addresses")
        addresses = [address for text in texts if (address := _parse_address(text)) is not None]
        if len(addresses) < len(texts) or not all(is_fetchable(address, self._limits.allowed_networks) for address in addresses):
            raise _FetchRefused(_NOT_PUBLIC)
        return [_resolve_result(host, port, address) for address in addresses]

    async def close(self) -> None:
        pass


def _resolve_result(host: str, port: int, address: Address) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=str(address),
        port=port,
        family=socket.AF_INET6 if address.version == 6 else socket.AF_INET,
        proto=0,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )


def _parse_address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# Addresses

# RFC 6052 2.1: the well-known prefix, with the IPv4 address in its last 32 bits.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# RFC 5214 6.1: an interface identifier with an IPv4 address in its last 32 bits; the bit that differs is `u`.
_ISATAP, _ISATAP_MASK = 0x00005EFE, 0xFDFFFFFF
# Beside what `ipaddress` knows, which differs between versions of Python.
_NON_PUBLIC_NETWORKS: tuple[Network, ...] = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # Azure: the virtual machine's host
            "192.0.0.0/24",  # protocol assignments, RFC 6890; Oracle Cloud has its metadata there
            "192.88.99.0/24",  # relays of 6to4, deprecated, RFC 7526
            "::/96",  # IPv4-compatible, deprecated
            "64:ff9b:1::/48",  # local NAT64, RFC 8215
            "2001::/23",  # protocol assignments, RFC 2928; Teredo is among them and embeds IPv4 addresses
            "2002::/16",  # 6to4, deprecated, RFC 7526; embeds an IPv4 address
            "3ffe::/16",  # 6bone, given back, RFC 3701
            "3fff::/20",  # documentation, RFC 9637
            "5f00::/16",  # segment routing, RFC 9602
            "fec0::/10",  # site-local, deprecated
        ),
    )
)


def is_fetchable(address: Address, allowed_networks: Sequence[Network] = ()) -> bool:
    """
    Whether an address is on the public internet, or in an allowed network.

    An IPv6 address that embeds an IPv4 address leads there, so that one is checked instead.
    """
    if any(address.version == network.version and address in network for network in allowed_networks):
        return True
    if isinstance(address, ipaddress.IPv6Address):
        # An IPv4-mapped address (RFC 4291 2.5.5.2) leads to the IPv4 address in it.
        if address.ipv4_mapped is not None:
            return is_fetchable(address.ipv4_mapped, allowed_networks)
        # That of a translator leads to where the translator is, which is not where the allowed networks are.
        if address in _NAT64:
            return is_fetchable(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        # A zone (RFC 4007 11) is an interface of this machine.
        if address.scope_id is not None or (int(address) >> 32) & _ISATAP_MASK == _ISATAP:
            return False
    if any(address.version == network.version and address in network for network in _NON_PUBLIC_NETWORKS):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class Guard(Protocol):
    """Judges hosts that clients name."""

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """
        The addresses to dial, each of which may be dialled.

        Raises:
            OSError: none may; the message says why, as the end of a sentence.
        """


def address_guard(networks: Iterable[str], resolve: Resolve = system_resolver.resolve) -> Guard:
    """The same checks for a library that makes its connections itself: the addresses that it may dial, judged once."""
    limits = FetchLimits(allowed_networks=tuple(ipaddress.ip_network(network) for network in networks))

    async def guard(host: str, port: int) -> Sequence[str]:
        url = _parse_url(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/", limits)
        if (address := _parse_address(url.host or "")) is not None:
            return [str(address)]
        try:
            async with asyncio.timeout(limits.timeout_s):
                return [result["host"] for result in await _CheckingResolver(limits, resolve).resolve(url.host or "", port)]
        except TimeoutError:
            raise _FetchRefused(f"its name could not be resolved within {limits.timeout_s:g} seconds") from None
        except _FetchRefused:
            raise
        except OSError:  # the resolver's words may reveal something about the internal network
            raise _FetchRefused("its name has no address") from None

    return guard
