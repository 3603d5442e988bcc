"""Fresh ids and noise: the only dice in the house."""

import secrets


def new_id(prefix: str) -> str:
    """A fresh id in the original's form: the prefix, an underscore, 48 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(24)}"


def new_short_id(prefix: str) -> str:
    """A fresh id that a person may have to type: 12 digits, enough to tell a few thousand apart, and no secret."""
    return f"{prefix}_{secrets.token_hex(6)}"


_MAX_PADDING_CHARACTERS, _PADDING_SETS = 16, 64
_RANDOM_TEXT = secrets.token_urlsafe(_MAX_PADDING_CHARACTERS * _PADDING_SETS)
_PADDINGS = tuple(
    tuple(_RANDOM_TEXT[at + skipped : at + _MAX_PADDING_CHARACTERS] for skipped in range(_MAX_PADDING_CHARACTERS))
    for at in range(0, _MAX_PADDING_CHARACTERS * _PADDING_SETS, _MAX_PADDING_CHARACTERS)
)


def padding() -> tuple[str, ...]:
    """
    Random-looking strings for `obfuscation`: of 16 characters, of 15, and so on, down to one.

    Only their length has to be unpredictable in relation to the text, so a stream gets one of a few sets, and a token costs no dice.
    """
    return _PADDINGS[secrets.randbelow(_PADDING_SETS)]
