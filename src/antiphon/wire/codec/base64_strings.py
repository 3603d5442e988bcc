"""
Base64 in JSON, for audio: what msgspec reads and writes, byte for byte, a tenth as dear (docs/decisions/0068).
"""

import msgspec
import pybase64
from msgspec import Raw

_decoder: msgspec.json.Decoder[bytes] = msgspec.json.Decoder(bytes)


def decode_base64_string(json_string: bytes | memoryview) -> bytes:
    """
    The content of a string of base64, with its padding.

    Args:
        json_string: with its quotes; not copied.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: it is none.
    """
    try:
        return pybase64.b64decode(memoryview(json_string)[1:-1], validate=True)
    except ValueError:  # no base64, or some of it is escaped, as `\/`
        return _decoder.decode(json_string)


def encode_base64_string(content: bytes) -> Raw:
    """The content as a string of base64, in place of the `bytes` that msgspec would encode."""
    return Raw(b'"%b"' % pybase64.b64encode(content))
