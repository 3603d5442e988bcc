"""Messages in MessagePack, each behind its length in four bytes, as processes of ours send them over one connection."""

from collections.abc import Iterator
from struct import Struct as Format
from typing import Generic, TypeVar

from msgspec import MsgspecError, msgpack

FRAME_LIMIT_BYTES = 32 << 20

In = TypeVar("In")

_LENGTH = Format("!I")


class BadFrame(ValueError):
    """What came is no frame; the message says why, in words that may be told to the other end."""


def add_length_prefix(payload: bytes) -> bytes:
    """A message, packed, as it goes over the connection."""
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder(Generic[In]):
    """Takes frames out of the bytes that come."""

    def __init__(self, decoder: msgpack.Decoder[In]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[In]:
        """
        The frames that are whole with these bytes.

        Raises:
            Flaw: what comes next is none; nothing more can be read.
        """
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH.size:
            size = _LENGTH.unpack_from(self._buffer)[0]
            if size > FRAME_LIMIT_BYTES:
                raise BadFrame(f"a frame of {size} bytes, and the limit is {FRAME_LIMIT_BYTES}")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            packed = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                frame = self._decoder.decode(packed)
            except (MsgspecError, UnicodeError, RecursionError) as error:
                raise BadFrame(f"a frame that makes no sense: {error}") from None
            yield frame
