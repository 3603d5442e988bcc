"""Random ids and padding."""

import os
import secrets
import time

from antiphon.wire.codec.response_ids import response_id

_ID_BYTES, _IDS_AT_ONCE = 24, 64
_random_ids: list[bytes] = []
os.register_at_fork(after_in_child=_random_ids.clear)  # else both processes would make the same ids


def _random_bytes() -> bytes:
    """Random bytes for one id. They are fetched for many at once, as that is a system call; each is given to one caller."""
    while True:
        try:
            return _random_ids.pop()
        except IndexError:
            supply = os.urandom(_ID_BYTES * _IDS_AT_ONCE)
            _random_ids.extend([supply[start : start + _ID_BYTES] for start in range(0, len(supply), _ID_BYTES)])


def new_id(prefix: str) -> str:
    """A new id in OpenAI's form: the prefix, an underscore, 48 hexadecimal digits."""
    return f"{prefix}_{_random_bytes().hex()}"


def new_response_id() -> str:
    """A new id of a response, in the same form; it has a UUID."""
    return response_id(time.time_ns() // 1_000_000, int.from_bytes(_random_bytes()[:10]) >> 6)  # 74 bits


def new_file_id() -> str:
    """A new id of an uploaded file: OpenAI's have a hyphen, and clients know them by it."""
    return f"file-{secrets.token_hex(12)}"


def new_short_id(prefix: str) -> str:
    """A new id that people may type: 12 digits, enough for some thousands of ids, but no secret."""
    return f"{prefix}_{secrets.token_hex(6)}"


_MAX_PADDING_CHARACTERS, _PADDING_SETS = 16, 64
_RANDOM_TEXT = secrets.token_urlsafe(_MAX_PADDING_CHARACTERS * _PADDING_SETS)
_PADDINGS = tuple(
    tuple(_RANDOM_TEXT[start + offset : start + _MAX_PADDING_CHARACTERS] for offset in range(_MAX_PADDING_CHARACTERS))
    for start in range(0, _MAX_PADDING_CHARACTERS * _PADDING_SETS, _MAX_PADDING_CHARACTERS)
)


def padding() -> tuple[str, ...]:
    """
    Random-looking strings for `obfuscation`: of 16 characters, of 15, and so on, down to one.

    Only their length must be unpredictable in relation to the text, so each stream gets one of a few sets, and a token
    no new random text.
    """
    return _PADDINGS[_random_bytes()[0] % _PADDING_SETS]
