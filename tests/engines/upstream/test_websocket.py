"""One WebSocket to an upstream that says bytes of the test's choice."""

import asyncio
import base64
import hashlib

import pytest

from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.engines.upstream.websocket import MESSAGE_LIMIT_BYTES, WebSocketClient, dial
from support.engines.upstreams import run

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(payload, opcode=1, *, is_last=True):
    length = len(payload)
    head = bytes([(0x80 if is_last else 0) | opcode])
    return head + (bytes([length]) if length < 126 else b"\x7f" + length.to_bytes(8, "big")) + payload


class Ear:
    """A receiver."""

    def __init__(self):
        self.messages, self.batches, self.end = [], 0, None
        self._changed = asyncio.Event()

    def on_messages(self, messages):
        self.batches += 1
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
    """Play `scenario(link, ear, peer)` with a server that says so behind its handshake; `peer` is its reader and writer."""

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
        assert ear.batches == 1

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
