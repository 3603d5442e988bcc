"""
Ids of responses, as `resp_` and 48 hexadecimal digits or as a UUID: two ways to write one id.

A UUID has 32 digits. So the first 32 are the UUID, a UUIDv7 (RFC 9562), which begins with the time in milliseconds, and
the other 16 are a checksum of these. Ids that were made otherwise have no UUID, and stay as they are.
"""

import hashlib
import re

_PREFIX = "resp_"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ID = re.compile(r"resp_[0-9a-f]{48}")
_UUID_DIGITS, _CHECKSUM_BYTES = 32, 8


def response_id(at_ms: int, random_bits: int) -> str:
    """
    The id of a response.

    Args:
        at_ms: when it is made, in Unix milliseconds.
        random_bits: 74 of them, as a number.
    """
    bits = (at_ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | (random_bits >> 62 & 0xFFF) << 64 | 0b10 << 62 | random_bits & ((1 << 62) - 1)
    return _from_digits(f"{bits:032x}")


def uuid_of(response_id: str) -> str:
    """The UUID of a response's id; the id itself where it has none."""
    digits = response_id.removeprefix(_PREFIX)[:_UUID_DIGITS]
    if not _is_ours(response_id, digits):
        return response_id
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def with_uuids(text: str) -> str:
    """A text for a client that knows the UUIDs of responses, and not their ids."""
    return _ID.sub(lambda match: uuid_of(match[0]), text)


def read_response_id(text: str) -> str:
    """The id of a response, of which clients have this one or its UUID."""
    return _from_digits(text.replace("-", "").lower()) if _UUID.fullmatch(text) else text


def created_at_ms(response_id: str, created_at: float) -> int:
    """When a response was created, in Unix milliseconds; `created_at` in seconds stands where its id does not say it."""
    digits = response_id.removeprefix(_PREFIX)[:_UUID_DIGITS]
    return int(digits[:12], 16) if _is_ours(response_id, digits) else int(created_at * 1000)


def _from_digits(digits: str) -> str:
    return f"{_PREFIX}{digits}{_checksum(digits)}"


def _is_ours(response_id: str, digits: str) -> bool:
    return len(digits) == _UUID_DIGITS and response_id == _from_digits(digits)


def _checksum(digits: str) -> str:
    return hashlib.blake2b(digits.encode(), digest_size=_CHECKSUM_BYTES).hexdigest()
