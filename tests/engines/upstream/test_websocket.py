"""A WebSocket to an upstream that sends the test's bytes."""

import asyncio
import base64
import hashlib

import pytest

from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.engines.upstream.websocket import (
    BYTES_AT_ONCE,
    MESSAGE_LIMIT_BYTES,
    MESSAGES_AT_ONCE,
    PONG_BACKLOG_BYTES,
    WebSocketClient,
    dial,
)
from support.engines.upstreams import run

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(payload, opcode=1, *, is_last=True):
    length = len(payload)
    head = bytes([(0x80 if is_last else 0) | opcode])
    # RFC 6455 5.2: in the fewest bytes
    size = (
        bytes([length])
        if length < 126
        else b"\x7e" + length.to_bytes(2, "big")
        if length < 1 << 16
        else b"\x7f" + length.to_bytes(8, "big")
    )
    return head + size + payload


class Ear:
    """A receiver."""

    def __init__(self):
        self.messages, self.batch_sizes, self.end = [], [], None
        self._changed = asyncio.Event()

    def on_messages(self, messages):
        self.batch_sizes.append(len(messages))
        self.messages += messages
        self._changed.set()

    def on_close(self, code, reason):
        assert self.end is None, "it is told once"
        self.end = code, reason
        self._changed.set()

    async def until(self, condition):
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def linked(scenario, *said, ping_after_s=20.0):
    """Play `scenario(link, ear, peer)` with a server that sends these bytes after its handshake; `peer` is its reader and writer."""

    async def play():
        peer = asyncio.get_running_loop().create_future()

        async def serve(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
            accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
            told = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: " + accept
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\n" + told + b"\r\n\r\n" + b"".join(said))
            peer.set_result((reader, writer))

        async with asyncio.timeout(20), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            ear = Ear()
            link = WebSocketClient(ear, ping_after_s)
            url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/realtime"
            assert await dial(link, url, {}, None, 5) is None
            reader, writer = await peer
            try:
                await scenario(link, ear, (reader, writer))
            finally:
                link.close()
                writer.transport.abort()

    run(play())


def test_messages_that_came_together_are_handed_on_together():
    async def scenario(_link, ear, _peer):
        await ear.until(lambda: len(ear.messages) == 3)
        assert ear.messages == [b"one", b"two", b"three"]
        assert ear.batch_sizes == [3]

    linked(scenario, frame(b"one"), frame(b"two"), frame(b"three"))


def test_a_message_in_fragments_is_one_message():
    async def scenario(_link, ear, _peer):
        await ear.until(lambda: ear.messages)
        assert ear.messages == [b"fragments"]

    linked(scenario, frame(b"frag", is_last=False), frame(b"", 9), frame(b"men", 0, is_last=False), frame(b"ts", 0))


def test_a_message_without_end_is_not_collected():
    async def scenario(_link, ear, _peer):
        await ear.until(lambda: ear.end)
        assert ear.end == (1009, "")
        assert not ear.messages

    piece = frame(bytes(MESSAGE_LIMIT_BYTES // 2), 0, is_last=False)
    linked(scenario, frame(b"x", is_last=False), piece, piece, piece)


def test_a_close_says_its_code_and_reason_behind_what_came_before():
    async def scenario(_link, ear, _peer):
        await ear.until(lambda: ear.end)
        assert ear.messages == [b"last words"]
        assert ear.end == (3000, "invalid_request_error.invalid_api_key")

    linked(scenario, frame(b"last words"), frame((3000).to_bytes(2, "big") + b"invalid_request_error.invalid_api_key", 8))


@pytest.mark.parametrize("garbage", [b"\xff" * 20, frame(b"x", 5), frame(b"x", 8)])
def test_what_is_no_frame_ends_the_connection(garbage):
    async def scenario(_link, ear, _peer):
        await ear.until(lambda: ear.end)

    linked(scenario, garbage)


def test_a_reset_is_told_without_a_word():
    async def scenario(_link, ear, peer):
        peer[1].transport.abort()
        await ear.until(lambda: ear.end)
        assert ear.end == (0, "")

    linked(scenario)


def test_a_peer_that_answers_no_ping_is_taken_to_be_gone():
    async def scenario(_link, ear, peer):
        await ear.until(lambda: ear.end)
        assert ear.end == (1001, "")
        assert (await peer[0].read(100))[0] == 0x89, "it was asked first"

    linked(scenario, ping_after_s=0.05)


def test_nothing_is_heard_after_closing():
    async def scenario(link, ear, peer):
        link.close()
        peer[1].write(frame(b"still there?"))
        assert (await peer[0].read(100))[0] == 0x88
        link.send(b"never sent")
        assert ear.messages == []
        assert ear.end is None

    linked(scenario)


def test_a_server_of_something_else_is_named_as_the_fault():
    async def play():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
            await writer.drain()
            writer.close()

        async with asyncio.timeout(20), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            failure = await dial(WebSocketClient(Ear()), url, {}, None, 5)
            assert isinstance(failure, UpstreamFailure)
            assert "answered 200" in failure.error.message

    run(play())


# Floods


def batches_of(*said, until):
    """How many messages are handed on in each call, and the end, if it comes."""
    ears = []

    async def scenario(_link, ear, _peer):
        ears.append(ear)
        await ear.until(lambda: until(ear))

    linked(scenario, *said)
    return *ears[0].batch_sizes, ears[0].end


def test_many_messages_of_one_read_are_handed_on_in_many_turns():
    *batches, end = batches_of(frame(b"{}") * 3000, until=lambda ear: len(ear.messages) == 3000)
    assert (sum(batches), end) == (3000, None)
    assert max(batches) <= MESSAGES_AT_ONCE


def test_large_messages_are_handed_on_a_few_at_a_time():
    *batches, _ = batches_of(frame(bytes(100_000)) * 60, until=lambda ear: len(ear.messages) == 60)
    assert max(batches) <= BYTES_AT_ONCE // 100_000 + 1


def test_the_end_is_told_behind_all_that_was_read():
    *batches, end = batches_of(frame(b"{}") * 3000, frame((1000).to_bytes(2, "big") + b"bye", 8), until=lambda ear: ear.end)
    assert (sum(batches), end) == (3000, (1000, "bye"))


@pytest.mark.parametrize("payload", [b"x", b"x" * 30])
def test_a_message_in_more_fragments_than_it_may_have_ends_the_connection(payload):
    async def scenario(_link, ear, _peer):
        await ear.until(lambda: ear.end)
        assert ear.end[0] in (1008, 1009)
        assert not ear.messages

    linked(scenario, frame(b"x", is_last=False), frame(payload, 0, is_last=False) * 20_000, frame(b"", 0))


@pytest.mark.parametrize("empty", [frame(b"", 9), frame(b"", 10), frame(b"", 2)])
def test_a_read_of_nothing_but_empty_frames_ends_the_connection(empty):
    async def scenario(_link, ear, _peer):
        await ear.until(lambda: ear.end)
        assert ear.end == (1008, "")

    linked(scenario, empty * 200_000)


def test_pings_that_nobody_reads_the_answers_to_take_no_memory():
    async def scenario(link, ear, peer):
        peer[0]._transport.pause_reading()
        peer[1].write(frame(bytes(125), 9) * 150_000 + frame(b"after"))
        await ear.until(lambda: ear.messages)
        assert link.backlog_bytes <= PONG_BACKLOG_BYTES + 131

    linked(scenario)


def test_a_ping_is_answered():
    async def scenario(_link, _ear, peer):
        assert (await peer[0].readexactly(2))[0] == 0x8A

    linked(scenario, frame(b"are you there?", 9))


def test_a_paused_link_reads_no_more_of_a_flood():
    async def scenario(link, ear, peer):
        await ear.until(lambda: ear.messages)
        link.pause()
        peer[1].write(frame(bytes(1000)) * 20_000)
        for _ in range(50):
            await asyncio.sleep(0)
        assert peer[1].transport.get_write_buffer_size() > 0, "the rest waits on the other side"
        link.resume()
        await ear.until(lambda: len(ear.messages) == 20_001)

    linked(scenario, frame(b"first"))
