"""Fresh ids and noise: the only dice in the house."""

import secrets


def mint(prefix: str) -> str:
    """A fresh id in the original's form: the prefix, an underscore, 48 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(24)}"


_POOL_LENGTH = 1 << 12
_POOL = secrets.token_urlsafe(_POOL_LENGTH)[: _POOL_LENGTH + 16]


class Noise:
    """
    Random-looking padding, for `obfuscation`.

    Only its length has to be unpredictable in relation to the text, so it is cut from one random string, and costs no dice a token.
    """

    def __init__(self) -> None:
        self._at = secrets.randbelow(_POOL_LENGTH)

    def __call__(self, length: int) -> str:
        """`length` characters, at most 16."""
        at = self._at
        self._at = (at + length + 7) % _POOL_LENGTH
        return _POOL[at : at + length]
