"""What the fields of an API key may be, and how a key is shown: the same for `antiphon keys` and for `/keys`."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from antiphon.records import KeyRecord

KeyState = Literal["live", "expired", "revoked"]

MAX_LIMIT = 10**12
"""The greatest limit: far more than any server does in a minute; every database holds it."""

MAX_LABEL_CHARS = 256
"""The most characters of a name or a tenant."""

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def is_label(text: str) -> bool:
    """Whether it can be the name of a key, or its tenant: some characters on one line."""
    return bool(text.strip()) and len(text) <= MAX_LABEL_CHARS and text.isprintable()


def is_limit(limit: int | None) -> bool:
    """Whether it can be a limit; None is no limit."""
    return limit is None or 1 <= limit <= MAX_LIMIT


def parse_expiry(text: str, now: datetime) -> int:
    """
    The Unix time of a duration from now, such as `30d`, or of a date; a date without a zone is UTC.

    Raises:
        ValueError: it is neither, or it has passed; the message says which.
    """
    if match := re.fullmatch(r"([1-9]\d{0,4})([mhdw])", text, re.ASCII):
        return int((now + int(match[1]) * _UNITS[match[2]]).timestamp())
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        at = int(moment.timestamp())
    except (ValueError, OverflowError):
        raise ValueError("is neither a duration such as 30d nor a date such as 2030-01-31") from None
    if moment <= now:
        raise ValueError("has passed")
    return at


def key_state(key: KeyRecord, now: float) -> KeyState:
    """Whether a key works, and if not, why."""
    if key.revoked_at is not None:
        return "revoked"
    return "live" if key.is_live(now) else "expired"


def key_fields(key: KeyRecord, now: float) -> Mapping[str, object]:
    """All of a key but its hash, and its state."""
    return {name: getattr(key, name) for name in key.__struct_fields__ if name != "hash"} | {"state": key_state(key, now)}


def has_live_admin(keys: Iterable[KeyRecord], now: float) -> bool:
    """Whether one of the keys is valid and has the scope `admin`."""
    return any("admin" in key.scopes and key.is_live(now) for key in keys)
