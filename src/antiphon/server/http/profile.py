"""Which profile of the Responses API a request is answered in: that of its path, else its key's, else the server's default."""

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from antiphon.runtime.access.keys import Caller
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.errors import PROFILE_SCOPE_KEY
from antiphon.wire.responses.profiles import ENCODERS, PROFILES, EventEncoder, Profile


class ProfileRoute(GuardedRoute):
    """
    A route whose answers depend on the profile.

    Attributes:
        profile: that of its path; None where the key or the server chooses.
    """

    profile: Profile | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self.profile.name if self.profile is not None else self.service.config.responses.profile
        scope[PROFILE_SCOPE_KEY] = ENCODERS[name]
        await super().handle(scope, receive, send)

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        caller = await super().identify(scope, headers)
        # A newer server may have given the key a profile that this one does not have.
        if self.profile is None and caller.key is not None and caller.key.profile in ENCODERS:
            scope[PROFILE_SCOPE_KEY] = ENCODERS[caller.key.profile]
        return caller


def profile_routes(routes: Iterable[GuardedRoute]) -> list[GuardedRoute]:
    """Routes under `/v1` whose answers depend on the profile."""
    return [_under(route, None) for route in routes]


def other_base_paths(routes: Iterable[GuardedRoute]) -> list[GuardedRoute]:
    """The routes of every profile but that of `/v1`: those whose answers depend on it, and the list of models."""
    routes = [route for route in routes if isinstance(route, ProfileRoute) or route.path.startswith("/v1/models")]
    return [_under(route, profile) for profile in PROFILES.values() if profile.base_path != "/v1" for route in routes]


def _under(route: GuardedRoute, profile: Profile | None) -> ProfileRoute:
    """A copy of a route under `/v1`, under the base path of a profile."""
    kind = type(route) if isinstance(route, ProfileRoute) else ProfileRoute
    path = route.path if profile is None else profile.base_path + route.path.removeprefix("/v1")
    copy = kind(path, route.endpoint, service=route.service, access=route.access, operation=route.operation, method=route.method)
    copy.profile = profile
    return copy


def request_encoder(scope: Scope) -> EventEncoder:
    """The encoder of the request's profile; its route must be a `ProfileRoute`."""
    encoder: EventEncoder = scope[PROFILE_SCOPE_KEY]
    return encoder
