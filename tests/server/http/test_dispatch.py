"""Requests get to the route that starlette would choose, and end as they would there."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from antiphon.server.http.dispatch import Dispatcher
from antiphon.server.http.headers import request_headers


def saying(text):
    async def endpoint(request):
        return PlainTextResponse(f"{text} {request.path_params} {request.scope['route'].path}")

    return endpoint


ROUTES = [
    Route("/a", saying("a"), methods=["POST"]),
    Route("/a/{id}", saying("by id")),
    Route("/a/known", saying("never")),
    Route("/b/known", saying("known")),
    Route("/b/{id}", saying("by id")),
    Route("/a", saying("later"), methods=["GET", "POST"]),
]
PATHS = ["/a", "/a/", "/a/known", "/a/x", "/b/known", "/b/x", "/c"]


def asked(app, method, path, **more):
    """What an application sends."""
    messages = []
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": [], "query_string": b"", **more}

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    return messages


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize("root_path", ["", "/b"])
def test_the_route_is_the_one_that_starlette_chooses(method, path, root_path):
    app = Starlette(routes=ROUTES)
    assert asked(Dispatcher(app, ROUTES), method, path, root_path=root_path) == asked(app, method, path, root_path=root_path)


def raising(error, *, has_begun=False):
    class Endpoint:
        async def __call__(self, scope, receive, send):
            if has_begun:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            raise error

    routes = [Route("/", Endpoint(), methods=["GET"])]
    return Dispatcher(Starlette(routes=routes), routes)


def test_a_defect_is_answered_and_raised():
    messages = []

    async def send(message):
        messages.append(message)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(raising(ZeroDivisionError())({"type": "http", "method": "GET", "path": "/", "headers": []}, None, send))
    assert messages[0]["status"] == 500
    assert b"The server had an error" in messages[1]["body"]


def test_a_defect_in_the_middle_of_an_answer_is_raised_alone():
    messages = []

    async def send(message):
        messages.append(message)

    app = raising(ZeroDivisionError(), has_begun=True)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(app({"type": "http", "method": "GET", "path": "/", "headers": []}, None, send))
    assert [message["type"] for message in messages] == ["http.response.start"]


def test_a_client_that_leaves_is_no_defect():
    assert asked(raising(ClientDisconnect()), "GET", "/")[0]["status"] == 499


def test_headers_are_found_by_name_and_the_first_of_two_counts():
    headers = request_headers({"headers": [(b"x-a", b"1"), (b"x-b", b"\xe9"), (b"x-a", b"2")]})
    assert (headers.get("x-a"), headers["X-A"], headers.get("x-b"), headers.get("x-c", "none")) == ("1", "1", "\xe9", "none")
    assert "X-B" in headers
    assert headers.getlist("x-a") == ["1", "2"]
    assert headers.is_disjoint(["x-c"])
    assert not headers.is_disjoint(["x-c", "x-b"])


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/openai/v1/responses", "/v1/responses"),
        ("/openai/responses", "/v1/responses"),
        ("/openai/responses/resp_1/input_items", "/v1/responses/{id}/input_items"),
        ("/openai/deployments/m/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/Qwen/Qwen3-8B/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/chat/embeddings", "/v1/embeddings"),
        ("/openai/own", "/openai/own"),
    ],
)
def test_paths_of_azure_lead_where_those_of_openai_do(path, known):
    routes = [
        Route("/openai/own", saying("own")),
        *(Route(f"/v1/{each}", saying("")) for each in ("responses", "responses/{id}/input_items", "chat/completions", "embeddings")),
    ]
    answer = asked(Dispatcher(Starlette(routes=routes), routes), "GET", path)
    assert answer[0]["status"] == 200 and answer[1]["body"].decode().endswith(known)


@pytest.mark.parametrize(
    "path", ["/openai", "/openai/", "/openai/v1", "/openai/v1/nothing", "/openai/deployments/m", "/v1/openai/responses"]
)
def test_other_paths_that_begin_so_are_not_there(path):
    routes = [Route("/v1/responses", saying(""))]
    assert asked(Dispatcher(Starlette(routes=routes), routes), "GET", path)[0]["status"] == 404
