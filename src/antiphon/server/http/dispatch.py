"""Hands requests to their routes: those whose path has no parameters, by one look into a table."""

import re
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from antiphon.server.http.body import PATH_MODEL_SCOPE_KEY
from antiphon.server.http.errors import on_client_disconnect, on_unexpected_error

# Microsoft Learn, "Azure OpenAI REST API reference": `/openai/v1/...` is OpenAI's API. Before it, there was
# `/openai/...?api-version=`, with the model in the path of what a model is asked for. Its name may have slashes, which clients escape.
_AZURE_PATH = re.compile(
    "/openai(?:/v1|/deployments/(?P<model>.+?)(?=/(?:completions|chat/completions|embeddings|audio/[a-z]+|images/[a-z]+)$))?(?P<rest>/.+)"
)


def _from_azure_path(scope: Scope) -> bool:
    """Replace a path of Azure's clients by that of OpenAI's API; False if it is none."""
    match = _AZURE_PATH.fullmatch(scope["path"]) if scope["path"].startswith("/openai/") else None
    if match is None:
        return False
    scope["path"] = f"/v1{match['rest']}"
    if match["model"]:
        scope[PATH_MODEL_SCOPE_KEY] = match["model"]
    return True


class Dispatcher:
    """
    An ASGI application that calls the route which `app` would choose. A request for a path with parameters, or that has
    no route, takes the way through `app`, its middleware and all its routes in turn, which costs 20 us more.

    Args:
        routes: all that `app` has, in its order; each answers the errors that it expects itself.
    """

    def __init__(self, app: Starlette, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes: dict[tuple[str, str], Route] = {}
        patterns: list[Route] = []
        for route in routes:
            if "{" in route.path:
                patterns.append(route)
                continue
            # Starlette takes the first route that matches, so one with parameters may come before this path.
            earlier = [each for each in patterns if each.path_regex.match(route.path)]
            for method in route.methods or ():
                if not any(each.methods is None or method in each.methods for each in earlier):
                    self._routes.setdefault((method, route.path), route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None if scope["type"] != "http" or scope.get("root_path") else self._routes.get((scope["method"], scope["path"]))
        if route is None and scope["type"] == "http" and _from_azure_path(scope):
            route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope.update({"app": self._app, "router": self._app.router, "route": route, "endpoint": route.endpoint, "path_params": {}})
        has_begun = False

        async def send_noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await route.handle(scope, receive, send_noting)
        except ClientDisconnect as error:
            # An answer that has begun can't be followed by another.
            if has_begun:
                raise
            await (await on_client_disconnect(Request(scope), error))(scope, receive, send)
        except Exception as error:
            if not has_begun:
                await (await on_unexpected_error(Request(scope), error))(scope, receive, send)
            # For the access log, which writes the traceback.
            raise
