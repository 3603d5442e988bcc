"""Who may use which route of a real server, with keys created while it runs."""

import asyncio
import http.client
import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import openai
import pytest
from starlette.applications import Starlette
from starlette.responses import Response

from antiphon.errors import ServerError
from antiphon.runtime.access.keys import SCOPES, make_key
from antiphon.runtime.core.resolver import asking_client
from antiphon.runtime.service import Service
from antiphon.server.app import routes
from antiphon.server.http import auth
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.operation import Operation
from antiphon.server.processes.run import background_server
from antiphon.stores.sql.store import SqlStore
from support.server.raw_http import POLL_S
from support.server.scripted_server import SCRIPT, configured
from support.server.threaded_server import serving

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}, "slow": {"engine": "scripted", "pace_ms": 5, **SCRIPT}}
ASK = {"model": "parrot", "input": "Hi"}


def with_keys(url: str, work: Callable[[Any], Any]) -> Any:
    """What another program makes of the store's keys."""

    async def done() -> Any:
        store = SqlStore(url)
        await store.open()
        try:
            return await work(store.keys)
        finally:
            await store.close()

    return asyncio.run(done())


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


class Door:
    """A running server, as seen from outside, and its operator."""

    def __init__(self, base_url: str, database_url: str) -> None:
        self.base_url, self.database_url = base_url, database_url
        self.address = base_url.removeprefix("http://")

    def key(self, name: str = "laptop", **fields: Any) -> str:
        """A new key; the server knows that there is one."""
        record, secret = make_key(name, now=1, **fields)
        with_keys(self.database_url, lambda keys: keys.add(record))
        while self.ask("GET", "/v1/models").status != 401:
            time.sleep(POLL_S)
        return secret

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None, **headers: str | None) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        if key is not None:
            named["authorization"] = f"Bearer {key}"
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.putrequest(method, path, skip_host="host" in named)
        payload = None if body is None else json.dumps(body).encode()
        for name, value in named.items():
            connection.putheader(name, value)
        if payload is not None:
            connection.putheader("content-length", str(len(payload)))
        connection.endheaders(payload)
        reply = connection.getresponse()
        answer = Answer(reply.status, reply.headers, reply.read())
        connection.close()
        return answer

    def client(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key=key, max_retries=0)


@contextmanager
def opened(tmp_path: Path, **settings: Any):
    config = configured(tmp_path, MODELS, **{"logging.level": "error", **settings})
    with background_server(config, is_persistent=True) as base_url:
        yield Door(base_url, str(config.database_url))


@pytest.fixture
def new_door(tmp_path):
    """Of a server that has answered nobody, and has no key yet."""
    with opened(tmp_path) as door:
        yield door


@pytest.fixture(scope="module")
def open_door(tmp_path_factory):
    """Of a server for all tests that need no key: none of them makes one."""
    with opened(tmp_path_factory.mktemp("open")) as door:
        yield door


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """Of a server for all tests that make keys of their own, which has one from the start."""
    with opened(tmp_path_factory.mktemp("locked")) as door:
        door.key()
        yield door


# Every route


def all_routes():
    service = Service(configured(Path("/nowhere"), {}, **{"store.url": "memory"}), print)
    return routes(service)


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{route.path} {sorted(getattr(route, 'methods', None) or ())}")
def test_every_route_says_who_may_use_it(route):
    assert isinstance(route, GuardedRoute)
    assert route.access in ("probe", "public", "worker", "console", *SCOPES)


def test_the_routes_that_need_no_key_are_these():
    open_to_all = {route.path: route.access for route in all_routes() if route.access in ("probe", "public")}
    assert {path for path, access in open_to_all.items() if access == "probe"} == {"/livez", "/readyz", "/health"}
    assert {path for path, access in open_to_all.items() if access == "public"} <= {
        "/version",
        "/ca.crt",
        "/openapi-3.1.json",
        "/openapi.json",
        "/docs",
        "/",
        "/console/assets/{name}",
        "/console/state",
    }
    assert set(get_args(auth.keys.Scope)) == SCOPES.keys()


def test_names_are_resolved_for_the_key_or_the_address_of_who_asks(tmp_path):
    async def who(_request):
        return Response(asking_client.get())

    def build(service):
        operation = Operation("who", "Server", "Who asks", None)
        return Starlette(routes=[GuardedRoute("/who", who, service=service, access="models:read", operation=operation)])

    config = configured(tmp_path, {}, **{"logging.level": "error"})
    with serving(config, build) as (_server, url):
        door = Door(url, str(config.database_url))
        assert door.ask("GET", "/who").body == b"127.0.0.1"
        record, secret = make_key("laptop", now=1)
        with_keys(door.database_url, lambda keys: keys.add(record))
        assert door.ask("GET", "/who", key=secret).body.decode() == record.id


def test_every_route_with_a_key_refuses_who_has_none(door):
    door.key()
    refused = 0
    for route in all_routes():
        for method in (route.methods or {"GET"}) - {"HEAD"}:
            path = route.path.replace("{id}", "resp_1").replace("{model:path}", "parrot")
            answer = door.ask(method, path)
            assert (answer.status == 401) == (route.access in (*SCOPES, "worker", "console")), (method, path, answer)
            refused += answer.status == 401
    assert refused >= 6


# Keys


def test_without_keys_a_server_for_this_machine_only_is_open(open_door):
    with open_door.client("none") as client:
        assert client.responses.create(**ASK).output_text == "You said: Hi"
    assert open_door.ask("GET", "/v1/models").status == 200


def test_the_first_key_closes_the_door(new_door):
    assert new_door.ask("POST", "/v1/responses", ASK).status == 200
    with new_door.client(new_door.key()) as client:
        assert new_door.ask("POST", "/v1/responses", ASK).status == 401
        assert client.responses.create(**ASK).output_text == "You said: Hi"


def test_a_revoked_key_opens_nothing_though_the_server_knew_it(door):
    record, secret = make_key("guest", now=1)
    with_keys(door.database_url, lambda keys: keys.add(record))
    assert door.ask("GET", "/v1/models", key=secret).status == 200
    with_keys(door.database_url, lambda keys: keys.revoke(record.id, 2))
    while (answer := door.ask("GET", "/v1/models", key=secret)).status != 401:
        assert answer.status == 200
        time.sleep(POLL_S)
    assert answer.error["code"] == "invalid_api_key"


def test_an_expired_key_opens_nothing(door):
    assert door.ask("GET", "/v1/models", key=door.key(expires_at=2)).status == 401


def test_no_key_and_a_wrong_one_are_told_as_in_the_original(door):
    door.key()
    missing = door.ask("POST", "/v1/responses", ASK)
    assert (missing.status, missing.headers["www-authenticate"]) == (401, "Bearer")
    assert missing.error["message"].startswith("You didn't provide an API key. You need to provide your API key in an Authorization header")
    assert missing.error["type"] == "invalid_request_error" and missing.headers["x-request-id"].startswith("req_")
    with pytest.raises(openai.AuthenticationError) as wrong, door.client("ak-" + "n" * 40 + "wxyz") as client:
        client.responses.create(**ASK)
    assert wrong.value.code == "invalid_api_key"
    assert "Incorrect API key provided: ak-...wxyz. " in wrong.value.message


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer {}"},
        {"authorization": "bearer   {}"},
        {"api_key": "{}"},
        {"x_api_key": "{}"},
        {"authorization": "Basic YWJj", "api_key": "{}"},
        {"sec_websocket_protocol": "realtime, openai-insecure-api-key.{}, openai-beta.realtime-v1"},
    ],
)
def test_a_key_may_come_by_any_channel(door, headers):
    key = door.key()
    assert door.ask("GET", "/v1/models", **{name: value.format(key) for name, value in headers.items()}).status == 200


@pytest.mark.parametrize("headers", [{"authorization": "{}"}, {"authorization": "Basic {}"}, {"cookie": "key={}"}, {"x_key": "{}"}])
def test_a_key_in_the_wrong_place_is_none(door, headers):
    key = door.key()
    answer = door.ask("GET", f"/v1/models?api_key={key}", **{name: value.format(key) for name, value in headers.items()})
    assert answer.status == 401 and "You didn't provide" in answer.error["message"]


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/v1//models", "/V1/models", "/v1/models/", "/livez/../v1/models", "/v1/models?x=/livez", "/livez%2f..%2fv1%2fmodels"],
)
def test_no_way_of_writing_a_path_leads_past_the_key(door, path):
    door.key()
    assert door.ask("GET", path).status in (401, 404)
    assert door.ask("GET", f"http://localhost{path}").status in (400, 401, 404)


def test_who_has_no_key_is_refused_before_the_body_is_sent(door):
    door.key()
    connection = http.client.HTTPConnection(door.address, timeout=30)
    connection.putrequest("POST", "/v1/responses")
    connection.putheader("content-length", "1000000")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


# Scopes


def test_a_key_does_what_its_scopes_say_and_no_more(door):
    writer, reader = door.key(scopes=("responses:write",)), door.key(scopes=("responses:read", "models:read"))
    made = json.loads(door.ask("POST", "/v1/responses", ASK, key=writer).body)["id"]
    refusal = door.ask("GET", f"/v1/responses/{made}", key=writer)
    assert refusal.status == 403 and refusal.error["code"] == "insufficient_permissions"
    assert refusal.error["message"].startswith("You have insufficient permissions for this operation. Missing scopes: responses:read.")
    assert door.ask("GET", f"/v1/responses/{made}", key=reader).status == 200
    assert door.ask("GET", "/v1/models", key=writer).status == 403
    assert door.ask("DELETE", f"/v1/responses/{made}", key=reader).status == 403
    with pytest.raises(openai.PermissionDeniedError), door.client(reader) as client:
        client.responses.create(**ASK)


# Tenants


# What is the operator's is nobody's in particular, and is refused before it is looked for.
WITH_ID = [route for route in all_routes() if "{id}" in route.path and route.access != "admin"]
ID_ROUTES = [(route, method) for route in WITH_ID for method in sorted(route.methods - {"HEAD"})]


def test_another_tenants_ids_are_as_good_as_none_on_every_route_that_has_one(door):
    ada, eve = door.key(tenant="ada"), door.key(tenant="eve")
    mine = json.loads(door.ask("POST", "/v1/responses", ASK, key=ada).body)["id"]
    for route, method in ID_ROUTES:
        path = route.path.replace("{id}", mine)
        foreign, unknown = door.ask(method, path, key=eve), door.ask(method, path.replace(mine, "resp_0"), key=eve)
        assert (foreign.status, unknown.status) == (404, 404), path
        assert foreign.body.replace(mine.encode(), b"resp_0") == unknown.body, path
        assert method != "GET" or door.ask("HEAD", path, key=eve).status == 404, path
    assert {(method, route.path.partition("{id}")[2]) for route, method in ID_ROUTES} >= {
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("GET", "/input_items"),
    }
    assert door.ask("GET", f"/v1/responses/{mine}", key=ada).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_another_tenants_response_cannot_be_continued_nor_its_items_referred_to(door, stream):
    ada, eve = door.key(tenant="ada"), door.key(tenant="eve")
    mine = json.loads(door.ask("POST", "/v1/responses", ASK, key=ada).body)
    refused = door.ask("POST", "/v1/responses", ASK | {"previous_response_id": mine["id"], "stream": stream}, key=eve)
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
    told = [{"type": "item_reference", "id": mine["output"][0]["id"]}, {"role": "user", "content": "x"}]
    assert door.ask("POST", "/v1/responses", {"model": "parrot", "input": told, "stream": stream}, key=eve).status == 404
    counted = door.ask("POST", "/v1/responses/input_tokens", ASK | {"previous_response_id": mine["id"]}, key=eve)
    assert (counted.status, counted.error["code"]) == (400, "previous_response_not_found")
    again = door.ask("POST", "/v1/responses", ASK | {"previous_response_id": mine["id"], "stream": stream}, key=ada)
    assert again.status == 200


def test_a_list_can_not_be_told_to_begin_at_another_tenants_item(door):
    ada, eve = door.key(tenant="ada"), door.key(tenant="eve")
    theirs, mine = (json.loads(door.ask("POST", "/v1/responses", ASK, key=key).body)["id"] for key in (ada, eve))
    item = json.loads(door.ask("GET", f"/v1/responses/{theirs}/input_items", key=ada).body)["first_id"]
    listed = f"/v1/responses/{mine}/input_items?after="
    foreign, unknown = door.ask("GET", listed + item, key=eve), door.ask("GET", listed + "msg_0", key=eve)
    assert (foreign.status, unknown.status) == (400, 400)
    assert foreign.body.replace(item.encode(), b"msg_0") == unknown.body


def test_two_keys_of_a_tenant_share_what_it_has(door):
    one, other = door.key(tenant="ada"), door.key(tenant="ada")
    mine = json.loads(door.ask("POST", "/v1/responses", ASK, key=one).body)["id"]
    assert door.ask("GET", f"/v1/responses/{mine}", key=other).status == 200


def test_what_was_stored_before_there_were_keys_is_reached_by_a_key_for_no_tenant(new_door):
    mine = json.loads(new_door.ask("POST", "/v1/responses", ASK).body)["id"]
    assert new_door.ask("GET", f"/v1/responses/{mine}", key=new_door.key(tenant="")).status == 200


# Limits


def test_requests_over_the_limit_are_told_when_to_come_again(door):
    key = door.key(requests_per_minute=2)
    first = door.ask("GET", "/v1/models", key=key)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"].startswith(("29.", "30s"))
    assert first.headers["x-ratelimit-limit-tokens"] is None
    assert door.ask("GET", "/v1/responses/resp_0", key=key).headers["x-ratelimit-remaining-requests"] == "0"
    third = door.ask("POST", "/v1/responses", ASK, key=key)
    assert (third.status, third.error["code"], third.error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert 25 <= int(third.headers["retry-after"]) <= 30
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError), door.client(key) as client:
        client.models.list()


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_counted_by_what_an_answer_came_to(door, stream):
    key = door.key(tokens_per_minute=8)
    answer = door.ask("POST", "/v1/responses", {"model": "parrot", "input": "one two three", "stream": stream}, key=key)
    assert (answer.status, answer.headers["x-ratelimit-remaining-tokens"]) == (200, "8" if stream else "0")
    refused = door.ask("POST", "/v1/responses", ASK, key=key)
    assert (refused.status, refused.error["type"], refused.headers["x-ratelimit-remaining-tokens"]) == (429, "tokens", "0")


def test_an_answer_whose_client_leaves_counts_what_was_said_until_then(door):
    key = door.key(tokens_per_minute=1000)
    with door.client(key) as client, client.responses.create(model="slow", input="word " * 200, stream=True) as stream:
        next(event for event in stream if event.type == "response.output_text.delta")
    while (left := int(door.ask("GET", "/v1/models", key=key).headers["x-ratelimit-remaining-tokens"])) > 990:  # it takes note
        pass
    assert left in range(500, 752)  # 1,000 bytes were asked, and not all of them said again


def test_a_refused_request_has_the_headers_of_the_limits_too(door):
    key = door.key(requests_per_minute=100)
    for model, status in (("none", 404), ("parrot", 503)):
        answer = door.ask("POST", "/v1/responses", {"model": model, "input": "break at once"}, key=key)
        assert answer.status == status and answer.headers["x-ratelimit-limit-requests"] == "100"


def test_streams_over_the_limit_are_refused_until_one_has_ended(door):
    key = door.key(streams=1)
    with door.client(key) as client:
        with client.responses.create(model="slow", input="sing", stream=True) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as refused:
                client.responses.create(**ASK)
            assert "concurrent streams" in refused.value.message and refused.value.response.headers["retry-after"] == "1"
        while door.ask("POST", "/v1/responses", ASK, key=key).status != 200:  # until the server has seen that the stream was left
            pass


def test_one_keys_limits_are_not_anothers(door):
    one, other = door.key(requests_per_minute=1), door.key()
    assert [door.ask("GET", "/v1/models", key=key).status for key in (one, one, other)] == [200, 429, 200]
    assert not any(name.startswith("x-ratelimit") for name in door.ask("GET", "/v1/models", key=other).headers)


# Hosts and origins


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8642", "app.localhost", "127.0.0.1:1", "[::1]:8642", "192.168.1.7"])
def test_the_server_answers_to_its_own_names_and_to_addresses(open_door, host):
    assert open_door.ask("GET", "/v1/models", host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:80"])
def test_a_name_that_is_not_ours_is_refused_so_that_no_page_makes_its_own_lead_here(open_door, host):
    answer = open_door.ask("GET", "/v1/models", host=host)
    assert (answer.status, answer.error["code"]) == (421, "host_not_allowed")
    assert open_door.ask("POST", "/v1/responses", ASK, host=host).status == 421
    assert open_door.ask("GET", "/livez", host=host).status == 200


def test_hosts_can_be_allowed(tmp_path):
    with opened(tmp_path, **{"server.allowed_hosts": ["api.example.com", "*.lan"]}) as door:
        assert door.ask("GET", "/v1/models", host="api.example.com").status == 200
        assert door.ask("GET", "/v1/models", host="box.lan:8642").status == 200
        assert door.ask("GET", "/v1/models", host="example.com").status == 421
        assert door.ask("GET", "/v1/models", host="lan").status == 421


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "", "http://[::1", "\xff", "http://localhost.evil.example", "http://127.0.0.1:1"]
)
def test_pages_of_other_sites_are_refused(open_door, origin):
    answer = open_door.ask("POST", "/v1/responses", ASK, origin=origin)
    assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
    assert answer.headers["access-control-allow-origin"] is None
    preflight = open_door.ask("OPTIONS", "/v1/responses", origin=origin, access_control_request_method="POST")
    assert preflight.status == 403


def test_a_page_of_another_site_that_sends_no_origin_is_refused_too(open_door):
    for site in ("cross-site", "same-site"):
        assert open_door.ask("GET", "/v1/models", sec_fetch_site=site).status == 403
    assert open_door.ask("GET", "/v1/models", sec_fetch_site="same-origin").status == 200


def test_pages_of_the_server_itself_may_use_it(open_door):
    assert open_door.ask("POST", "/v1/responses", ASK, origin=open_door.base_url).status == 200


def test_pages_of_an_allowed_origin_may_read_every_answer(tmp_path):
    with opened(tmp_path, **{"server.allowed_origins": ["https://chat.example.com"]}) as door:
        key, origin = door.key(requests_per_minute=9), "https://chat.example.com"
        asked = {"access_control_request_method": "DELETE", "access_control_request_headers": "authorization,content-type"}
        preflight = door.ask("OPTIONS", "/v1/responses/resp_1", origin=origin, **asked)
        assert (preflight.status, preflight.body) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == origin
        assert "DELETE" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
        streamed = ASK | {"stream": True}
        for body, sent, status in ((ASK, key, 200), (streamed, key, 200), (ASK, None, 401), ({"model": "none", "input": "x"}, key, 404)):
            answer = door.ask("POST", "/v1/responses", body, key=sent, origin=origin)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, origin)
            assert answer.headers["vary"] == "Origin" and "x-request-id" in answer.headers["access-control-expose-headers"]
        assert door.ask("POST", "/v1/responses", ASK, key=key, origin="https://other.example.com").status == 403
        assert door.ask("OPTIONS", "/v1/responses").status in (401, 405)


# Before it opens


def test_a_server_that_others_reach_does_not_start_without_a_key(tmp_path):
    config = configured(tmp_path, MODELS, **{"server.host": "0.0.0.0"})

    async def start() -> None:
        service = Service(config, print)
        try:
            await service.open()
        finally:
            await service.close()

    with pytest.raises(ServerError, match=r"Refusing to listen on 0\.0\.0\.0.*antiphon keys create"):
        asyncio.run(start())
    record, _ = make_key("old", now=1, expires_at=2)
    with_keys(config.database_url, lambda keys: keys.add(record))
    with pytest.raises(ServerError, match="Refusing"):
        asyncio.run(start())
    record, _ = make_key("laptop", now=1)
    with_keys(config.database_url, lambda keys: keys.add(record))
    asyncio.run(start())
    never = config.server.model_copy(update={"require_keys": False})
    config = config.model_copy(update={"server": never})
    with pytest.raises(ServerError, match="Refusing"):
        asyncio.run(start())


def test_a_key_can_be_needed_from_the_start(tmp_path):
    with opened(tmp_path, **{"server.require_keys": True}) as door:
        assert door.ask("GET", "/v1/models").status == 401
        assert door.ask("GET", "/v1/models", key=door.key()).status == 200


def test_needing_keys_of_a_store_that_forgets_them_is_refused(tmp_path):
    with (
        pytest.raises(ServerError, match="needs a store that lasts"),
        opened(tmp_path, **{"server.require_keys": True, "store.url": "memory"}),
    ):
        pass
