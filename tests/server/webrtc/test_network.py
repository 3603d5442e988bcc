"""On which addresses a call is had, and whose packets are taken."""

import asyncio
import contextlib
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("aiortc", reason="aiortc is not installed")

from aioice import stun

from antiphon.server.webrtc import network
from antiphon.server.webrtc.network import Network
from support.server.scripted_server import configured

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Peer:
    """In place of aioice's connection: notes who asks."""

    def __init__(self):
        self._protocols, self.asked = [], asyncio.Queue()

    def request_received(self, message, addr, protocol):
        self.asked.put_nowait(addr[0])

    def protocol_lost(self, protocol):
        pass


@contextlib.asynccontextmanager
async def listening(network):
    peer = Peer()
    network.bind(peer)
    try:
        yield peer, await peer.get_component_candidates(1, [])
    finally:
        for protocol in peer._protocols:
            protocol.transport.close()


def check_from(source, to):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.bind((source, 0))
        caller.sendto(bytes(stun.Message(stun.Method.BINDING, stun.Class.REQUEST)), to)


@pytest.fixture
def other(monkeypatch):
    """An address of the machine that is not the first one, which 127.0.0.2 may stand for."""
    found = SimpleNamespace(addresses=["127.0.0.2"])
    monkeypatch.setattr(network, "get_host_addresses", lambda **_: found.addresses)
    return found


async def test_a_server_on_loopback_has_calls_on_the_machines_other_addresses_but_from_nowhere_else(other):
    async with listening(Network(["127.0.0.1"])) as (peer, candidates):
        assert [candidate.host for candidate in candidates] == ["127.0.0.1", "127.0.0.2"]
        for candidate in candidates:
            for source in ("127.0.0.3", "127.0.0.2", "127.0.0.1"):
                check_from(source, (candidate.host, candidate.port))
        asked = [await asyncio.wait_for(peer.asked.get(), 120) for _ in range(4)]
        assert sorted(asked) == ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]


async def test_an_address_that_has_gone_is_left_out(other):
    other.addresses = ["203.0.113.9"]
    async with listening(Network(["127.0.0.1"])) as (_, candidates):
        assert [candidate.host for candidate in candidates] == ["127.0.0.1"]


@pytest.mark.parametrize(("hosts", "announced", "offered"), [(["127.0.0.3"], ["192.0.2.9"], ["192.0.2.9"]), (["0.0.0.0"], [], ["0.0.0.0"])])
async def test_other_servers_have_calls_where_they_listen_and_of_all(other, hosts, announced, offered):
    async with listening(Network(hosts, announced)) as (peer, candidates):
        assert [candidate.host for candidate in candidates] == offered
        check_from("127.0.0.1", (hosts[0].replace("0.0.0.0", "127.0.0.1"), candidates[0].port))
        assert await asyncio.wait_for(peer.asked.get(), 120) == "127.0.0.1"


class ResolvingLoop(asyncio.SelectorEventLoop):
    """Knows one name, and its addresses."""

    addresses = ()

    async def getaddrinfo(self, host, port, *, family=0, type=0, proto=0, flags=0):
        families = {address: socket.AF_INET6 if ":" in address else socket.AF_INET for address in self.addresses}
        found = [(each, type, 17, "", (address, port or 0)) for address, each in families.items() if family in (0, each)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found


@pytest.mark.parametrize(("addresses", "chosen"), [(["::1"], "::1"), (["::1", "127.0.0.1", "127.0.0.2"], "127.0.0.1")])
def test_a_server_with_a_name_takes_calls_at_its_first_ipv4_address_or_else_at_ipv6(tmp_path, addresses, chosen):
    with asyncio.Runner(loop_factory=ResolvingLoop) as runner:
        runner.get_loop().addresses = addresses
        built = runner.run(network.build_network(configured(tmp_path, {}, **{"server.host": "calls.example"})))
    assert built.placeholder_candidate == f"candidate:1 1 udp 1 {chosen} 9 typ host"
