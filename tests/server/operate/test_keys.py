"""`/keys`: made once, listed without their values, revoked; nobody gets more than they have, or locks the server by mistake."""

import asyncio

import httpx2
import pytest

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.scripted_server import SCRIPT, configured

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}}
ADMIN = ("admin", "models:read", "responses:read")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def asking(url, key=None):
    return httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"} if key else {}, timeout=60)


def refusal(reply):
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


async def test_a_key_is_made_works_at_once_and_is_never_shown_again(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    admin = await server.key(scopes=ADMIN)
    with server.serving() as url, asking(url, admin) as http:
        fields = {"name": "ci", "scopes": ["models:read"], "expires": "30d", "requests_per_minute": 60, "streams": 2}
        made = http.post("/keys", json=fields)
        key = made.json()
        assert (made.status_code, made.headers["cache-control"]) == (200, "no-store")
        assert key["value"].startswith(key["prefix"]) and key["state"] == "live" and key["tenant"] == "default"
        assert key["expires_at"] - key["created_at"] == 30 * 86400
        with asking(url, key["value"]) as user:
            assert user.get("/v1/models").status_code == 200
            assert refusal(user.get("/keys"))[:2] == (403, "insufficient_permissions")
        listed = http.get("/keys")
        row = next(each for each in listed.json()["keys"] if each["id"] == key["id"])
        assert row["limits"]["requests"]["limit"] == 60 and row["limits"]["requests"]["remaining"] < 60 and row["limits"]["tokens"] is None
        assert key["value"] not in listed.text and admin not in listed.text and "hash" not in row

        revoked = http.post(f"/keys/{key['id']}/revoke")
        assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
        assert http.post(f"/keys/{key['id']}/revoke", json={}).json()["revoked_at"] == revoked.json()["revoked_at"]
        with asking(url, key["value"]) as user:
            assert refusal(user.get("/v1/models"))[:2] == (401, "invalid_api_key")
        assert refusal(http.post("/keys/key_none/revoke"))[:2] == (404, "key_not_found")


async def test_a_key_makes_none_that_may_do_more(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    admin = await server.key(scopes=ADMIN, tenant="ours")
    with server.serving() as url, asking(url, admin) as http:
        assert refusal(http.post("/keys", json={"name": "x", "scopes": ["realtime"]})) == (403, "insufficient_permissions", "scopes")
        assert refusal(http.post("/keys", json={"name": "x", "tenant": "theirs"})) == (403, "insufficient_permissions", "tenant")
        made = http.post("/keys", json={"name": "x"}).json()
        assert (made["tenant"], made["scopes"]) == ("ours", ["responses:read", "models:read"])
        assert http.post("/keys", json={"name": "y", "scopes": ["admin"], "tenant": "ours"}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "missing_required_parameter", "name"),
        ({"name": 1}, "invalid_type", "name"),
        ({"name": " "}, "invalid_value", "name"),
        ({"name": "a\nb"}, "invalid_value", "name"),
        ({"name": "x", "tenant": "\x7f"}, "invalid_value", "tenant"),
        ({"name": "x", "scopes": []}, "invalid_value", "scopes"),
        ({"name": "x", "scopes": ["admin", "root"]}, "invalid_value", "scopes[1]"),
        ({"name": "x", "expires": "soon"}, "invalid_value", "expires"),
        ({"name": "x", "expires": "2020-01-01"}, "invalid_value", "expires"),
        ({"name": "x", "streams": 0}, "integer_below_min_value", "streams"),
        ({"name": "x", "requests_per_minute": 10**13}, "integer_above_max_value", "requests_per_minute"),
        ({"name": "x", "record": "sometimes"}, "invalid_value", "record"),
    ],
)
def test_a_wrong_field_is_named(key_url, fields, code, param):
    with asking(*key_url) as http:
        assert refusal(http.post("/keys", json=fields)) == (400, code, param)


@pytest.fixture(scope="module")
def key_url(tmp_path_factory):
    """The address of a server, and an admin's key."""
    server = KeyServer(tmp_path_factory.mktemp("keys"), MODELS)
    key = asyncio.run(server.key(scopes=ADMIN))
    with server.serving() as url:
        yield url, key


async def test_the_last_key_of_an_operator_is_revoked_on_a_clear_word_only(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    admin, record = await server.create_key(scopes=ADMIN)
    await server.key(scopes=("models:read",))
    with server.serving() as url, asking(url, admin) as http:
        assert refusal(http.post(f"/keys/{record.id}/revoke"))[:2] == (409, "last_admin_key")
        assert refusal(http.post(f"/keys/{record.id}/revoke", json={"confirm": "yes"})) == (400, "invalid_value", "confirm")
        second = http.post("/keys", json={"name": "second", "scopes": ["admin"]}).json()
        assert http.post(f"/keys/{record.id}/revoke").status_code == 200
        with asking(url, second["value"]) as heir:
            assert refusal(heir.post(f"/keys/{second['id']}/revoke"))[:2] == (409, "last_admin_key")
            assert heir.post(f"/keys/{second['id']}/revoke", json={"confirm": "last_admin_key"}).status_code == 200
            assert heir.get("/keys").status_code == 401


def test_the_first_key_of_an_open_server_is_one_for_operators_or_meant_not_to_be(tmp_path):
    config = configured(tmp_path, MODELS, **{"logging.level": "error"})
    with background_server(config, is_persistent=True) as url, asking(url) as http:
        assert refusal(http.post("/keys", json={"name": "first"}))[:2] == (409, "no_admin_key")
        first = http.post("/keys", json={"name": "first", "scopes": ["admin", "models:read"], "tenant": "ours"}).json()
        assert first["tenant"] == "ours" and http.get("/keys").status_code == 401


def test_a_store_in_memory_takes_no_keys(tmp_path):
    config = configured(tmp_path, MODELS, **{"logging.level": "error"})
    with background_server(config) as url, asking(url) as http:
        assert http.get("/keys").json()["keys"] == []
        assert refusal(http.post("/keys", json={"name": "x", "scopes": ["admin"]}))[:2] == (409, "store_in_memory")
