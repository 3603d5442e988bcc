"""
MessagePack messages, each after its length in four bytes, big-endian: the framing between this server's own processes.
"""

from collections.abc import Iterator
from struct import Struct as Format
from typing import Generic, TypeVar

from msgspec import MsgspecError, Struct, msgpack

FRAME_LIMIT_BYTES = 32 << 20
"""
The largest message: as large as the largest body of a request, which a command to an engine may carry. Of a voice at
24 kHz it is eleven minutes.
"""

In = TypeVar("In")

_LENGTH = Format("!I")
_encoder = msgpack.Encoder()


class BadFrame(ValueError):
    """The bytes are no frame; the message says why, and may be sent to the peer."""


class UnsendableFrame(ValueError):
    """A message that no frame can carry."""


def pack_frame(message: Struct) -> bytes:
    """
    The message with its length in front.

    Raises:
        UnsendableFrame: it is too long, or contains a value that MessagePack can't carry.
    """
    try:
        payload = _encoder.encode(message)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:  # such as a number of 70 bits, or half of a surrogate pair
        raise UnsendableFrame(f"it contains a value that can't be sent to another process ({error})") from None
    if len(payload) > FRAME_LIMIT_BYTES:
        raise UnsendableFrame(f"it has {len(payload)} bytes, and at most {FRAME_LIMIT_BYTES} can be sent to another process")
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder(Generic[In]):
    """Decodes frames from a stream of bytes."""

    def __init__(self, decoder: msgpack.Decoder[In]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[In]:
        """
        The messages that are complete with these bytes.

        Raises:
            BadFrame: the next frame is too large or can't be decoded; the stream can't be read further.
        """
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH.size:
            size = _LENGTH.unpack_from(self._buffer)[0]
            # Before the bytes come: a length alone must not make this end wait for gigabytes.
            if size > FRAME_LIMIT_BYTES:
                raise BadFrame(f"a frame of {size} bytes, and the limit is {FRAME_LIMIT_BYTES}")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                message = self._decoder.decode(payload)
            except (MsgspecError, UnicodeError, RecursionError) as error:
                raise BadFrame(f"a frame that makes no sense: {error}") from None
            yield message
