"""
Client secrets: short-lived secrets that a server with a key gives to a browser or a phone to open Realtime sessions
with.

A secret stands for the key it was created with, and becomes invalid with it; it opens nothing but sessions.
"""

import hmac
import secrets
import time
from collections.abc import Callable

from msgspec import Struct

from antiphon.errors import ClientError
from antiphon.records import ClientSecretRecord
from antiphon.runtime.access.keys import CLIENT_SECRET_PREFIX, Caller, Keyring, hash_secret
from antiphon.stores.base import ClientSecretStore


class NewClientSecret(Struct, frozen=True):
    """A new secret, whose value can't be read again; `expires_at` is in Unix seconds."""

    value: str
    expires_at: int


class ClientSecretGrant(Struct, frozen=True, eq=False):
    """The caller that a secret stands for, and the initial configuration of its session, as JSON."""

    caller: Caller
    session: bytes


class ClientSecretIssuer:
    """
    The client secrets of a server, or of several that share a store.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, store: ClientSecretStore, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock

    async def create(self, caller: Caller, session: bytes, lifetime_s: int) -> NewClientSecret:
        """A new secret that opens sessions on behalf of `caller`."""
        now = int(self._clock())
        secret = NewClientSecret(f"{CLIENT_SECRET_PREFIX}{secrets.token_hex(32)}", now + lifetime_s)
        key_id = None if caller.key is None else caller.key.id
        await self._store.add(
            ClientSecretRecord(hash=hash_secret(secret.value), key_id=key_id, session=session, created_at=now, expires_at=secret.expires_at)
        )
        return secret

    async def redeem(self, secret: str) -> ClientSecretGrant:
        """
        What a secret grants.

        Raises:
            ClientError: 401; it is unknown, has expired, or the key it was created with is no longer valid.
        """
        digest = hash_secret(secret)
        record = await self._store.find(digest)
        if record is None or not hmac.compare_digest(record.hash, digest):
            raise _wrong_secret_error()
        if self._clock() >= record.expires_at:
            raise ClientError(
                "The client secret has expired. Create a new one with `POST /v1/realtime/client_secrets`.",
                status=401,
                code="invalid_api_key",
            )
        caller = await self._keyring.caller_for_key(record.key_id)
        if caller is None:
            raise _wrong_secret_error()
        return ClientSecretGrant(caller, record.session)


def _wrong_secret_error() -> ClientError:
    return ClientError(
        "Incorrect client secret provided: it is unknown, or the key that it was created with is no longer valid. "
        "Create a new one with `POST /v1/realtime/client_secrets`.",
        status=401,
        code="invalid_api_key",
    )
