"""
Audio and images of the MiniCPM-o protocol: base64 of float32 samples, and of files.

Whatever is too large, no base64 or of the wrong format is refused here, before an engine sees it; sizes are checked
before decoding. Inside the server audio is s16le.
"""

import struct
from functools import cache
from math import isfinite
from types import ModuleType

import msgspec

from antiphon.wire.codec.base64_strings import decode_base64_string
from antiphon.wire.minicpmo.decode import invalid_field, missing_field, read

RATE_IN_HZ = 16_000
"""Sample rate of audio from clients."""

RATE_OUT_HZ = 24_000
"""Sample rate of audio to clients."""

AUDIO_LIMIT_S = 5
"""Audio in one append; clients send one second."""

REFERENCE_LIMIT_S = 60
"""Recording of a voice."""

RECORDING_LIMIT_S = 600
"""Audio in a message."""

FRAMES_LIMIT = 8
"""Images in one append; clients send one."""

FRAME_LIMIT_BYTES = 2 << 20
"""File size of an image in an append."""

FRAME_LIMIT_PIXELS = 4096 * 4096
"""Pixels of an image: a small file may decode to a very large one."""

IMAGE_LIMIT_BYTES = 20 << 20
"""File size of an image in a message."""

VIDEO_LIMIT_BYTES = 64 << 20
"""File size of a video in a message."""

FLOAT_BYTES = 4
_FULL_SCALE = 32_768
_MAX_SAMPLE = (_FULL_SCALE - 1) / _FULL_SCALE

IMAGE_SIGNATURES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png", b"GIF8": "gif"}
"""Image formats by the first bytes of their files."""


# Samples


@cache
def _numpy() -> ModuleType | None:
    try:
        import numpy  # noqa: PLC0415 - an extra that takes 50 ms to load; it converts sound 100 times as fast as is done without it
    except ImportError:
        return None
    return numpy


def from_floats(floats: bytes) -> bytes | None:
    """
    Float32 audio as s16le.

    Args:
        floats: float32, little endian, whole samples; clipped to -1 and 1.

    Returns:
        s16le; None if a sample is NaN or infinite.
    """
    numpy = _numpy()
    return _from_floats_plain(floats) if numpy is None else _from_floats_numpy(numpy, floats)


def _from_floats_numpy(numpy: ModuleType, floats: bytes) -> bytes | None:
    samples = numpy.frombuffer(floats, "<f4")
    if not len(samples):
        return b""
    minimum, maximum = float(samples.min()), float(samples.max())  # NaN if any sample is
    if not isfinite(minimum + maximum):
        return None
    if minimum < -1 or maximum > _MAX_SAMPLE:
        samples = numpy.clip(samples, numpy.float32(-1), numpy.float32(_MAX_SAMPLE))
    steps = samples * numpy.float32(_FULL_SCALE)  # exact, as it is a power of two
    numpy.rint(steps, out=steps)
    return bytes(steps.astype("<i2").tobytes())


def _from_floats_plain(floats: bytes) -> bytes | None:
    count = len(floats) // FLOAT_BYTES
    samples = struct.unpack(f"<{count}f", floats)
    if not isfinite(sum(samples)):  # NaN and infinity propagate to the sum, which finite float32 values can't overflow
        return None
    if count and (max(samples) > _MAX_SAMPLE or min(samples) < -1):
        samples = tuple(max(-1.0, min(_MAX_SAMPLE, sample)) for sample in samples)
    return struct.pack(f"<{count}h", *[round(sample * _FULL_SCALE) for sample in samples])


def to_floats(pcm: bytes) -> bytes:
    """
    s16le audio as float32, as clients expect it.

    Args:
        pcm: s16le, whole samples.

    Returns:
        float32 from -1 to 1, little endian: twice as many bytes.
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


# Values in a message


_VALUE_FIELDS = ("data", "base64", "audio_base64", "audio_data")
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text_decoder = msgspec.json.Decoder(str)
_PREFIX_LIMIT = 128


def decode_base64(raw: bytes, param: str, max_bytes: int) -> bytes:
    """
    Decode a base64 value: a string, with or without `data:…;base64,` in front, or an object that has one as its `data`.

    Args:
        raw: JSON of the value.
        max_bytes: after decoding.

    Raises:
        ClientError: it is no base64, or too large.
    """
    return _decode_json_string(_base64_json_string(raw, param, max_bytes), param)


def validate_base64(raw: bytes, param: str, max_bytes: int) -> str:
    """
    The same, but returns the base64.

    Raises:
        ClientError: it is no base64, or too large.
    """
    json_string = _base64_json_string(raw, param, max_bytes)
    _decode_json_string(json_string, param)
    return _text_decoder.decode(json_string)


def _decode_json_string(json_string: bytes, param: str) -> bytes:
    try:
        return decode_base64_string(json_string)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid_field(param, "expected base64, with its padding") from None


def _base64_json_string(raw: bytes, param: str, max_bytes: int) -> bytes:
    """The base64 as a JSON string, quotes included."""
    raw = bytes(raw)  # `Raw` supports no slicing
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
    Decode an audio value to s16le, 16 kHz.

    Args:
        raw: JSON of the value, which holds float32 samples at 16 kHz.

    Raises:
        ClientError: it is invalid, or longer than `max_s` seconds.
    """
    return decode_samples(decode_base64(raw, param, int(max_s * RATE_IN_HZ * FLOAT_BYTES)), param)


def decode_samples(floats: bytes, param: str) -> bytes:
    """
    A client's float32 samples as s16le.

    Raises:
        ClientError: they are invalid.
    """
    if floats[:4] == b"RIFF" and floats[8:12] == b"WAVE":  # the documentation of an earlier generation asked for voices as WAV files
        raise invalid_field(param, "expected bare float32 samples, but got a WAV file")
    if len(floats) % FLOAT_BYTES:
        raise invalid_field(param, f"expected float32 samples of {FLOAT_BYTES} bytes each, but got {len(floats)} bytes")
    pcm = from_floats(floats)
    if pcm is None:
        raise invalid_field(param, "expected samples from -1 to 1, but one of them is NaN or infinite")
    return pcm


def decode_frame(raw: bytes, param: str) -> bytes:
    """
    Decode an image value: a JPEG file.

    Raises:
        ClientError: it is no JPEG file, or too large.
    """
    jpeg = decode_base64(raw, param, FRAME_LIMIT_BYTES)
    check_jpeg(jpeg, param)
    return jpeg


def check_jpeg(jpeg: bytes, param: str) -> None:
    """
    Check that a JPEG file is complete and not too large.

    Raises:
        ClientError: it isn't.
    """
    pixels = _pixel_count(jpeg)
    if pixels is None:
        raise invalid_field(param, "expected a complete JPEG file")
    if not 0 < pixels <= FRAME_LIMIT_PIXELS:
        raise invalid_field(param, f"expected an image of at most {FRAME_LIMIT_PIXELS} pixels, but got {pixels}")


def image_data_url(raw: bytes, param: str) -> str:
    """
    An image value as a data URL.

    Raises:
        ClientError: it is no image of a known format, or too large.
    """
    image = decode_base64(raw, param, IMAGE_LIMIT_BYTES)
    kind = next((kind for magic, kind in IMAGE_SIGNATURES.items() if image.startswith(magic)), None)
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        raise invalid_field(param, "expected a JPEG, PNG, GIF, or WebP file")
    if kind == "jpeg":
        check_jpeg(image, param)
    return f"data:image/{kind};base64,{validate_base64(raw, param, IMAGE_LIMIT_BYTES)}"


_JPEG_START, _JPEG_END, _JPEG_MARKER = b"\xff\xd8", b"\xff\xd9", 0xFF
_FRAME_STARTS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers that are followed by height and width."""


def _pixel_count(jpeg: bytes) -> int | None:
    """
    The pixels of a JPEG file; None if it is none, or is incomplete.

    Anything may follow the end marker: some cameras pad with zeros, some phones append a video.

    Source: ITU-T Recommendation T.81, annex B.
    """
    offset = len(_JPEG_START)
    if jpeg[:offset] != _JPEG_START:
        return None
    while offset + 9 <= len(jpeg) and jpeg[offset] == _JPEG_MARKER:
        marker = jpeg[offset + 1]
        if marker in _FRAME_STARTS:
            if jpeg.rfind(_JPEG_END, offset) < 0:  # searched backwards; thumbnails have their own end marker earlier
                return None
            height, width = struct.unpack_from(">HH", jpeg, offset + 5)
            return int(height * width)
        # T.81 B.1.1.2: any number of 0xFF fill bytes may precede a marker.
        offset += 1 if marker == _JPEG_MARKER else 2 + int.from_bytes(jpeg[offset + 2 : offset + 4])
    return None
