"""
Sound and pictures as the MiniCPM-o protocol carries them: base64 of float32 samples, and of files.

What is too large, is no base64, or is not what it should be is refused here, before an engine sees it; how large it is, before it is
decoded. Inside of the server sound is s16le.
"""

import struct
from functools import cache
from math import isfinite
from typing import Any

import msgspec

from antiphon.wire.minicpmo.decode import invalid_field, missing_field, read

RATE_IN_HZ = 16_000
"""Samples a second of what clients send."""

RATE_OUT_HZ = 24_000
"""Samples a second of what they are sent."""

AUDIO_LIMIT_S = 5
"""The longest sound of one append; clients send one second."""

REFERENCE_LIMIT_S = 60
"""The longest recording of a voice."""

RECORDING_LIMIT_S = 600
"""The longest sound in a message."""

FRAMES_LIMIT = 8
"""The most pictures of one append; clients send one."""

FRAME_LIMIT_BYTES = 2 << 20
"""The largest picture of an append, as a file."""

FRAME_LIMIT_PIXELS = 4096 * 4096
"""The largest picture when it is unpacked: a small file can hold a very large one."""

IMAGE_LIMIT_BYTES = 20 << 20
"""The largest picture in a message, as a file."""

VIDEO_LIMIT_BYTES = 64 << 20
"""The largest film in a message."""

FLOAT_BYTES = 4
_FULL_SCALE = 32_768
_MAX_SAMPLE = (_FULL_SCALE - 1) / _FULL_SCALE

IMAGE_SIGNATURES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"GIF8": "gif"}
"""Formats of pictures by how their files begin."""


# Samples


@cache
def _numpy() -> Any:
    try:
        import numpy  # noqa: PLC0415 - an extra that takes 50 ms to load; it converts sound 100 times as fast as is done without it
    except ImportError:
        return None
    return numpy


def from_floats(floats: bytes) -> bytes | None:
    """
    Sound as the server has it.

    Args:
        floats: float32, the low byte first, whole samples; what is beyond -1 and 1 is cut off there.

    Returns:
        s16le; None where a sample is no number, or is infinite.
    """
    numpy = _numpy()
    return _from_floats_plain(floats) if numpy is None else _from_floats_numpy(numpy, floats)


def _from_floats_numpy(numpy: Any, floats: bytes) -> bytes | None:
    samples = numpy.frombuffer(floats, "<f4")
    if not len(samples):
        return b""
    least, most = float(samples.min()), float(samples.max())  # what is no number is either
    if not isfinite(least + most):
        return None
    if least < -1 or most > _MAX_SAMPLE:
        samples = numpy.clip(samples, numpy.float32(-1), numpy.float32(_MAX_SAMPLE))
    steps = samples * numpy.float32(_FULL_SCALE)  # exact, as it is a power of two
    numpy.rint(steps, out=steps)
    return bytes(steps.astype("<i2").tobytes())


def _from_floats_plain(floats: bytes) -> bytes | None:
    count = len(floats) // FLOAT_BYTES
    samples = struct.unpack(f"<{count}f", floats)
    if not isfinite(sum(samples)):  # what is no number makes none of the sum; so many finite ones can't overflow it
        return None
    if count and (max(samples) > _MAX_SAMPLE or min(samples) < -1):
        samples = tuple(max(-1.0, min(_MAX_SAMPLE, sample)) for sample in samples)
    return struct.pack(f"<{count}h", *[round(sample * _FULL_SCALE) for sample in samples])


def to_floats(pcm: bytes) -> bytes:
    """
    Sound as clients take it.

    Args:
        pcm: s16le, whole samples.

    Returns:
        float32 from -1 to 1, the low byte first: twice as many bytes.
    """
    numpy = _numpy()
    if numpy is None:
        return _to_floats_plain(pcm)
    samples = numpy.frombuffer(pcm, "<i2").astype("<f4")
    samples *= numpy.float32(1 / _FULL_SCALE)
    return bytes(samples.tobytes())


def _to_floats_plain(pcm: bytes) -> bytes:
    count = len(pcm) // 2
    return struct.pack(f"<{count}f", *[number / _FULL_SCALE for number in struct.unpack(f"<{count}h", pcm)])


# What stands in a message


_VALUE_FIELDS = ("data", "base64", "audio_base64", "audio_data")
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text_decoder = msgspec.json.Decoder(str)
_bytes_decoder = msgspec.json.Decoder(bytes)
_PREFIX_LIMIT = 128


def decode_base64(raw: bytes, param: str, max_bytes: int) -> bytes:
    """
    What a value holds in base64: a string, with or without `data:…;base64,` before it, or an object that has one as its `data`.

    Args:
        raw: JSON of the value.
        most_bytes: of what it holds.

    Raises:
        ClientError: it holds none, or more than that.
    """
    return _decode_json_string(_base64_json_string(raw, param, max_bytes), param)


def validate_base64(raw: bytes, param: str, max_bytes: int) -> str:
    """
    The same, as the base64 that it is.

    Raises:
        ClientError: it is none, or holds more than that.
    """
    quoted = _base64_json_string(raw, param, max_bytes)
    _decode_json_string(quoted, param)
    return _text_decoder.decode(quoted)


def _decode_json_string(json_string: bytes, param: str) -> bytes:
    try:
        return _bytes_decoder.decode(json_string)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid_field(param, "expected base64, with its padding") from None


def _base64_json_string(raw: bytes, param: str, max_bytes: int) -> bytes:
    """The base64 with quotes around it."""
    raw = bytes(raw)  # a `Raw` can be decoded, but not be looked into
    if raw[:1] == b"{":
        raw = _member(raw, param)
    if raw[:1] != b'"':
        raise invalid_field(param, "expected a string of base64")
    if raw[1:6] == b"data:":
        comma = raw.find(b",", 0, _PREFIX_LIMIT)
        if comma < 0:
            raise invalid_field(param, "expected 'data:…;base64,' and then base64")
        raw = b'"' + raw[comma + 1 :]
    length_bytes = (len(raw) - 2) * 3 // 4
    if length_bytes > max_bytes + 3:  # padding
        raise invalid_field(param, f"expected at most {max_bytes} bytes, but got {length_bytes}")
    return raw


def _member(raw: bytes, param: str) -> bytes:
    fields = read(_members_decoder, raw, param)
    name = next((name for name in _VALUE_FIELDS if name in fields), None)
    if name is None:
        raise missing_field(f"{param}.data")
    return bytes(fields[name])


def decode_audio(raw: bytes, param: str, max_s: float) -> bytes:
    """
    The sound in a value: s16le, 16 kHz.

    Args:
        raw: JSON of the value, which holds float32 samples at 16 kHz.

    Raises:
        ClientError: it holds none, or more than `most_s` seconds.
    """
    return decode_samples(decode_base64(raw, param, int(max_s * RATE_IN_HZ * FLOAT_BYTES)), param)


def decode_samples(floats: bytes, param: str) -> bytes:
    """
    Float32 samples of a client as s16le.

    Raises:
        ClientError: they are none.
    """
    if floats[:4] == b"RIFF" and floats[8:12] == b"WAVE":  # an earlier generation's documentation asked for such voices
        raise invalid_field(param, "expected float32 samples and nothing around them, but got a WAV file")
    if len(floats) % FLOAT_BYTES:
        raise invalid_field(param, f"expected float32 samples of {FLOAT_BYTES} bytes each, but got {len(floats)} bytes")
    pcm = from_floats(floats)
    if pcm is None:
        raise invalid_field(param, "expected samples from -1 to 1, but one of them is NaN or infinite")
    return pcm


def decode_frame(raw: bytes, param: str) -> bytes:
    """
    The picture in a value: a JPEG file.

    Raises:
        ClientError: it holds none, or one that is too large.
    """
    jpeg = decode_base64(raw, param, FRAME_LIMIT_BYTES)
    check_jpeg(jpeg, param)
    return jpeg


def check_jpeg(jpeg: bytes, param: str) -> None:
    """
    Ask whether it is a whole JPEG file that can be looked at.

    Raises:
        ClientError: it is none, or is too large a picture.
    """
    pixels = _pixel_count(jpeg)
    if pixels is None:
        raise invalid_field(param, "expected a whole JPEG file")
    if not 0 < pixels <= FRAME_LIMIT_PIXELS:
        raise invalid_field(param, f"expected a picture of at most {FRAME_LIMIT_PIXELS} pixels, but got {pixels}")


def image_data_url(raw: bytes, param: str) -> str:
    """
    The picture in a value as a data URL.

    Raises:
        ClientError: it holds none.
    """
    picture = decode_base64(raw, param, IMAGE_LIMIT_BYTES)
    kind = next((kind for magic, kind in IMAGE_SIGNATURES.items() if picture.startswith(magic)), None)
    if picture[:4] == b"RIFF" and picture[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        raise invalid_field(param, "expected a JPEG, PNG, GIF, or WebP file")
    if kind == "jpeg":
        check_jpeg(picture, param)
    return f"data:image/{kind};base64,{validate_base64(raw, param, IMAGE_LIMIT_BYTES)}"


_JPEG_START, _JPEG_END, _JPEG_MARKER = b"\xff\xd8", b"\xff\xd9", 0xFF
_FRAME_STARTS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers behind which height and width stand."""


def _pixel_count(jpeg: bytes) -> int | None:
    """
    How many pixels a JPEG file has; None where it is none, or is cut off before its end.

    Anything may follow the end: some cameras fill up with zeros, some phones put a film there.

    Source: ITU-T Recommendation T.81, annex B.
    """
    at = len(_JPEG_START)
    if jpeg[:at] != _JPEG_START:
        return None
    while at + 9 <= len(jpeg) and jpeg[at] == _JPEG_MARKER:
        marker = jpeg[at + 1]
        if marker in _FRAME_STARTS:
            if jpeg.rfind(_JPEG_END, at) < 0:  # from behind, as it is where it should be; small pictures within have theirs before this
                return None
            height, width = struct.unpack_from(">HH", jpeg, at + 5)
            return int(height * width)
        # A marker may be preceded by any number of bytes that fill.
        at += 1 if marker == _JPEG_MARKER else 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    return None
