"""Where calls come in, and their sound on its way between the line and a session."""

import asyncio
import socket
from fractions import Fraction

import pytest

from support.server.scripted_server import configured

pytest.importorskip("aiortc", reason="aiortc is not installed")

import av
from aioice import Connection
from aioice.ice import get_host_addresses
from aiortc.codecs.opus import OpusDecoder
from aiortc.jitterbuffer import JitterFrame

from antiphon.audio import peak
from antiphon.server.webrtc.network import Network, build_network
from antiphon.server.webrtc.opus import PACKET_BYTES, RTP_PACKET_SAMPLES, SILENT_PACKET, InputAudioReceiver, OutputAudioTrack
from antiphon.server.webrtc.playback import PlaybackQueue

pytestmark = pytest.mark.anyio
LOUD = b"\x00\x20\x00\xe0" * (PACKET_BYTES // 4)


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def gathered(network):
    """The candidates of a connection that listens there."""
    connection = Connection(ice_controlling=False)
    network.bind(connection)
    await connection.gather_candidates()
    found = connection.local_candidates
    await connection.close()
    return found


async def network(tmp_path, **settings):
    return await build_network(configured(tmp_path, {}, **settings))


@pytest.mark.parametrize(("host", "listens_on"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", "127.0.0.1")])
async def test_calls_to_a_loopback_server_come_in_where_it_listens_and_on_this_machines_addresses(tmp_path, host, listens_on):
    first, *others = [each.host for each in await gathered(await network(tmp_path, **{"server.host": host}))]
    is_ipv6 = ":" in listens_on
    assert (first, others) == (listens_on, get_host_addresses(use_ipv4=not is_ipv6, use_ipv6=is_ipv6))


async def test_a_server_that_listens_everywhere_is_called_at_each_of_its_addresses(tmp_path):
    found = await gathered(await network(tmp_path, **{"server.host": "0.0.0.0"}))
    assert found and all(each.type == "host" and ":" not in each.host for each in found)


async def test_callers_are_told_the_addresses_that_are_announced(tmp_path):
    settings = {"calls.addresses": "203.0.113.7,2001:db8::7", "server.host": "0.0.0.0"}
    found = await gathered(await network(tmp_path, **settings))
    assert [each.host for each in found] == ["203.0.113.7", "2001:db8::7"] and len({each.port for each in found}) == 1


async def test_a_port_that_is_taken_is_passed_over():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        for each in (taken, free):
            each.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1], free.getsockname()[1]]
        free.close()
        for _ in range(4):
            found = await gathered(Network(["127.0.0.1"], ports=ports))
            assert [each.port for each in found if each.host == "127.0.0.1"] == ports[1:]


async def test_what_plays_is_sent_in_packets_of_20_ms_and_silence_where_nothing_does():
    playing, ticks = PlaybackQueue(), []
    speaker = OutputAudioTrack(playing, lambda: ticks.append(1))
    playing.append(("item_1", 0), LOUD * 3)
    packets = [await speaker.recv() for _ in range(8)]
    assert [packet.pts for packet in packets] == [RTP_PACKET_SAMPLES * number for number in range(8)] and len(ticks) == 8
    assert [bytes(packet) == SILENT_PACKET for packet in packets] == [False] * 5 + [True] * 3
    decoder = OpusDecoder()
    heard = [decoder.decode(JitterFrame(bytes(packet), packet.pts))[0] for packet in packets]
    levels = [peak(bytes(frame.planes[0])[: 4 * frame.samples]) for frame in heard]
    assert {frame.samples for frame in heard} == {RTP_PACKET_SAMPLES} and min(levels[1:3]) > 2_000 and max(levels[6:]) < 100


def frame(number):
    made = av.AudioFrame(format="s16", layout="stereo", samples=RTP_PACKET_SAMPLES)
    made.planes[0].update(b"\x00\x10" * (2 * RTP_PACKET_SAMPLES))
    made.sample_rate, made.pts, made.time_base = 48_000, number * RTP_PACKET_SAMPLES, Fraction(1, 48_000)
    return made


async def test_packets_that_were_lost_are_silence_and_packets_that_come_late_are_heard():
    pieces = []
    microphone = InputAudioReceiver(pieces.append)
    for number in range(5):
        microphone.receive(frame(number))
    before = sum(map(len, pieces))
    microphone.receive(frame(10))
    assert PACKET_BYTES * 6 <= sum(map(len, pieces)) - before <= PACKET_BYTES * 6 + 64
    microphone.receive(frame(3))
    assert pieces[-1].strip(b"\0")


async def test_the_silence_for_a_long_gap_has_an_end():
    pieces = []
    microphone = InputAudioReceiver(pieces.append)
    microphone.receive(frame(0))
    microphone.receive(frame(50_000))
    assert sum(map(len, pieces)) <= 48_000 + 3 * PACKET_BYTES


async def test_a_microphone_that_is_switched_off_is_heard_as_silence_and_one_that_never_was_on_is_not():
    pieces = []
    microphone = InputAudioReceiver(pieces.append)
    microphone.tick()
    assert not pieces
    microphone.receive(frame(0))
    pieces.clear()
    while not pieces:
        await asyncio.sleep(0)
        microphone.tick()
    microphone.tick()
    assert pieces == [bytes(PACKET_BYTES)] * 2
    pieces.clear()
    microphone.receive(frame(3))
    assert len(pieces[0]) < PACKET_BYTES + 64, "what was filled in is no gap"
