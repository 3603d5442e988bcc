"""Fresh ids and noise: the only dice in the house."""

import secrets


def mint(prefix: str) -> str:
    """A fresh id in the original's form: the prefix, an underscore, 48 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(24)}"


_LONGEST = 16
_POOL = secrets.token_urlsafe(1 << 12)


def noise() -> tuple[str, ...]:
    """
    Random-looking strings for `obfuscation`: of 16 characters, of 15, and so on, down to one.

    Only their length has to be unpredictable in relation to the text, so they are cut from one random string, anew for each stream, and
    cost no dice a token.
    """
    at = secrets.randbelow(len(_POOL) - 2 * _LONGEST)
    return tuple(_POOL[at + skipped : at + _LONGEST] for skipped in range(_LONGEST))
