"""
UDP sockets for the media of calls, on the addresses that the server listens on. If these are loopback, then also on the
machine's other addresses, for callers on this machine alone: Firefox has no loopback candidates, and pairs no others
with one (`media.peerconnection.ice.loopback`).

The server never sends to candidates that a client merely names. It waits for the client's connectivity checks, which
prove that the client knows the call's password (RFC 8445), and answers to their source. So a call can't make the server
send packets to other machines.
"""

import asyncio
import contextlib
import ipaddress
import random
import socket
from collections.abc import Sequence
from typing import Any

from aioice import Candidate, Connection
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import StunProtocol, get_host_addresses

from antiphon.config.load import Config
from antiphon.errors import ApiError, overloaded_error

RECEIVE_BUFFER_BYTES = 256 << 10
DISCARD_PORT = 9
"""Of the Discard Protocol (RFC 863): nobody is expected to answer at the placeholder."""


class Network:
    """
    The addresses for calls.

    Args:
        hosts: to listen on; only one where other addresses are announced.
        announced_addresses: what clients get instead of `hosts`; empty for the same.
        ports: to use; empty for any.
    """

    def __init__(self, hosts: Sequence[str], announced_addresses: Sequence[str] = (), ports: Sequence[int] = ()) -> None:
        self._hosts = hosts
        self._announced_addresses = announced_addresses
        self._ports = ports
        self._is_local = not announced_addresses and all(ipaddress.ip_address(host).is_loopback for host in hosts)

    @property
    def placeholder_candidate(self) -> str:
        """A stand-in for the candidates of a client; without any, aioice fails before the client has tried."""
        return f"candidate:1 1 udp 1 {self._hosts[0]} {DISCARD_PORT} typ host"

    def bind(self, connection: Connection) -> None:
        """Replace aioice's search for local addresses by our own sockets."""

        async def candidates(component: int, addresses: list[str], timeout: int = 5) -> list[Candidate]:
            result: list[Candidate] = []
            others = self._others()
            sources = frozenset([*self._hosts, *others]) if self._is_local else None
            for host in [*self._hosts, *others]:
                try:
                    protocol = await self._listen(connection, host, sources)
                # The others come and go with the machine's networks; without its own address the server takes no call.
                except ApiError:
                    if host in self._hosts:
                        raise
                    continue
                connection._protocols.append(protocol)
                port = protocol.transport.get_extra_info("sockname")[1]
                host_candidates = [_candidate(component, address, port) for address in self._announced_addresses or (host,)]
                protocol.local_candidate = host_candidates[0]
                result += host_candidates
            return result

        # This and `_protocols` are aioice's own, so its minor version is pinned (docs/decisions/0017).
        gathering: Any = connection
        gathering.get_component_candidates = candidates

    def _others(self) -> list[str]:
        """The addresses of this machine that a server on loopback has calls on; they come and go with its networks."""
        if not self._is_local:
            return []
        is_ipv6 = ":" in self._hosts[0]
        return get_host_addresses(use_ipv4=not is_ipv6, use_ipv6=is_ipv6)

    async def _listen(self, connection: Connection, host: str, sources: frozenset[str] | None) -> StunProtocol:
        loop = asyncio.get_running_loop()
        for port in random.sample(self._ports, len(self._ports)) or [0]:
            with contextlib.ExitStack() as stack:
                udp_socket = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM))
                udp_socket.setblocking(False)
                udp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
                try:
                    udp_socket.bind((host, port))
                except OSError:
                    continue
                _, protocol = await loop.create_datagram_endpoint(lambda: FilteringProtocol(connection, sources), sock=udp_socket)
                stack.pop_all()
                return protocol
        raise overloaded_error(f"No UDP port of {host} is free for one more call. Please try again later.")


class FilteringProtocol(StunProtocol):
    """Drops packets that do not come from `sources`; None takes all."""

    def __init__(self, receiver: Connection, sources: frozenset[str] | None) -> None:
        super().__init__(receiver)
        self._sources = sources

    def datagram_received(self, data: bytes | str, addr: tuple[str, int]) -> None:
        if self._sources is None or addr[0] in self._sources:
            super().datagram_received(data, addr)


async def build_network(config: Config) -> Network:
    """The addresses from the configuration."""
    calls = config.calls
    return Network(await _hosts(config.server.host, is_announced=bool(calls.addresses)), calls.addresses, calls.port_range)


async def _hosts(host: str, *, is_announced: bool) -> list[str]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        addresses = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_DGRAM)
        # Its IPv4 address, which more clients can reach, if it has one.
        return [str(min(addresses, key=lambda each: each[0] != socket.AF_INET)[4][0])]
    # A client can't reach 0.0.0.0, so each address gets a socket and a candidate, unless others are announced.
    if is_announced or not address.is_unspecified:
        return [host]
    is_ipv6 = address.version == 6  # an IPv6 socket takes IPv4 as well
    return [*get_host_addresses(use_ipv4=True, use_ipv6=is_ipv6)] or ["127.0.0.1"]


def _candidate(component: int, address: str, port: int) -> Candidate:
    return Candidate(
        foundation=candidate_foundation("host", "udp", address),
        component=component,
        transport="udp",
        priority=candidate_priority(component, "host"),
        host=address,
        port=port,
        type="host",
    )
