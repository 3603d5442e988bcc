"""`/keys`: what `antiphon keys` does, over HTTP. Who may make which key, `KeyIssuer` decides."""

import time

from msgspec import convert
from starlette.requests import Request
from starlette.responses import Response

from antiphon.records import KeyRecord
from antiphon.runtime.access.key_fields import key_fields
from antiphon.runtime.access.key_issuer import KeyIssuer, NewKey
from antiphon.runtime.access.rate_limits import LimitState
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import BODY_ERRORS, INVALID_REQUEST, Operation
from antiphon.server.transport import logs
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import encode
from antiphon.wire.http.operate import (
    ApiKey,
    ApiKeyList,
    CreateApiKeyRequest,
    CreatedApiKey,
    KeyLimits,
    LimitLeft,
    RevokeApiKeyRequest,
)

_LIST = Operation("listKeys", "Server", "List the API keys", ApiKeyList, description="The keys of all tenants, revoked ones too.")
_CREATE = Operation(
    "createKey",
    "Server",
    "Make an API key",
    CreatedApiKey,
    CreateApiKeyRequest,
    errors=BODY_ERRORS
    | {
        400: INVALID_REQUEST,
        403: "The new key would have a scope that the caller's lacks, or another tenant.",
        409: "It would be the first key, and without the scope `admin`; or the store is in memory.",
    },
    description="The answer has the key itself, once. A caller with a key makes keys of its own tenant, with scopes that it has itself.",
    links={"revokeKey": "id"},
)
_REVOKE = Operation(
    "revokeKey",
    "Server",
    "Revoke an API key",
    ApiKey,
    RevokeApiKeyRequest,
    errors=BODY_ERRORS | {400: INVALID_REQUEST, 404: "There is no such key.", 409: "It is the last valid key with the scope `admin`."},
    description="It takes effect within seconds, and ends the sessions of the key. A key that is revoked already stays so.",
)

_NO_STORE = {"cache-control": "no-store"}


def routes(service: Service) -> list[GuardedRoute]:
    """The routes under `/keys`."""
    endpoints = _KeyEndpoints(service)
    return guarded_routes(
        service,
        [
            ("GET", "/keys", endpoints.list, "admin", _LIST),
            ("POST", "/keys", endpoints.create, "admin", _CREATE),
            ("POST", "/keys/{id}/revoke", endpoints.revoke, "admin", _REVOKE),
        ],
    )


class _KeyEndpoints:
    """The endpoint functions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._issuer = KeyIssuer(service.store.keys, service.keyring, is_lasting=service.config.database_url is not None)
        self._create_reader: Reader[CreateApiKeyRequest] = Reader(CreateApiKeyRequest)
        self._revoke_reader: Reader[RevokeApiKeyRequest] = Reader(RevokeApiKeyRequest)

    async def list(self, _request: Request) -> Response:
        """`GET /keys`."""
        keys = [await self._api_key(key) for key in await self._issuer.all()]
        return json_response(encode(ApiKeyList(now=time.time(), keys=keys)), headers=_NO_STORE)

    async def create(self, request: Request) -> Response:
        """`POST /keys`."""
        body = self._create_reader.read(await read_json_body(request))
        new = NewKey(
            name=body.name,
            tenant=value_or(body.tenant, None),
            scopes=value_or(body.scopes, None),
            expires=value_or(body.expires, None),
            requests_per_minute=value_or(body.requests_per_minute, None),
            tokens_per_minute=value_or(body.tokens_per_minute, None),
            streams=value_or(body.streams, None),
            record=value_or(body.record, None),
            profile=value_or(body.profile, None),
        )
        caller = request_caller(request.scope)
        # What the new key may do is bounded by the caller's: neither more scopes nor another tenant (record 0061).
        record, secret = await self._issuer.create(caller, new, value_or(body.confirm, None))
        logs.get().info("key_created", key=record.id, by=None if caller.key is None else caller.key.id)
        fields = {**key_fields(record, time.time()), "limits": await self._limits(record), "value": secret}
        return json_response(encode(convert(fields, CreatedApiKey)), headers=_NO_STORE)

    async def revoke(self, request: Request) -> Response:
        """`POST /keys/{id}/revoke`."""
        # The body is optional: only the last admin key needs a word of confirmation.
        has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
        body = await read_json_body(request) if has_body else b""
        confirm = value_or(self._revoke_reader.read(body).confirm, None) if body else None
        caller = request_caller(request.scope)
        record = await self._issuer.revoke(request.path_params["id"], confirm)
        logs.get().info("key_revoked", key=record.id, by=None if caller.key is None else caller.key.id)
        return json_response(encode(await self._api_key(record)), headers=_NO_STORE)

    async def _api_key(self, record: KeyRecord) -> ApiKey:
        return convert({**key_fields(record, time.time()), "limits": await self._limits(record)}, ApiKey)

    async def _limits(self, record: KeyRecord) -> KeyLimits:
        if record.requests_per_minute is None and record.tokens_per_minute is None:
            return KeyLimits(requests=None, tokens=None)
        states = await self._service.keyring.limit_states(record)
        return KeyLimits(requests=_limit_left(states.get("requests")), tokens=_limit_left(states.get("tokens")))


def _limit_left(state: LimitState | None) -> LimitLeft | None:
    return None if state is None else LimitLeft(limit=state.limit, remaining=state.remaining, reset_s=round(state.full_in_s, 1))
