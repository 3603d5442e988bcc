"""Cuts a text into chunks that overlap."""

from msgspec import Struct


class Chunking(Struct, frozen=True, kw_only=True):
    """
    How a text is cut; the defaults are what `auto` means.

    Attributes:
        max_tokens: of a chunk, about; 100 to 4096.
        overlap_tokens: that a chunk shares with the next; 0 to half of `max_tokens`.
    """

    max_tokens: int = 800
    overlap_tokens: int = 400


class Chunk(Struct, frozen=True):
    """A piece of a text, from the character `begin` to the one before `end`."""

    text: str
    begin: int
    end: int


def chunk(text: str, chunking: Chunking) -> list[Chunk]:
    """The chunks of a text in its order; none if there is nothing but blanks. No cut is inside a word."""
    raise NotImplementedError
