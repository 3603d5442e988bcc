"""
Who may use the server: API keys and their scopes.

All keys are cached in memory, no older than `REFRESH_S`. So a wrong key costs no look-up in the store, however many are
tried, and a key that is revoked, here or by another process, stops working after `REFRESH_S`.

While the store can't be read, the cached keys go on working for `MAX_OUTAGE_S`, and nobody waits for the store.
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from msgspec import Struct

from antiphon.errors import ApiError, ClientError, ServerError, StoreError, quote_list
from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import Allowance, Bucket, LimitKind, LimitState, LocalAllowance, Meter
from antiphon.stores.base import KeyStore

Scope = Literal["responses:write", "responses:read", "models:read", "realtime", "audio", "sessions", "admin"]

SCOPES: dict[Scope, str] = {
    "responses:write": "create and delete responses",
    "responses:read": "read stored responses and their items",
    "models:read": "list the models",
    "realtime": "hold Realtime sessions, and make secrets that open them",
    "audio": "transcribe audio, and turn text into speech",
    "sessions": "see and delete recordings of sessions",
    "admin": "see how the server is doing",
}
DEFAULT_SCOPES: tuple[Scope, ...] = ("responses:write", "responses:read", "models:read", "realtime", "audio", "sessions")

REFRESH_S = 2.0
"""The greatest age of the cached keys."""

MAX_OUTAGE_S = 300.0
"""
How long the cached keys work while the store can't be read: long enough for a restart of the database, and the longest
that a key which was revoked meanwhile still opens anything.
"""

READ_WAIT_S = 2.0
"""How long a request waits for the keys to be read, before the cached ones must do."""

EARLY_REFRESHES_PER_MINUTE = 60
"""
How often an unknown key, or the lack of any, makes us read the keys early: one may have just been created. A store that
tells in the same call that it has none is asked by every request instead.
"""

LAST_USED_INTERVAL_S = 60.0
"""Seconds between two writes of the times of last use."""

CLIENT_SECRET_PREFIX = "ek_"
"""What a client secret begins with, and no key does."""

CONSOLE_KEY_PREFIX = "ck_"
"""What a key of the page begins with."""

ANONYMOUS_TENANT = ""
"""The tenant of requests that need no key."""


class KeyAccess(Struct, frozen=True):
    """
    What it takes to use the server.

    Attributes:
        is_open: whether requests need no key.
        has_live_key: whether any key is valid; if none is and one is needed, every request is refused.
    """

    is_open: bool
    has_live_key: bool


class Caller(Struct, frozen=True, eq=False):
    """
    Who sends a request.

    Attributes:
        tenant: whose responses it reaches.
        key: its key; None where none was needed.
        allowance: the key's limits; None without a key.
    """

    tenant: str
    key: KeyRecord | None = None
    allowance: Allowance | None = None

    @property
    def key_id(self) -> str | None:
        """The id of its key, if it has one."""
        return None if self.key is None else self.key.id


def make_key(
    name: str,
    *,
    now: float,
    tenant: str = "default",
    scopes: Collection[str] = DEFAULT_SCOPES,
    expires_at: int | None = None,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    streams: int | None = None,
    record: str | None = None,
    profile: str | None = None,
) -> tuple[KeyRecord, str]:
    """
    The record of a new key, to be stored by the caller, and the key itself, which can't be read again.

    Raises:
        ServerError: there is no such scope.
    """
    if unknown := sorted(set(scopes) - SCOPES.keys()):
        raise ServerError(f"There is no scope {quote_list(unknown)}; there are {quote_list(SCOPES)}.")
    secret = f"ak-{secrets.token_urlsafe(32)}"
    key = KeyRecord(
        id=f"key_{secrets.token_hex(6)}",
        hash=hash_secret(secret),
        # Enough to tell keys apart in a list; the rest can't be guessed from it.
        prefix=secret[:7],
        name=name,
        tenant=tenant,
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        created_at=int(now),
        expires_at=expires_at,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        streams=streams,
        record=record,
        profile=profile,
    )
    return key, secret


class Keyring:
    """
    The API keys of a server.

    Args:
        is_required: whether requests need a key; None: once a key has been created.
        clock: Unix seconds.
        monotonic: seconds from any origin, for refreshes and limits.
        new_allowance: makes a key's allowance, where another process counts it.
    """

    def __init__(
        self,
        keys: KeyStore,
        is_required: bool | None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        new_allowance: Callable[[KeyRecord], Allowance] | None = None,
    ) -> None:
        self._keys = keys
        self._is_required = is_required
        self._clock = clock
        self._monotonic = monotonic
        self._keys_by_hash: dict[bytes, KeyRecord] = {}
        self._new_allowance = new_allowance or (lambda key: LocalAllowance(Meter(key, monotonic)))
        self._allowances: dict[str, Allowance] = {}
        self._last_used_at: dict[str, int] = {}
        self._read_at = self._tried_at = -float("inf")
        self._is_store_away = False
        self._reading: asyncio.Task[None] | None = None
        self._has_read_begun = False
        self._refresh_bucket = Bucket(EARLY_REFRESHES_PER_MINUTE, monotonic)

    async def open(self) -> None:
        """
        Read the keys; call it once the store is open.

        Raises:
            StoreError: they can't be read.
        """
        await self._refresh(0)
        self._check_age()

    async def close(self) -> None:
        """Write the times of last use; call it while the store is still open."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self.write_last_used()

    async def reload(self) -> None:
        """Read the keys now, as one was made or revoked here."""
        if self._reading is not None:  # it may have begun before
            await asyncio.wait([self._reading], timeout=READ_WAIT_S)
        await self._refresh(0)

    @property
    def is_required(self) -> bool | None:
        """Whether requests need a key; None: once a key has been created."""
        return self._is_required

    async def limit_states(self, key: KeyRecord) -> Mapping[LimitKind, LimitState]:
        """What is left of a key's limits, in whichever process its use is counted."""
        return await self._allowance(key).read_states()

    @property
    def has_live_key(self) -> bool:
        """Whether there is a valid key."""
        return any(key.is_live(self._clock()) for key in self._keys_by_hash.values())

    @property
    def is_open(self) -> bool:
        """Whether requests need no key, as far as is known."""
        # A revoked key counts, too: to revoke the last one must not open the server (docs/decisions/0008).
        return self._is_required is False or (self._is_required is None and not self._keys_by_hash)

    @property
    def access(self) -> KeyAccess:
        """What requests need, as far as is known."""
        return KeyAccess(is_open=self.is_open, has_live_key=self.has_live_key)

    async def current_access(self) -> KeyAccess:
        """What requests need; the keys are read again if they were read a while ago."""
        if self._is_required is not False:
            await self._refresh(REFRESH_S)
        return self.access

    async def authenticate(self, secret: str | None, *, is_probe: bool = False) -> Caller:
        """
        The caller that presents `secret`.

        Args:
            is_probe: it is asked only whether the key is valid, which is no use of it.

        Raises:
            ClientError: 401; a key is needed, and this is not a valid one.
            StoreError: 503; the store can't be read, and the cached keys don't have this one or are too old.
        """
        if self._is_required is False:
            return Caller(ANONYMOUS_TENANT)
        if not self._sees_no_key():
            await self._refresh(REFRESH_S)
            if not self._keys_by_hash or (secret is not None and self._find(secret) is None):
                await self._refresh_early()
        # A request without a key is refused whatever the store says, so the age of the cached keys does not matter.
        if secret is None and (self._is_required or self._keys_by_hash):
            raise _no_key_error(has_live_key=self.has_live_key)
        self._check_age()
        # SDKs insist on sending some key; a server without keys takes any.
        if secret is None or self.is_open:
            return Caller(ANONYMOUS_TENANT)
        key = self._find(secret)
        if key is None and self._is_store_away:  # it may have been created meanwhile
            raise _unreadable_error()
        if key is None or not key.is_live(self._clock()):
            raise wrong_key_error(secret, has_live_key=self.has_live_key)
        return self._new_caller(key, is_use=not is_probe)

    async def caller_for_key(self, key_id: str | None) -> Caller | None:
        """
        The caller of a client secret or call that was created with this key, or for None without a key.

        Returns:
            None where that key is no longer valid, or a key is needed now.

        Raises:
            StoreError: as `authenticate`.
        """
        if self._is_required is not False:
            await self._refresh(REFRESH_S)
            self._check_age()
        if self.is_open:
            return Caller(ANONYMOUS_TENANT)
        key = next((key for key in self._keys_by_hash.values() if key.id == key_id), None)
        if key is None and self._is_store_away:
            raise _unreadable_error()
        return self._new_caller(key) if key is not None and key.is_live(self._clock()) else None

    async def inactive_keys(self, key_ids: Collection[str]) -> Collection[str]:
        """Those of the keys that are no longer valid, as far as is known: sessions go on while the store can't be read."""
        await self._refresh(REFRESH_S)
        now = self._clock()
        return set(key_ids) - {key.id for key in self._keys_by_hash.values() if key.is_live(now)}

    async def write_last_used(self) -> None:
        """Write the times of last use; to be called every `LAST_USED_INTERVAL_S`."""
        # Taken out before the write, during which more uses may come.
        last_used_at, self._last_used_at = self._last_used_at, {}
        try:
            await self._keys.mark_used(last_used_at)
        except ServerError:  # requests that only read go on while the store can't be written; tried again later
            self._last_used_at = last_used_at | self._last_used_at

    def _new_caller(self, key: KeyRecord, *, is_use: bool = True) -> Caller:
        if is_use:
            self._last_used_at[key.id] = int(self._clock())
        return Caller(key.tenant, key, self._allowance(key))

    def _find(self, secret: str) -> KeyRecord | None:
        digest = hash_secret(secret)
        key = self._keys_by_hash.get(digest)
        return key if key is not None and hmac.compare_digest(key.hash, digest) else None

    def _allowance(self, key: KeyRecord) -> Allowance:
        if key.id not in self._allowances:
            self._allowances[key.id] = self._new_allowance(key)
        return self._allowances[key.id]

    def _sees_no_key(self) -> bool:
        """Whether the store tells in this call that there is no key: then they are read."""
        if self._keys_by_hash or not self._keys.is_empty_now():
            return False
        self._read_at, self._is_store_away = self._monotonic(), False
        return True

    async def _refresh_early(self) -> None:
        # No request waits for a store that is away; `_refresh` tries again every `REFRESH_S`.
        if self._is_store_away:
            return
        if self._reading is None or self._has_read_begun:  # else it is for all who come before it begins
            if self._refresh_bucket.wait_s(1):
                return
            self._refresh_bucket.take(1)
            if self._reading is not None:  # it began before the key was presented
                await asyncio.wait([self._reading], timeout=READ_WAIT_S)
        await self._refresh(0)

    async def _refresh(self, max_age_s: float) -> None:
        """Read the keys again if the cache is older than that; while the store is away, only see to it that they are."""
        now = self._monotonic()
        if now - self._read_at < max_age_s:
            return
        # One read at a time, for all requests that wait for it; of a store that is away, one every `REFRESH_S`.
        if self._reading is None and not (self._is_store_away and now - self._tried_at < REFRESH_S):
            self._tried_at, self._has_read_begun = now, False
            # It outlives the request that begins it, which waits for `READ_WAIT_S` at most; `close` cancels it.
            self._reading = asyncio.create_task(self._read(), name="read keys")  # noqa: TID251
        if self._reading is not None and not self._is_store_away:
            reads, _ = await asyncio.wait([self._reading], timeout=READ_WAIT_S)
            for read in reads:
                read.result()  # raises a defect's error
            if not reads:
                self._is_store_away = True

    async def _read(self) -> None:
        self._has_read_begun = True
        try:
            keys = await self._keys.all()
        except ApiError:
            self._is_store_away = True
        else:
            self._is_store_away = False
            self._read_at = self._monotonic()
            self._keys_by_hash = {key.hash: key for key in keys}
            ids = {key.id for key in keys}
            # A key that stays keeps what it has used: to read the keys again must not fill its buckets.
            self._allowances = {key_id: allowance for key_id, allowance in self._allowances.items() if key_id in ids}
        finally:
            self._reading = None

    def _check_age(self) -> None:
        if self._monotonic() - self._read_at > MAX_OUTAGE_S:
            raise _unreadable_error()


def hash_secret(secret: str) -> bytes:
    """
    The hash under which a key or a client secret is stored.

    A plain SHA-256 is enough: our secrets are 256 random bits, which no dictionary contains.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _unreadable_error() -> StoreError:
    return StoreError("The keys can't be read.", is_temporary=True)


_CREATE_KEYS = "The operator of this server creates keys with `antiphon keys create`."

_LOCKED_OUT = (
    "This server has no valid key at present. Its operator creates one with `antiphon keys create`, or sets "
    "`server.require_keys = false` to serve its own machine without keys."
)


def _no_key_error(*, has_live_key: bool) -> ClientError:
    return ClientError(
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        f"(i.e. Authorization: Bearer YOUR_KEY). {_CREATE_KEYS if has_live_key else _LOCKED_OUT}",
        status=401,
    )


def wrong_key_error(secret: str, *, has_live_key: bool = True) -> ClientError:
    """The key is not valid; without `has_live_key`, none is."""
    if secret.startswith(CLIENT_SECRET_PREFIX):
        return ClientError(
            f"{_mask(secret)} is a client secret, which opens a Realtime session and nothing else. Use an API key here.",
            status=401,
            code="invalid_api_key",
        )
    return ClientError(
        f"Incorrect API key provided: {_mask(secret)}. {_CREATE_KEYS if has_live_key else _LOCKED_OUT}",
        status=401,
        code="invalid_api_key",
    )


def _mask(secret: str) -> str:
    """A few characters of a key: enough for its owner to recognize it, too few to use it."""
    # Of a short secret this would be most of it, and control characters could do harm in a terminal.
    ends = f"{secret[:3]}...{secret[-4:]}"
    return ends if len(secret) >= 20 and ends.isascii() and ends.isprintable() else "***"
