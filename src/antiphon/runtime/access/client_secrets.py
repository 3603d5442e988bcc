"""
Client secrets: what a server with a key gives to a browser or a phone, so that it can open Realtime sessions by itself, for a while.

A secret stands for the key that it was made with, and falls with it; it opens nothing but sessions.
"""

import hmac
import secrets
import time
from collections.abc import Callable

from msgspec import Struct

from antiphon.errors import ClientMistake
from antiphon.records import ClientSecretRecord
from antiphon.runtime.access.keys import Caller, Keyring, hashed, wrong_key
from antiphon.stores.base import ClientSecrets as Kept

PREFIX = "ek_"


class Made(Struct, frozen=True):
    """A new secret, which can't be had again; `expires_at` is in Unix seconds."""

    value: str
    expires_at: int


class Opened(Struct, frozen=True, eq=False):
    """Who comes with a secret, and what their session begins with, as JSON."""

    caller: Caller
    session: bytes


class ClientSecrets:
    """
    The client secrets of a server, or of several that share a store.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, kept: Kept, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        self._kept = kept
        self._keyring = keyring
        self._clock = clock

    async def make(self, caller: Caller, session: bytes, lasts_s: int) -> Made:
        """A secret that opens sessions for whoever has it, as if they were `caller`."""
        now = int(self._clock())
        made = Made(f"{PREFIX}{secrets.token_hex(32)}", now + lasts_s)
        key_id = None if caller.key is None else caller.key.id
        await self._kept.add(
            ClientSecretRecord(hash=hashed(made.value), key_id=key_id, session=session, created_at=now, expires_at=made.expires_at)
        )
        return made

    async def open(self, secret: str) -> Opened:
        """
        What a secret opens.

        Raises:
            ClientMistake: 401; it is unknown, has expired, or the key that it was made with opens nothing any more.
        """
        wanted = hashed(secret)
        found = await self._kept.find(wanted)
        if found is None or not hmac.compare_digest(found.hash, wanted):
            raise wrong_key(secret)
        if self._clock() >= found.expires_at:
            raise ClientMistake(
                "The client secret has expired. Ask for a new one with `POST /v1/realtime/client_secrets`.",
                status=401,
                code="invalid_api_key",
            )
        caller = await self._keyring.caller_with(found.key_id)
        if caller is None:
            raise wrong_key(secret)
        return Opened(caller, found.session)
