"""What a picture's first bytes say."""

import struct

import pytest
from hypothesis import given, strategies as st

from antiphon.tools.image_generation.formats import image_format, image_size
from support.tools.images_server import png

GIF = b"GIF89a" + struct.pack("<HH", 300, 200) + bytes(20)
JPEG = b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + bytes(14) + b"\xff\xc2" + struct.pack(">HBHH", 17, 8, 200, 300) + bytes(12)
VP8X = b"RIFF\0\0\0\0WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + (299).to_bytes(3, "little") + (199).to_bytes(3, "little")
VP8L = b"RIFF\0\0\0\0WEBPVP8L" + struct.pack("<I", 10) + b"\x2f" + (299 | 199 << 14).to_bytes(4, "little")
VP8 = b"RIFF\0\0\0\0WEBPVP8 " + struct.pack("<I", 10) + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 300, 200)
SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>'


@pytest.mark.parametrize(
    ("picture", "format", "size"),
    [
        (png(300, 200), "png", "300x200"),
        (GIF, "gif", "300x200"),
        (JPEG, "jpeg", "300x200"),
        (VP8X, "webp", "300x200"),
        (VP8L, "webp", "300x200"),
        (VP8, "webp", "300x200"),
        (SVG, "svg", None),
        (b"", None, None),
        (b"<html>", None, None),
        (b"\xff\xd8\xff", "jpeg", None),
        (b"\xff\xd8" + b"\xff\x01\0\2" * 100_000, "jpeg", None),
        (b"RIFF\0\0\0\0WEBPJUNK" + bytes(30), "webp", None),
    ],
)
def test_format_and_size_are_in_the_first_bytes(picture, format, size):
    assert (image_format(picture), image_size(picture)) == (format, size)


@given(st.sampled_from([png(), GIF, JPEG, VP8X, VP8L, VP8, SVG]), st.data())
def test_any_bytes_are_looked_at(picture, data):
    cut = data.draw(st.integers(0, len(picture)))
    image_size(picture[:cut] + data.draw(st.binary(max_size=20)))
