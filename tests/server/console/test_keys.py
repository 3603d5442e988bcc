"""Keys of the page: how a browser gets them, what they open, and who can't get at them."""

import contextlib
import http.client
import json
import time

import pytest

from antiphon.records import ClientSecretRecord
from antiphon.runtime.access.console_keys import COOKIE_LIFETIME_S, LIFETIME_S, ConsoleKeyIssuer
from antiphon.runtime.access.keys import SCOPES, Keyring, hash_secret, make_key
from antiphon.server.processes.run import background_server
from antiphon.stores.memory import MemoryStore
from support.server.key_server import KeyServer
from support.server.realtime_peer import connected, refusal
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}}
ASK = {"model": "parrot", "input": "Hi"}
KEYS = "/console/keys"


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


class Site:
    """A server as a browser reaches it, under some host name."""

    def __init__(self, url, host=None):
        self.url, self.address = url, url.removeprefix("http://")
        self.port = self.address.rpartition(":")[2]
        self.host = host or self.address
        self.cookie_name = f"antiphon_console_{self.port}"

    def ask(self, method, path, body=None, key=None, **headers):
        """Status, headers and body of an answer; a header of None is left out."""
        told = {"host": self.host, "authorization": None if key is None else f"Bearer {key}"} | headers
        connection = http.client.HTTPConnection(self.address, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in told.items():
                for each in value if isinstance(value, list) else [value] * (value is not None):
                    connection.putheader(name.replace("_", "-"), each)
            payload = b"" if body is None else json.dumps(body).encode()
            connection.putheader("content-length", str(len(payload)))
            connection.endheaders(payload)
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read() or b"null")

    def page(self, scheme="http"):
        """The headers of a request that the server's own page makes."""
        return {"origin": f"{scheme}://{self.host}", "sec_fetch_site": "same-origin"}

    def sign_in(self, key, scheme="http"):
        """The page's first key, and its cookie as the browser sends it back."""
        status, headers, made = self.ask("POST", KEYS, key=key, **self.page(scheme))
        assert status == 200, made
        return made, (headers["set-cookie"] or "").partition(";")[0]

    def opens(self, secret):
        return self.ask("GET", "/v1/models", key=secret)[0] == 200


@pytest.fixture(scope="module")
async def stage(tmp_path_factory):
    server = KeyServer(tmp_path_factory.mktemp("keys"), MODELS, **{"server.allowed_hosts": ["chat.example.com"]})
    await server.key()
    with server.serving() as url:
        yield server, url


@pytest.fixture
def server(stage):
    return stage[0]


@pytest.fixture
def site(stage):
    return Site(stage[1])


async def revoke(server, record):
    await server.with_store(lambda store: store.keys.revoke(record.id, 2))


async def test_a_key_signs_in_and_the_page_has_one_of_its_own(server, site):
    key, record = await server.create_key(tenant="ada", scopes=("models:read", "responses:write"))
    status, headers, made = site.ask("POST", KEYS, key=key, **site.page())
    assert status == 200 and headers["cache-control"] == "no-store"
    assert made["value"].startswith("ck_") and LIFETIME_S - 5 <= made["expires_at"] - time.time() <= LIFETIME_S + 1
    assert (made["tenant"], made["key_id"]) == ("ada", record.id)
    assert set(made["scopes"]) == {"models:read", "responses:write"}
    assert site.opens(made["value"])
    assert site.ask("POST", "/v1/responses", ASK, key=made["value"])[0] == 200
    assert site.ask("GET", "/v1/responses/resp_0", key=made["value"])[0] == 403  # the key lacks the scope
    assert site.ask("GET", "/status", key=made["value"])[0] == 403


async def test_what_the_page_makes_is_its_keys_tenants_and_nobody_elses(server, site):
    ada, eve = await server.key(tenant="ada"), await server.key(tenant="eve")
    mine = site.ask("POST", "/v1/responses", ASK, key=site.sign_in(ada)[0]["value"])[2]["id"]
    assert site.ask("GET", f"/v1/responses/{mine}", key=ada)[0] == 200
    assert site.ask("GET", f"/v1/responses/{mine}", key=site.sign_in(eve)[0]["value"])[0] == 404


async def test_the_pages_key_opens_sessions_of_both_protocols(server, site):
    secret = site.sign_in(await server.key())[0]["value"]
    async with connected(site.url, protocols=("realtime", f"openai-insecure-api-key.{secret}")) as peer:
        assert (await peer.hear())["type"] == "session.created"
    async with connected(site.url, key=secret, mode="chat") as peer:
        assert (await peer.hear())["type"].startswith("session.")
    assert await refusal(site.url, key="ck_" + "0" * 64) == 401


async def test_an_admin_key_gives_the_page_the_admins_routes(server, site):
    secret = site.sign_in(await server.key(scopes=tuple(SCOPES)))[0]["value"]
    assert site.ask("GET", "/status", key=secret)[0] == 200


async def test_limits_are_counted_on_the_key(server, site):
    key = await server.key(requests_per_minute=4)
    made, _ = site.sign_in(key)
    status, headers, _ = site.ask("GET", "/v1/models", key=made["value"])
    assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "2")
    assert site.ask("GET", "/v1/models", key=key)[1]["x-ratelimit-remaining-requests"] == "1"
    assert site.ask("POST", KEYS, key=made["value"])[0] == 401  # renewed by the cookie, and counted all the same
    assert [site.ask("GET", "/v1/models", key=made["value"])[0] for _ in range(2)][-1] == 429


async def test_the_cookie_is_out_of_reach_and_gets_the_next_key(server, site):
    key = await server.key()
    status, headers, made = site.ask("POST", KEYS, key=key, **site.page())
    value, *attributes = (part.strip() for part in headers["set-cookie"].split(";"))
    assert set(attributes) == {f"Path={KEYS}", f"Max-Age={COOKIE_LIFETIME_S}", "HttpOnly", "SameSite=Strict"}
    name, _, secret = value.partition("=")
    assert name == site.cookie_name and key not in value and made["value"] not in value
    status, headers, again = site.ask("POST", KEYS, **site.page(), cookie=value)
    assert (status, headers["set-cookie"]) == (200, None)
    assert again["value"] != made["value"] and site.opens(again["value"]) and site.opens(made["value"])
    for path in ("/v1/models", "/v1/responses/resp_0", "/status"):
        assert site.ask("GET", path, **site.page(), cookie=value)[0] == 401  # it opens nothing itself
    assert not site.opens(secret)


async def test_nothing_of_a_secret_is_stored(server, site):
    made, cookie = site.sign_in(await server.key())
    for secret in (made["value"], cookie.partition("=")[2]):
        record = await server.with_store(lambda store, secret=secret: store.client_secrets.find(hash_secret(secret)))
        assert secret not in repr(record)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"origin": None}, "no origin, as of a link or a form of an old browser"),
        ({"sec_fetch_site": None}, "no word of the browser"),
        ({"sec_fetch_site": "same-site"}, "another port of this host"),
        ({"sec_fetch_site": "cross-site"}, "another site"),
        ({"sec_fetch_site": "none"}, "a person's own request, which is none of the page"),
        ({"origin": "null"}, "a sandbox"),
        ({"origin": "https://evil.example"}, "another site that lies about the rest"),
        ({"origin": "http://localhost:3000"}, "another port"),
        ({"origin": "ftp://{host}"}, "another scheme"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_a_cookie_in_a_request_of_any_other_page_is_nothing(server, site, method, changes, why):
    made, cookie = site.sign_in(await server.key())
    changes = {name: value and value.format(host=site.host) for name, value in changes.items()}
    status, headers, answer = site.ask(method, KEYS, **site.page() | changes, cookie=cookie)
    assert status in (401, 403) and "value" not in answer, why
    assert headers["set-cookie"] is None and headers["access-control-allow-origin"] is None
    assert site.opens(made["value"])


async def test_no_other_page_signs_anybody_in(server, site):
    key = await server.key()
    for changes in ({"origin": "http://localhost:3000"}, {"origin": "https://evil.example", "sec_fetch_site": "cross-site"}):
        assert site.ask("POST", KEYS, key=key, **site.page() | changes)[0] == 403
    for changes in ({"origin": None}, {"sec_fetch_site": None}):  # a program: it has no use for a cookie
        status, headers, _ = site.ask("POST", KEYS, key=key, **site.page() | changes)
        assert (status, headers["set-cookie"]) == (200, None)


async def test_a_page_that_the_operator_allows_may_sign_in_and_gets_no_cookie(tmp_path):
    server = KeyServer(tmp_path, MODELS, **{"server.allowed_origins": ["https://chat.example.com"]})
    key = await server.key()
    with server.serving() as url:
        site, theirs = Site(url), {"origin": "https://chat.example.com", "sec_fetch_site": "cross-site"}
        status, headers, made = site.ask("POST", KEYS, key=key, **theirs)
        assert (status, headers["set-cookie"]) == (200, None) and site.opens(made["value"])
        assert headers["access-control-allow-origin"] == "https://chat.example.com"
        assert headers["access-control-allow-credentials"] is None
        _, cookie = site.sign_in(key)
        assert site.ask("POST", KEYS, **theirs, cookie=cookie)[0] == 401


async def test_of_two_cookies_neither_is_believed(server, site):
    ours, theirs = [site.sign_in(await server.key(tenant=tenant))[1] for tenant in ("ada", "eve")]
    assert site.ask("POST", KEYS, **site.page(), cookie=f"{theirs}; {ours}")[0] == 401
    assert site.ask("POST", KEYS, **site.page(), cookie=[theirs, ours])[0] == 401
    assert site.ask("POST", KEYS, **site.page(), cookie=f"other=1; {ours}")[0] == 200


async def test_a_servers_cookie_is_not_that_of_another_port(server, site):
    _, cookie = site.sign_in(await server.key())
    other = cookie.replace(site.cookie_name, "antiphon_console_1")
    assert site.ask("POST", KEYS, **site.page(), cookie=other)[0] == 401


async def test_over_plain_http_from_elsewhere_there_is_no_cookie(server, stage):
    far, key = Site(stage[1], "chat.example.com"), await server.key()
    made, cookie = far.sign_in(key)
    assert cookie == "" and far.opens(made["value"])
    _, headers, _ = far.ask("POST", KEYS, key=key, **far.page())
    assert headers["set-cookie"] is None
    near_cookie = Site(stage[1]).sign_in(key)[1].replace(Site(stage[1]).cookie_name, "antiphon_console")
    assert far.ask("POST", KEYS, **far.page(), cookie=near_cookie)[0] == 401
    # There the page's key makes the next one, in the same sign-in.
    status, _, again = far.ask("POST", KEYS, key=made["value"], **far.page())
    assert status == 200 and far.opens(again["value"])
    assert far.ask("DELETE", KEYS, key=again["value"], **far.page())[2]["deleted"] is True
    assert not far.opens(again["value"]) and not far.opens(made["value"])


async def test_over_tls_the_cookie_is_only_for_tls(server, stage):
    far, key = Site(stage[1], "chat.example.com"), await server.key()
    _, headers, _ = far.ask("POST", KEYS, key=key, **far.page("https"))
    assert headers["set-cookie"].endswith("; Secure")
    cookie = headers["set-cookie"].partition(";")[0]
    assert far.ask("POST", KEYS, **far.page("https"), cookie=cookie)[0] == 200
    assert far.ask("POST", KEYS, **far.page("http"), cookie=cookie)[0] == 401


async def test_a_stolen_key_of_the_page_makes_no_other_and_no_cookie(server, site):
    made, cookie = site.sign_in(await server.key())
    for headers in ({}, site.page()):
        status, answer, _ = site.ask("POST", KEYS, key=made["value"], **headers)
        assert (status, answer["set-cookie"]) == (401, None)
    assert site.ask("POST", KEYS, key=made["value"], **site.page(), cookie=cookie)[0] == 200
    # An expired one does not stand in the way of the cookie.
    assert site.ask("POST", KEYS, key="ck_" + "0" * 64, **site.page(), cookie=cookie)[0] == 200
    # A wrong key is wrong, whatever comes with it.
    assert site.ask("POST", KEYS, key="ak-wrong", **site.page(), cookie=cookie)[0] == 401


async def test_a_cookie_is_no_key_and_a_client_secret_neither(server, site):
    key = await server.key()
    _, cookie = site.sign_in(key)
    secret = site.ask("POST", "/v1/realtime/client_secrets", {}, key=key)[2]["value"]
    assert not site.opens(cookie.partition("=")[2])
    for value in (secret, secret.replace("ek_", "ck_"), cookie.partition("=")[2].replace("cc_", "ck_")):
        assert site.ask("POST", KEYS, key=value)[0] == 401
    assert site.ask("POST", KEYS, **site.page(), cookie=f"{site.cookie_name}={secret}")[0] == 401
    assert await refusal(site.url, key=site.sign_in(key)[0]["value"].replace("ck_", "ek_")) == 401


async def test_everything_ends_with_the_key(server, site):
    key, record = await server.create_key()
    made, cookie = site.sign_in(key)
    await revoke(server, record)
    while site.opens(made["value"]):
        pass
    for headers in ({"cookie": cookie}, {"key": made["value"]}, {"key": key}):
        assert site.ask("POST", KEYS, **site.page(), **headers)[0] == 401


async def test_signing_out_ends_all_keys_of_the_sign_in_and_no_other(server, site):
    key = await server.key()
    made, cookie = site.sign_in(key)
    other, _ = site.sign_in(key)
    again = site.ask("POST", KEYS, **site.page(), cookie=cookie)[2]
    status, headers, answer = site.ask("DELETE", KEYS, **site.page(), cookie=cookie)
    assert (status, answer) == (200, {"object": "console.key.deleted", "deleted": True})
    assert headers["set-cookie"].startswith(f"{site.cookie_name}=; ") and "Max-Age=0" in headers["set-cookie"]
    assert not site.opens(made["value"]) and not site.opens(again["value"]) and site.opens(other["value"])
    assert site.ask("POST", KEYS, **site.page(), cookie=cookie)[0] == 401
    assert site.ask("DELETE", KEYS, key=key)[2]["deleted"] is False
    assert site.opens(key)


async def test_without_a_key_nobody_gets_one(site):
    status, headers, answer = site.ask("POST", KEYS, **site.page())
    assert (status, headers["www-authenticate"], headers["set-cookie"]) == (401, "Bearer", None)
    assert "You didn't provide an API key" in answer["error"]["message"]
    assert site.ask("DELETE", KEYS, **site.page())[0] == 401
    assert site.ask("POST", KEYS, key="ck_" + "0" * 64)[2]["error"]["code"] == "invalid_api_key"


async def test_what_is_told_of_a_wrong_secret_does_not_show_it(site):
    for secret in ("ck_" + "0123456789abcdef" * 4, "cc_" + "0123456789abcdef" * 4):
        for path in ("/v1/models", "/v1/responses/resp_0"):
            assert secret not in json.dumps(site.ask("GET", path, key=secret)[2])


async def test_a_page_of_another_port_reads_nothing_with_a_plain_get(site, server):
    key = await server.key()
    for told in ("same-site", "cross-site"):  # what `<img>` and `<script>` ask for
        assert site.ask("GET", "/v1/models", key=key, sec_fetch_site=told)[0] == 403
    for told in ("same-origin", "none"):
        assert site.ask("GET", "/v1/models", key=key, sec_fetch_site=told)[0] == 200
    for path in ("/v1/models", "/console/state", "/", "/version", "/livez"):
        assert site.ask("GET", path)[1]["cross-origin-resource-policy"] == "same-origin"


async def test_the_state_says_that_a_key_is_needed_and_names_no_model(site):
    status, headers, state = site.ask("GET", "/console/state")
    assert (status, state["name"], state["needs_key"], state["ready"]) == (200, "antiphon", True, True)
    assert set(state["console"]) == {"webrtc", "tls", "recording"}
    assert headers["cache-control"] == "no-store" and "parrot" not in json.dumps(state)


async def test_where_no_key_is_needed_it_just_works(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error"}), is_persistent=True) as url:
        site = Site(url)
        assert site.ask("GET", "/console/state")[2]["needs_key"] is False
        status, headers, made = site.ask("POST", KEYS, **site.page())
        assert (status, headers["set-cookie"], made["key_id"], set(made["scopes"])) == (200, None, None, set(SCOPES))
        assert site.opens(made["value"]) and site.opens("ck_any") and site.opens(None)
        assert site.ask("POST", KEYS, **site.page(), cookie=f"{site.cookie_name}=cc_old")[0] == 200
        assert site.ask("POST", KEYS, **site.page() | {"origin": "http://localhost:3000"})[0] == 403
        assert site.ask("DELETE", KEYS, **site.page())[2]["deleted"] is False
        record, key = make_key("first", now=1)
        await KeyServer.with_store(_Of(configured(tmp_path, MODELS)), lambda store: store.keys.add(record))
        while site.opens(None):
            pass
        assert not site.opens(made["value"]) and site.opens(key)
        assert site.ask("GET", "/console/state")[2]["needs_key"] is True


class _Of:
    """What `KeyServer.with_store` needs."""

    def __init__(self, config):
        self.config = config


async def test_without_the_page_there_are_none_of_its_routes(tmp_path):
    config = configured(tmp_path, MODELS, **{"logging.level": "error", "server.console": False})
    with background_server(config) as url:
        site = Site(url)
        for method, path in (("POST", KEYS), ("DELETE", KEYS), ("GET", "/console/state"), ("GET", "/console/assets/app.js")):
            assert site.ask(method, path, **site.page())[0] == 404
        assert site.ask("GET", "/", accept="text/html")[0] == 307


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


async def test_keys_and_sign_ins_expire():
    store, clock = MemoryStore(), Clock()
    keyring = Keyring(store.keys, True, clock)
    issuer = ConsoleKeyIssuer(store.client_secrets, keyring, clock)
    record, secret = make_key("laptop", now=clock.now)
    await store.keys.add(record)
    caller = await keyring.authenticate(secret)
    for with_cookie, lifetime_s in ((True, 7 * 86_400), (False, 12 * 3600)):
        sign_in, began_at = await issuer.sign_in(caller, with_cookie=with_cookie), clock.now
        assert (sign_in.cookie is not None) == with_cookie
        latest = sign_in.key
        while clock.now + LIFETIME_S < began_at + lifetime_s:
            clock.now += LIFETIME_S - 1
            grant = await (issuer.redeem_cookie(sign_in.cookie) if sign_in.cookie else issuer.redeem(latest.value))
            latest = await issuer.renew(grant)
        with pytest.raises(Exception, match="expired"):
            await issuer.redeem(sign_in.key.value)
        assert (await issuer.redeem(latest.value)).caller.key == record
        clock.now = began_at + lifetime_s
        with pytest.raises(Exception, match="Enter your API key again"):
            await issuer.redeem(latest.value)
        with pytest.raises(Exception, match="Enter your API key again"):
            await issuer.redeem_cookie(sign_in.cookie or "cc_none")


async def test_what_expired_is_deleted_with_the_next_one():
    store = MemoryStore()
    old = ClientSecretRecord(hash=b"old", key_id=None, session=b"{}", created_at=1, expires_at=2)
    await store.client_secrets.add(old)
    issuer = ConsoleKeyIssuer(store.client_secrets, Keyring(store.keys, False))
    await issuer.sign_in(await Keyring(store.keys, False).authenticate(None), with_cookie=False)
    assert await store.client_secrets.find(b"old") is None
