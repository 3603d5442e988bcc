"""Texts and settings without the secrets in them, for messages, logs and whatever else people see."""

import re
from urllib.parse import unquote

MASK = "***"
"""What stands for a secret."""

_SECRET_WORDS = frozenset(
    "key apikey token secret password passwd pwd passphrase credential credentials signature sig authorization".split()
)

_PASSWORD = re.compile(r"(?<=://)([^:@/?#\s]*):\S*@")
_LONE_USER = re.compile(r"(?<!postgres://)(?<!postgresql://)(?<!postgresql\+asyncpg://)(?<=://)[^:@/?#\s]+@")
# An address with slashes missing is no URL, but has its password all the same.
_WITHOUT_SLASHES = re.compile(r"\b((?:https?|wss?|s3|postgres\w*(?:\+\w+)?):/?)(?!/)\S*@")
_QUERY_FIELD = re.compile(r"([?&;]([^=&;#\s]*)=)([^&;#\s'\"]*)")


def mask_password(text: str) -> str:
    """
    A text with URLs, without the passwords and keys in them.

    A user without a password may be a token, except in the address of a database.
    """
    without_password = _LONE_USER.sub(f"{MASK}@", _PASSWORD.sub(rf"\1:{MASK}@", _WITHOUT_SLASHES.sub(rf"\1{MASK}@", text)))
    return _QUERY_FIELD.sub(lambda match: match[1] + (MASK if is_secret(unquote(match[2])) else match[3]), without_password)


def mask_address(text: str) -> str:
    """What was given as a URL but may be none: all before its `@` is masked where no scheme says what it is."""
    return mask_password(text if "://" in text else re.sub(r"^.*@", f"{MASK}@", text, flags=re.DOTALL))


def mask_secrets(value: object, name: str = "") -> object:
    """
    A setting's value with a mask for each secret in it, at any depth: passwords in addresses, all values of `headers`,
    and what is named like a key.

    Args:
        name: of the setting.
    """
    if isinstance(value, dict):
        return {key: MASK if name == "headers" else mask_secrets(each, key) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [mask_secrets(each, name) for each in value]
    if isinstance(value, str):
        return MASK if value and (is_secret(name) or name == "headers") else mask_password(value)
    return value


def is_secret(name: str) -> bool:
    """Whether a setting, or a field of a query, holds a secret by its name."""
    # Settings that end in `_env` name a variable, and no setting that holds a secret has a number in it.
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return not name.endswith(("_env", "_per_key")) and not _SECRET_WORDS.isdisjoint(words)
