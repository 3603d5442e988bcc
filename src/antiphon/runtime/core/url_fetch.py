"""
Fetches what a client's URL names, as the client could have fetched it itself: from the public internet, and from nowhere else.

A name is resolved once, every address of it is judged, and the connection goes to an address that was judged: a name that leads elsewhere
a moment later gains nothing. Every redirect is judged as the first URL was.
"""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import AddrInfoType
from msgspec import Struct
from yarl import URL

from antiphon.engine_api.engine import Fetch
from antiphon.errors import ClientMistake

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a host's name; raises `OSError` where it has none."""

CHUNK_BYTES = 1 << 16
REDIRECTS = (301, 302, 303, 307, 308)
WEB_PORTS = (80, 443)
FIRST_FREE_PORT = 1024
"""Below it only the web's own ports are asked: what listens there may take a request for something it is not."""


class Limits(Struct, frozen=True, kw_only=True):
    """
    What a fetch may take.

    Attributes:
        content_types: what the answer's type must begin with, such as `image/`; empty for anything.
        timeout_s: for all of it, redirects included.
        allowed: networks that may be asked though they are not public.
    """

    most_bytes: int = 20 << 20
    timeout_s: float = 10.0
    most_redirects: int = 3
    content_types: tuple[str, ...] = ()
    allowed: tuple[Network, ...] = ()


class Fetched(NamedTuple):
    """What was there; `content_type` is without its parameters."""

    body: bytes
    content_type: str


async def _system(host: str) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def fetch(url: str, param: str, limits: Limits, resolve: Resolve = _system) -> Fetched:
    """
    What `url` names.

    Args:
        param: the path of the field that it came in, for errors.

    Raises:
        ClientMistake: it can't or may not be fetched.
    """
    try:
        async with asyncio.timeout(limits.timeout_s), _session(limits, resolve) as session:
            return await _followed(session, _parsed(url, limits), limits)
    except TimeoutError:
        reason = f"it took longer than {limits.timeout_s:g} seconds"
    except _Refused as refused:
        reason = str(refused)
    except aiohttp.ClientError as error:
        # An error of the resolver comes wrapped; others say no more than that it failed, as they may tell of the inside.
        reason = str(error.__cause__) if isinstance(error.__cause__, _Refused) else "the server could not be reached"
    raise ClientMistake(f"Failed to download '{param}': {reason}.", code="invalid_url", param=param)


def fetcher(networks: Iterable[str]) -> Fetch:
    """A `Fetch` from the public internet, and from `networks`."""
    allowed = tuple(ipaddress.ip_network(network) for network in networks)

    async def fetch_it(url: str, param: str, content_types: tuple[str, ...]) -> Fetched:
        return await fetch(url, param, Limits(content_types=content_types, allowed=allowed))

    return fetch_it


class _Refused(OSError):
    """Why it may not be fetched, as the end of a sentence; an `OSError`, so that a resolver may raise it."""


@asynccontextmanager
async def _session(limits: Limits, resolve: Resolve) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(
        resolver=_Judging(limits, resolve), use_dns_cache=False, force_close=True, socket_factory=partial(_socket_to, limits)
    )
    # No proxy from the environment, no cookies from one host to another, and nothing that would unpack to more than was counted.
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"accept-encoding": "identity", "user-agent": "antiphon"},
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        yield session


def _socket_to(limits: Limits, place: AddrInfoType) -> socket.socket:
    """The last wall: whatever came between, no socket is made for an address that may not be asked."""
    address = _address(str(place[4][0]))
    if address is None or not may_be_asked(address, limits.allowed):
        raise _Refused(_NOT_PUBLIC)
    return socket.socket(*place[:3])


async def _followed(session: aiohttp.ClientSession, url: URL, limits: Limits) -> Fetched:
    for _ in range(limits.most_redirects + 1):
        async with session.get(url, allow_redirects=False) as reply:
            if reply.status not in REDIRECTS:
                return await _read(reply, limits)
            if not (target := reply.headers.get("location")):
                raise _Refused("it redirects to nowhere")
        url = _parsed(target, limits, url)
    raise _Refused(f"it redirects more than {limits.most_redirects} times")


async def _read(reply: aiohttp.ClientResponse, limits: Limits) -> Fetched:
    if reply.status != 200:
        raise _Refused(f"the server answered with status {reply.status}")
    if limits.content_types and not reply.content_type.startswith(limits.content_types):
        raise _Refused(f"it is of type '{reply.content_type}'")
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise _Refused("it is compressed, though that was not asked for")
    body = bytearray()
    if (reply.content_length or 0) <= limits.most_bytes:
        async for chunk in reply.content.iter_chunked(CHUNK_BYTES):
            body += chunk
            if len(body) > limits.most_bytes:
                break
        else:
            return Fetched(bytes(body), reply.content_type)
    raise _Refused(f"it is larger than {limits.most_bytes} bytes")


def _parsed(text: str, limits: Limits, base: URL | None = None) -> URL:
    """The URL, if its form is one that may be asked."""
    try:
        url = base.join(URL(text)) if base else URL(text)
        host, port = url.host, url.port
    except ValueError:
        raise _Refused("it is not a valid URL") from None
    if url.scheme not in ("http", "https") or not host:
        raise _Refused("only http and https URLs are fetched")
    if url.user is not None or url.password is not None:
        raise _Refused("it carries credentials")
    if port is None or (port not in WEB_PORTS and port < FIRST_FREE_PORT):
        raise _Refused("its port is not one of the web")
    address = _address(host)
    if address is None and host.replace(".", "").isdigit():  # `127.1` would be taken for an address without asking the resolver
        raise _Refused("it is not a valid URL")
    if address is not None and not may_be_asked(address, limits.allowed):
        raise _Refused(_NOT_PUBLIC)
    return url


_NOT_PUBLIC = "its address is not public"


class _Judging(AbstractResolver):
    """Resolves names, and refuses those of which any address may not be asked."""

    def __init__(self, limits: Limits, resolve: Resolve) -> None:
        self._limits = limits
        self._resolve = resolve

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        """The addresses to connect to."""
        addresses = [ipaddress.ip_address(text) for text in await self._resolve(host)]
        if not all(may_be_asked(address, self._limits.allowed) for address in addresses):
            raise _Refused(_NOT_PUBLIC)
        return [_result(host, port, address) for address in addresses]

    async def close(self) -> None:
        """Nothing to let go of."""


def _result(host: str, port: int, address: Address) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=str(address),
        port=port,
        family=socket.AF_INET6 if address.version == 6 else socket.AF_INET,
        proto=0,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# Addresses

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_CLOSED = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "::/96",  # IPv4-compatible, deprecated
            "64:ff9b:1::/48",  # local NAT64, RFC 8215
            "fec0::/10",  # site-local, deprecated
        ),
    )
)


def may_be_asked(address: Address, allowed: Sequence[Network] = ()) -> bool:
    """
    Whether an address is on the public internet, or in a network that is allowed all the same.

    An IPv6 address that carries an IPv4 address leads there, so that one is judged as well.
    """
    if any(address.version == network.version and address in network for network in allowed):
        return True
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return may_be_asked(address.ipv4_mapped, allowed)
        if address in _NAT64:
            return may_be_asked(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF), allowed)
        tunnelled = [inner for inner in (address.sixtofour, *(address.teredo or ())) if inner is not None]
        if any(address in network for network in _CLOSED) or not all(may_be_asked(inner, allowed) for inner in tunnelled):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved
