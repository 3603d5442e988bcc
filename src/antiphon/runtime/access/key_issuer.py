"""API keys that are made and revoked over HTTP, by a caller who may do no more with them than without."""

import asyncio
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime

from msgspec import Struct

from antiphon.errors import ClientError, invalid_value, quote_list, shorten
from antiphon.records import KeyRecord
from antiphon.runtime.access.key_fields import MAX_LABEL_CHARS, MAX_LIMIT, has_live_admin, is_label, is_limit, parse_expiry
from antiphon.runtime.access.keys import DEFAULT_SCOPES, SCOPES, Caller, Keyring, make_key
from antiphon.stores.base import KeyStore

LAST_ADMIN_KEY = "last_admin_key"
"""The code of the error, and what is sent to do it all the same."""

NO_ADMIN_KEY = "no_admin_key"
"""The same, where the first key of a server would not open its routes for operators."""


class NewKey(Struct, frozen=True, kw_only=True):
    """
    A key that a caller asks for.

    Attributes:
        tenant: None for the caller's own, or `default` where it has none.
        scopes: None for all but `admin`, as far as the caller has them.
        expires: as `antiphon keys create --expires` takes it; None for never.
    """

    name: str
    tenant: str | None = None
    scopes: Collection[str] | None = None
    expires: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    streams: int | None = None
    record: str | None = None
    profile: str | None = None


class KeyIssuer:
    """
    Makes and revokes the keys of a server.

    Args:
        is_lasting: whether the store keeps the keys when the server stops.
        clock: Unix seconds.
    """

    def __init__(self, store: KeyStore, keyring: Keyring, *, is_lasting: bool, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keyring = keyring
        self._is_lasting = is_lasting
        self._clock = clock
        self._lock = asyncio.Lock()

    async def all(self) -> Collection[KeyRecord]:
        """Every key, revoked ones too, oldest first."""
        return await self._store.all()

    async def create(self, caller: Caller, new: NewKey, confirm: str | None = None) -> tuple[KeyRecord, str]:
        """
        Make a key; returns its record, and the key itself, which can't be read again. It works at once.

        Args:
            confirm: `NO_ADMIN_KEY`, to make a first key that is not for operators.

        Raises:
            ClientError: a field is wrong; the key would have more than its maker; or nobody could operate the server
                over HTTP any more.
        """
        if not self._is_lasting:
            raise ClientError(
                "This server's store is in memory, so its keys would be gone when it stops. Its operator can set `store.url`.",
                status=409,
                code="store_in_memory",
            )
        now = self._clock()
        _check_fields(new)
        tenant, scopes = _granted_tenant(caller, new), _granted_scopes(caller, new)
        record, secret = make_key(
            new.name,
            now=now,
            tenant=tenant,
            scopes=scopes,
            expires_at=_expires_at(new.expires, now),
            requests_per_minute=new.requests_per_minute,
            tokens_per_minute=new.tokens_per_minute,
            streams=new.streams,
            record=new.record,
            profile=new.profile,
        )
        # Of two first keys that are made at once, each would find none before it.
        async with self._lock:
            if self._keyring.is_required is None and confirm != NO_ADMIN_KEY:
                _check_first_key(record, await self._store.all(), now)
            await self._store.add(record)
        await self._keyring.reload()
        return record, secret

    async def revoke(self, key_id: str, confirm: str | None = None) -> KeyRecord:
        """
        Revoke a key, which may be revoked already; it stops working here at once, and elsewhere within seconds.

        Args:
            confirm: `LAST_ADMIN_KEY`, to revoke the last key for operators.

        Raises:
            ClientError: 404, there is no such key; 409, it is the last key for operators.
        """
        now = self._clock()
        async with self._lock:
            keys = await self._store.all()
            key = next((key for key in keys if key.id == key_id), None)
            if key is None:
                raise ClientError(f"Key '{shorten(key_id)}' not found.", status=404, code="key_not_found")
            # Where no key is needed, operators get in without one.
            if confirm != LAST_ADMIN_KEY and self._keyring.is_required is not False:
                _check_last_admin(key, keys, now)
            await self._store.revoke(key_id, int(now))
        await self._keyring.reload()
        return next((key for key in await self._store.all() if key.id == key_id), key)


def _check_fields(new: NewKey) -> None:
    for param, label in (("name", new.name), ("tenant", new.tenant)):
        if label is not None and not is_label(label):
            raise ClientError(
                f"Invalid '{param}': expected 1 to {MAX_LABEL_CHARS} characters on one line.", code="invalid_value", param=param
            )
    limits = {
        "requests_per_minute": new.requests_per_minute,
        "tokens_per_minute": new.tokens_per_minute,
        "streams": new.streams,
    }
    for param, limit in limits.items():
        if not is_limit(limit):
            raise ClientError(
                f"Invalid '{param}': a limit is at least 1 and at most {MAX_LIMIT}; leave it out for none.",
                code="invalid_value",
                param=param,
            )
    for index, scope in enumerate(new.scopes or ()):
        if scope not in SCOPES:
            raise invalid_value(f"scopes[{index}]", shorten(scope), SCOPES)
    if new.scopes is not None and not new.scopes:
        raise ClientError(
            f"Invalid 'scopes': a key needs one at least; there are {quote_list(SCOPES)}.", code="invalid_value", param="scopes"
        )


def _granted_tenant(caller: Caller, new: NewKey) -> str:
    if caller.key is None:
        return "default" if new.tenant is None else new.tenant
    if new.tenant not in (None, caller.tenant):
        raise ClientError(
            "Your key belongs to another tenant, so it can't make keys for this one. The operator of this server can, with "
            "`antiphon keys create --tenant`.",
            status=403,
            code="insufficient_permissions",
            param="tenant",
        )
    return caller.tenant


def _granted_scopes(caller: Caller, new: NewKey) -> Collection[str]:
    """The scopes of a new key: no more than those of its maker."""
    if new.scopes is None:
        scopes = [scope for scope in DEFAULT_SCOPES if caller.key is None or scope in caller.key.scopes]
        if not scopes:
            raise ClientError(
                "Name the scopes: your key has none of those that a key gets by default.", code="invalid_value", param="scopes"
            )
        return scopes
    if caller.key is not None and (missing := [scope for scope in SCOPES if scope in new.scopes and scope not in caller.key.scopes]):
        raise ClientError(
            f"Your key lacks {quote_list(missing)}, so it can't make a key that has it.",
            status=403,
            code="insufficient_permissions",
            param="scopes",
        )
    return new.scopes


def _expires_at(text: str | None, now: float) -> int | None:
    if text is None:
        return None
    try:
        return parse_expiry(text, datetime.fromtimestamp(now, UTC))
    except ValueError as error:
        raise ClientError(f"Invalid 'expires': '{shorten(text)}' {error}.", code="invalid_value", param="expires") from None


def _check_first_key(key: KeyRecord, others: Collection[KeyRecord], now: float) -> None:
    if not others and not has_live_admin([key], now):
        raise ClientError(
            "With a first key, every request needs one, and this one lacks the scope 'admin': nobody could operate the server over HTTP. "
            f"Add the scope, or send `confirm` with '{NO_ADMIN_KEY}' to make it as it is.",
            status=409,
            code=NO_ADMIN_KEY,
        )


def _check_last_admin(key: KeyRecord, keys: Collection[KeyRecord], now: float) -> None:
    if has_live_admin([key], now) and not has_live_admin([other for other in keys if other.id != key.id], now):
        raise ClientError(
            "This is the last valid key with the scope 'admin': without it nobody can operate the server over HTTP. Make another one "
            f"first, or send `confirm` with '{LAST_ADMIN_KEY}' to revoke it all the same.",
            status=409,
            code=LAST_ADMIN_KEY,
        )
