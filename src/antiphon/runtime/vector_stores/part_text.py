"""The text of a part of an indexed file, as it is stored: once, with the places of its chunks, which overlap."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct


class StoredText(Struct, frozen=True, array_like=True):
    """
    Attributes:
        begin: of the part, in characters of the file's text.
        text: from there on.
        spans: of the chunks within `text`: the first character, and the one after the last.
    """

    begin: int
    text: str
    spans: Sequence[tuple[int, int]]

    @property
    def chunks(self) -> list[str]:
        """The texts of the chunks."""
        return [self.text[begin:end] for begin, end in self.spans]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredText)


def encode_text(part: StoredText) -> bytes:
    """A part's text as it is stored."""
    return _encoder.encode(part)


def decode_text(content: bytes) -> StoredText:
    """The text of a part that is stored."""
    return _decoder.decode(content)


def without_overlaps(parts: Iterable[StoredText]) -> Iterator[str]:
    """What each part adds to the text of those before it."""
    end = 0
    for part in parts:
        yield part.text[max(0, end - part.begin) :]
        end = max(end, part.begin + len(part.text))
