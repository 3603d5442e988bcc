"""What a picture's first bytes say: its format and its size."""

import re
import struct
from typing import Literal

ImageFormat = Literal["png", "webp", "jpeg", "gif", "svg"]

MEDIA_TYPES: dict[ImageFormat, str] = {
    "png": "image/png",
    "webp": "image/webp",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "svg": "image/svg+xml",
}

MAX_JPEG_SEGMENTS = 1000
"""The most segments of a JPEG that are passed over in search of its frame."""

_SVG = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<svg[\s>]", re.IGNORECASE)

_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of segments with a size. Source: ITU-T T.81, table B.1."""


def image_format(picture: bytes) -> ImageFormat | None:
    """The format; None if the Images API has no such format."""
    if picture.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if picture.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if picture[:4] == b"RIFF" and picture[8:12] == b"WEBP":
        return "webp"
    if picture.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    return "svg" if _SVG.match(picture[:1024]) else None


def image_size(picture: bytes) -> str | None:
    """Width and height, as `1024x1536`; None for SVG, and where the header is damaged."""
    try:
        match image_format(picture):
            case "png":  # PNG, 11.2.1: the header comes first
                width, height = struct.unpack_from(">II", picture, 16)
            case "gif":  # GIF89a, 18
                width, height = struct.unpack_from("<HH", picture, 6)
            case "jpeg":
                width, height = _jpeg_size(picture)
            case "webp":
                width, height = _webp_size(picture)
            case _:
                return None
    except (struct.error, IndexError, ValueError):
        return None
    return f"{width}x{height}"


def _jpeg_size(picture: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(MAX_JPEG_SEGMENTS):
        if picture[at] != 0xFF:
            raise ValueError("no marker")
        if picture[at + 1] in _JPEG_FRAMES:
            # ITU-T T.81, B.2.2: the height comes first.
            height, width = struct.unpack_from(">HH", picture, at + 5)
            return width, height
        at += 2 + struct.unpack_from(">H", picture, at + 2)[0]
    raise ValueError("no frame")


def _webp_size(picture: bytes) -> tuple[int, int]:
    # RFC 9649, sections 2.5 to 2.7, and RFC 6386, section 9.1.
    match picture[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(picture[24:27], "little"), 1 + int.from_bytes(picture[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(picture[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", picture, 26)
            # The two upper bits are a scale for display.
            return width & 0x3FFF, height & 0x3FFF
        case _:
            raise ValueError("no image")
