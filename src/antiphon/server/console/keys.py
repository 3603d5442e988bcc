"""`POST` and `DELETE /console/keys`: keys of the page, which a person signs in for with an API key."""

from typing import Literal

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from antiphon.errors import ClientError
from antiphon.runtime.access.console_keys import COOKIE_LIFETIME_S, ConsoleKeyGrant, NewConsoleKey
from antiphon.runtime.access.keys import CONSOLE_KEY_PREFIX, Caller
from antiphon.runtime.service import Service
from antiphon.server.console.cookie import PATH, can_keep_cookie, cookie_header, sent_cookie
from antiphon.server.http.auth import GuardedRoute, credential, request_caller
from antiphon.server.http.errors import json_response
from antiphon.server.http.headers import request_headers
from antiphon.server.http.operation import Operation

_GRANT_SCOPE_KEY = "antiphon.console_grant"


class SignOut(Struct):
    """Whether there was a sign-in to end."""

    object: Literal["console.key.deleted"]
    deleted: bool


_CREATE = Operation(
    "createConsoleKey",
    "Console",
    "Create a key of the page",
    NewConsoleKey,
    description="A short-lived secret that opens what the API key opens with which the request is made, and counts against its limits. "
    "The server's own page also gets a cookie, with which alone it gets the next one, if the connection is TLS or does not leave the "
    "machine; elsewhere, each key of the page makes the next one.",
)
_DELETE = Operation(
    "deleteConsoleKeys",
    "Console",
    "Sign out",
    SignOut,
    description="Ends the sign-in of the cookie, or of the page's key in the request, with all keys that were made for it.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """Both routes of `/console/keys`; none without the page."""
    if not service.config.server.console:
        return []

    async def create(request: Request) -> Response:
        headers, issuer = request_headers(request.scope), service.console_keys
        grant: ConsoleKeyGrant | None = request.scope.get(_GRANT_SCOPE_KEY)
        answer = {"cache-control": "no-store"}
        # A key of the page whose sign-in has a cookie is refused here: a stolen one makes no other, and ends in 15 minutes.
        if grant is not None:
            return json_response(await issuer.renew(grant), headers=answer)
        sign_in = await issuer.sign_in(request_caller(request.scope), with_cookie=can_keep_cookie(headers))
        if sign_in.cookie is not None:
            answer["set-cookie"] = cookie_header(headers, sign_in.cookie, COOKIE_LIFETIME_S)
        return json_response(sign_in.key, headers=answer)

    async def delete(request: Request) -> Response:
        headers = request_headers(request.scope)
        grant: ConsoleKeyGrant | None = request.scope.get(_GRANT_SCOPE_KEY)
        if grant is not None:
            await service.console_keys.sign_out(grant)
        answer = {"set-cookie": cookie_header(headers, "", 0)} if can_keep_cookie(headers) else {}
        return json_response(SignOut("console.key.deleted", grant is not None), headers=answer)

    return [
        ConsoleRoute(PATH, create, service=service, access="console", operation=_CREATE, method="POST"),
        ConsoleRoute(PATH, delete, service=service, access="console", operation=_DELETE, method="DELETE"),
    ]


class ConsoleRoute(GuardedRoute):
    """A route for every key, the page's keys and its cookie."""

    def is_open_to(self, scopes: object) -> bool:
        return True

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        secret, cookie, issuer = credential(headers), sent_cookie(headers), self.service.console_keys
        is_page_key = secret is not None and secret.startswith(CONSOLE_KEY_PREFIX)
        # An API key signs in anew, whatever the cookie. A key of the page comes second: it may have expired meanwhile.
        if (secret is not None and not is_page_key) or (await self.service.keyring.current_access()).is_open:
            return await self.service.keyring.authenticate(secret)
        grant = await self._cookie_grant(cookie, has_page_key=is_page_key) if cookie is not None else None
        if grant is None and is_page_key and secret is not None:
            grant = await issuer.redeem(secret)
        if grant is None:
            return await self.service.keyring.authenticate(None)
        scope[_GRANT_SCOPE_KEY] = grant
        return grant.caller

    async def _cookie_grant(self, cookie: str, *, has_page_key: bool) -> ConsoleKeyGrant | None:
        try:
            return await self.service.console_keys.redeem_cookie(cookie)
        except ClientError:
            # An old cookie beside a key of the page is no reason to refuse: the key may still be good.
            if not has_page_key:
                raise
            return None
