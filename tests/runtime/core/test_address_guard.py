"""What a client names as an MCP server is dialled on the public internet alone, however it is written."""

import asyncio
import socket
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from antiphon.runtime.core.url_fetch import address_guard
from antiphon.tools.mcp.dialing import DialLimits, HttpTarget
from antiphon.tools.mcp.remote import RemoteServers
from antiphon.tools.mcp.server import ListingError

LIMITS = DialLimits(connect_s=5, list_s=20)

HOSTS = (
    *("localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1"),
    *("0177.0.0.1", "0177.1", "017700000001", "127.000.000.001", "0", "0.0.0.0", "0x0", "[::]", "[::1]", "[0:0:0:0:0:0:0:1]"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "[fe80::1%25lo]"),
    *("[fc00::1]", "[fd00:ec2::254]", "[fec0::1]", "[ff02::1]", "[2001:db8::1]", "10.0.0.1", "172.16.0.1", "192.168.0.1"),
    *("169.254.169.254", "100.100.100.200", "100.64.0.1", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("①②⑦.⓪.⓪.①", "127。0。0。1", "127.0.0.1%2f@example.com", "ⓛocalhost", "loc\u00adalhost", "a..b", ".", "a" * 64, "a%00b", "-", "*"),
)


class Listener:
    """A socket on loopback, which nobody should ever reach."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0

    async def __aenter__(self) -> "Listener":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()

    async def _accept(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


async def nobody(_host: str) -> Sequence[str]:
    return ["127.0.0.1"]


async def resolve_here(host: str) -> Sequence[str]:
    """As libc reads a host, which takes many forms for an address, but without asking anybody outside."""
    if host.lower().strip(".\u00ad").endswith("localhost"):
        return ["127.0.0.1"]
    addresses = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return [str(address[0]) for *_, address in addresses]


async def reasons(urls: Sequence[str], listener: Listener) -> list[str]:
    """Why each can't be listed."""
    dialer = RemoteServers(address_guard((), resolve_here), LIMITS)
    found = []
    for url in urls:
        with pytest.raises(ListingError) as caught:
            await dialer.connect(HttpTarget(url=url.replace(":0/", f":{listener.port}/"), headers={})).list_tools()
        found.append(caught.value.reason)
    await dialer.close()
    return found


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_packet_reaches_the_inside_by_the_url_of_an_mcp_server(scheme: str):
    async def main() -> None:
        async with Listener() as listener:
            urls = [f"{scheme}://{host}:0/{path}" for host in HOSTS for path in ("mcp", "sse")]
            for url, reason in zip(urls, await reasons(urls, listener), strict=True):
                assert "could not be reached" not in reason, url
            assert listener.connections == 0

    asyncio.run(main())


def test_ports_of_other_services_are_refused():
    async def main() -> None:
        guard = address_guard(())
        for port in (0, 22, 25, 1023):
            with pytest.raises(OSError, match=r"not one of the web|not a valid URL"):
                await guard("1.1.1.1", port)

    asyncio.run(main())


def test_a_host_is_resolved_once_and_its_addresses_told():
    asked = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return ["1.1.1.1", "2606:4700::1111"]

    assert asyncio.run(address_guard((), resolve)("outside.example", 443)) == ["1.1.1.1", "2606:4700::1111"]
    assert asked == ["outside.example"]


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["::1"], ["::ffff:127.0.0.1"]])
def test_a_name_with_any_address_inside_is_refused(addresses: list[str]):
    async def resolve(_host: str) -> Sequence[str]:
        return addresses

    with pytest.raises(OSError, match="its address is not public"):
        asyncio.run(address_guard((), resolve)("inside.example", 443))


def test_a_network_that_the_operator_allows_may_be_dialled():
    assert asyncio.run(address_guard(["127.0.0.0/8"])("127.0.0.1", 8000)) == ["127.0.0.1"]


def test_a_name_without_an_address_is_told_without_the_resolvers_words():
    async def resolve(_host: str) -> Sequence[str]:
        raise OSError("[Errno -2] from the server 10.0.0.53")

    with pytest.raises(OSError, match=r"^its name has no address$"):
        asyncio.run(address_guard((), resolve)("nowhere.example", 443))


@given(st.text(max_size=20), st.integers(0, 65535))
def test_any_host_is_refused_or_judged(host: str, port: int):
    with pytest.raises(OSError):
        asyncio.run(address_guard((), nobody)(host, port))
