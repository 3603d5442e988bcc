"""Fresh ids and noise: the only dice in the house."""

import secrets


def mint(prefix: str) -> str:
    """A fresh id in the original's form: the prefix, an underscore, 48 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(24)}"


def mint_short(prefix: str) -> str:
    """A fresh id that a person may have to type: 12 digits, enough to tell a few thousand apart, and no secret."""
    return f"{prefix}_{secrets.token_hex(6)}"


_LONGEST, _KINDS = 16, 64
_POOL = secrets.token_urlsafe(_LONGEST * _KINDS)
_NOISES = tuple(tuple(_POOL[at + skipped : at + _LONGEST] for skipped in range(_LONGEST)) for at in range(0, _LONGEST * _KINDS, _LONGEST))


def noise() -> tuple[str, ...]:
    """
    Random-looking strings for `obfuscation`: of 16 characters, of 15, and so on, down to one.

    Only their length has to be unpredictable in relation to the text, so a stream gets one of a few sets, and a token costs no dice.
    """
    return _NOISES[secrets.randbelow(_KINDS)]
