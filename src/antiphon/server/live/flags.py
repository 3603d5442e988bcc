"""Parameters of an address that are true or false."""

from collections.abc import Mapping

from antiphon.errors import invalid_value
from antiphon.wire.codec.types import JsonDict

_VALUES = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}

FLAG_SCHEMA: JsonDict = {"type": "string", "enum": list(_VALUES)}
"""For the OpenAPI document; other cases of the words are taken too."""


def is_true_word(text: str) -> bool:
    """Whether a text, such as that of a header, is one of the words for true."""
    return _VALUES.get(text.strip().lower(), False)


def parse_flag(query: Mapping[str, str], name: str) -> bool:
    """
    The value of a parameter; false if it is absent.

    Raises:
        ClientError: it is none of the words for true and false.
    """
    text = query.get(name, "false")
    value = _VALUES.get(text.lower())
    if value is None:
        raise invalid_value(name, text, _VALUES)
    return value
