"""
Keys of the page: short-lived secrets with which a browser uses the server on behalf of a key.

Signing in with a key makes a sign-in and its first secret. A secret opens what its key opens, counts against the key's
limits, and ends with the key or with the sign-in. A sign-in has a secret of its own only where a browser can keep that
out of reach of scripts, in a cookie; then nothing else renews its keys. Elsewhere each key makes the next one, for as
long as the sign-in lasts.
"""

import hmac
import secrets
import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from antiphon.errors import ClientError
from antiphon.records import ClientSecretRecord
from antiphon.runtime.access.keys import CONSOLE_KEY_PREFIX, SCOPES, Caller, Keyring, hash_secret
from antiphon.stores.base import ClientSecretStore

LIFETIME_S = 15 * 60
"""How long a key of the page lasts. The page asks for the next one before."""

COOKIE_LIFETIME_S = 7 * 86_400
"""How long a sign-in lasts that is renewed by cookie."""

SIGN_IN_LIFETIME_S = 12 * 3600
"""How long a sign-in without a cookie lasts: then the person enters the key again."""

COOKIE_PREFIX = "cc_"
"""What the value of the cookie begins with, so that it is no key of the page."""


class NewConsoleKey(Struct, frozen=True):
    """
    A new key of the page, whose value can't be read again.

    Attributes:
        expires_at: Unix seconds.
        scopes: what it opens.
        key_id: the key that it stands for; None where none was needed.
    """

    value: str
    expires_at: int
    scopes: tuple[str, ...]
    tenant: str
    key_id: str | None


class NewSignIn(Struct, frozen=True):
    """
    A sign-in with its first key.

    Attributes:
        cookie: for the browser to keep; None where it can't be kept safely.
    """

    key: NewConsoleKey
    cookie: str | None


class ConsoleKeyGrant(Struct, frozen=True, eq=False):
    """
    What a key of the page, or a cookie, stands for.

    Attributes:
        sign_in: hash of its sign-in; None where no key was needed.
        is_renewable: whether it may make another key of the page.
    """

    caller: Caller
    sign_in: bytes | None = None
    is_renewable: bool = True


class _Terms(Struct, frozen=True, omit_defaults=True):
    """
    What is stored with a secret.

    Attributes:
        sign_in: hash of a key's sign-in, in hexadecimal digits; None for a sign-in itself.
        has_cookie: whether a sign-in is renewed by cookie.
    """

    sign_in: str | None = None
    has_cookie: bool = False


class ConsoleKeyIssuer:
    """
    The page's keys of a server, or of several that share a store.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, store: ClientSecretStore, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock

    async def sign_in(self, caller: Caller, *, with_cookie: bool) -> NewSignIn:
        """A sign-in for a caller who showed a key; one who needed none gets a key of the page without a sign-in."""
        if caller.key is None:
            return NewSignIn(await self._add_key(caller, None), None)
        # Made also where no browser keeps it: its hash is the sign-in's name, and its value is then given to nobody.
        cookie = f"{COOKIE_PREFIX}{secrets.token_hex(32)}"
        lifetime_s = COOKIE_LIFETIME_S if with_cookie else SIGN_IN_LIFETIME_S
        await self._add(cookie, caller, lifetime_s, _Terms(has_cookie=with_cookie))
        return NewSignIn(await self._add_key(caller, hash_secret(cookie)), cookie if with_cookie else None)

    async def renew(self, grant: ConsoleKeyGrant) -> NewConsoleKey:
        """
        The next key of a sign-in.

        Raises:
            ClientError: 401; it is renewed by cookie, and this is a key.
        """
        if not grant.is_renewable:
            raise _wrong_key_error()
        return await self._add_key(grant.caller, grant.sign_in)

    async def redeem(self, secret: str) -> ConsoleKeyGrant:
        """
        What a key of the page stands for.

        Raises:
            ClientError: 401; it is unknown or has expired, or its key is no longer valid, or the person signed out.
        """
        if self._keyring.is_open:  # then every secret does
            return ConsoleKeyGrant(await self._keyring.authenticate(secret))
        record, terms = await self._find(secret)
        sign_in = None if terms.sign_in is None else bytes.fromhex(terms.sign_in)
        if sign_in is None:  # it was made when no key was needed
            return ConsoleKeyGrant(await self._caller(record))
        parent = await self._store.find(sign_in)
        if parent is None or self._clock() >= parent.expires_at:
            raise _wrong_key_error()
        # A stolen key must not renew itself where a cookie does that (docs/decisions/0060).
        has_cookie = msgspec.json.decode(parent.session, type=_Terms).has_cookie
        return ConsoleKeyGrant(await self._caller(record), sign_in, is_renewable=not has_cookie)

    async def redeem_cookie(self, cookie: str) -> ConsoleKeyGrant:
        """
        What a cookie stands for.

        Raises:
            ClientError: 401, as `redeem`.
        """
        if not cookie.startswith(COOKIE_PREFIX):
            raise _wrong_key_error()
        record, terms = await self._find(cookie)
        if not terms.has_cookie:
            raise _wrong_key_error()
        return ConsoleKeyGrant(await self._caller(record), record.hash)

    async def sign_out(self, grant: ConsoleKeyGrant) -> None:
        """End a sign-in, and with it all of its keys."""
        if grant.sign_in is not None:
            await self._store.delete(grant.sign_in)

    async def _find(self, secret: str) -> tuple[ClientSecretRecord, _Terms]:
        digest = hash_secret(secret)
        record = await self._store.find(digest)
        if record is None or not hmac.compare_digest(record.hash, digest) or self._clock() >= record.expires_at:
            raise _wrong_key_error()
        return record, msgspec.json.decode(record.session, type=_Terms)

    async def _caller(self, record: ClientSecretRecord) -> Caller:
        caller = await self._keyring.caller_for_key(record.key_id)
        if caller is None:
            raise _wrong_key_error()
        return caller

    async def _add_key(self, caller: Caller, sign_in: bytes | None) -> NewConsoleKey:
        value = f"{CONSOLE_KEY_PREFIX}{secrets.token_hex(32)}"
        terms = _Terms(sign_in=None if sign_in is None else sign_in.hex())
        expires_at = await self._add(value, caller, LIFETIME_S, terms)
        scopes = tuple(SCOPES) if caller.key is None else tuple(caller.key.scopes)
        return NewConsoleKey(value, expires_at, scopes, caller.tenant, None if caller.key is None else caller.key.id)

    async def _add(self, secret: str, caller: Caller, lifetime_s: int, terms: _Terms) -> int:
        now = int(self._clock())
        key_id = None if caller.key is None else caller.key.id
        session = msgspec.json.encode(terms)
        await self._store.add(
            ClientSecretRecord(hash=hash_secret(secret), key_id=key_id, session=session, created_at=now, expires_at=now + lifetime_s)
        )
        return now + lifetime_s


def _wrong_key_error() -> ClientError:
    return ClientError(
        "The page's key has expired, or the key that it stands for is no longer valid. Enter your API key again.",
        status=401,
        code="invalid_api_key",
    )
