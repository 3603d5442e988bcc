"""
Client secrets: what a server with a key gives to a browser or a phone, so that it can open Realtime sessions by itself, for a while.

A secret stands for the key that it was made with, and falls with it; it opens nothing but sessions.
"""

import hmac
import secrets
import time
from collections.abc import Callable

from msgspec import Struct

from antiphon.errors import ClientError
from antiphon.records import ClientSecretRecord
from antiphon.runtime.access.keys import Caller, Keyring, hash_secret, wrong_key_error
from antiphon.stores.base import ClientSecretStore as Kept

PREFIX = "ek_"


class NewClientSecret(Struct, frozen=True):
    """A new secret, which can't be had again; `expires_at` is in Unix seconds."""

    value: str
    expires_at: int


class ClientSecretGrant(Struct, frozen=True, eq=False):
    """Who comes with a secret, and what their session begins with, as JSON."""

    caller: Caller
    session: bytes


class ClientSecretIssuer:
    """
    The client secrets of a server, or of several that share a store.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, store: Kept, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock

    async def create(self, caller: Caller, session: bytes, lifetime_s: int) -> NewClientSecret:
        """A secret that opens sessions for whoever has it, as if they were `caller`."""
        now = int(self._clock())
        made = NewClientSecret(f"{PREFIX}{secrets.token_hex(32)}", now + lifetime_s)
        key_id = None if caller.key is None else caller.key.id
        await self._store.add(
            ClientSecretRecord(hash=hash_secret(made.value), key_id=key_id, session=session, created_at=now, expires_at=made.expires_at)
        )
        return made

    async def redeem(self, secret: str) -> ClientSecretGrant:
        """
        What a secret opens.

        Raises:
            ClientError: 401; it is unknown, has expired, or the key that it was made with opens nothing any more.
        """
        wanted = hash_secret(secret)
        found = await self._store.find(wanted)
        if found is None or not hmac.compare_digest(found.hash, wanted):
            raise wrong_key_error(secret)
        if self._clock() >= found.expires_at:
            raise ClientError(
                "The client secret has expired. Ask for a new one with `POST /v1/realtime/client_secrets`.",
                status=401,
                code="invalid_api_key",
            )
        caller = await self._keyring.caller_for_key(found.key_id)
        if caller is None:
            raise wrong_key_error(secret)
        return ClientSecretGrant(caller, found.session)
