"""`antiphon keys`, on a machine that has none."""

import contextlib
import json
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from antiphon.cli.common.client import ApiClient
from antiphon.config.load import load
from antiphon.server.processes.run import background_server

pytestmark = pytest.mark.usefixtures("store")


def test_a_key_is_all_that_is_printed_and_is_shown_only_once(antiphon):
    made = antiphon("keys", "create", "--name", "laptop")
    secret = made.out.strip()
    assert made.code == 0 and secret.startswith("ak-") and len(secret) >= 46
    assert "it can't be shown again" in made.err and secret not in made.err
    assert secret not in antiphon("keys", "list").out + antiphon("keys", "list", "--json").out


def test_a_new_key_encrypts_what_clients_keep(antiphon):
    assert antiphon("keys", "rotate-encryption").out == "the first key is made\n"
    assert "the newest of 2 keys" in antiphon("keys", "rotate-encryption").out


def test_keys_in_the_environment_are_rotated_there(antiphon):
    refused = antiphon("keys", "rotate-encryption", ANTIPHON_ENCRYPTION_KEYS="x")
    assert refused.code == 2 and "ANTIPHON_ENCRYPTION_KEYS" in refused.err


def test_a_key_has_all_scopes_but_admin_and_no_limits_unless_asked(antiphon):
    key = antiphon("keys", "create", "--name", "laptop", "--json").json
    assert key["scopes"] == ["responses:write", "responses:read", "models:read", "realtime", "audio", "sessions"]
    assert (key["tenant"], key["state"], key["expires_at"]) == ("default", "live", None)
    assert (key["requests_per_minute"], key["tokens_per_minute"], key["streams"]) == (None, None, None)
    assert "hash" not in key


def test_a_key_is_made_as_asked(antiphon):
    flags = ["--tenant", "ada", "--scopes", "admin,models:read", "--limit-requests", "60", "--limit-tokens", "9000", "--limit-streams", "2"]
    antiphon("keys", "create", "--name", "ci", *flags)
    heading, row = antiphon("keys", "list").out.splitlines()
    assert heading.split()[:3] == ["ID", "KEY", "NAME"]
    assert row.endswith("  models:read, admin; 60 requests/min, 9000 tokens/min, 2 streams") and " ada " in row


def test_a_usual_key_is_listed_in_few_words(antiphon):
    antiphon("keys", "create", "--name", "laptop", "--tenant", "", "--record", "always")
    assert antiphon("keys", "list").out.splitlines()[1].split(maxsplit=6)[2:] == [
        "laptop",
        "-",
        "live",
        "-",
        "all but admin; record always",
    ]


def test_a_key_s_profile_is_listed(antiphon):
    key = antiphon("keys", "create", "--name", "laptop", "--profile", "eugpt", "--json").json
    assert key["profile"] == "eugpt"
    assert antiphon("keys", "list").out.splitlines()[1].endswith("  all but admin; profile eugpt")


@pytest.mark.parametrize(("expires", "seconds"), [("30m", 1800), ("12h", 43200), ("30d", 2592000), ("8w", 4838400)])
def test_a_key_may_end_after_a_while(antiphon, expires, seconds):
    key = antiphon("keys", "create", "--name", "guest", "--expires", expires, "--json").json
    assert key["expires_at"] - key["created_at"] == seconds


def test_a_key_may_end_on_a_date(antiphon):
    key = antiphon("keys", "create", "--name", "guest", "--expires", "2999-01-31", "--json").json
    assert time.gmtime(key["expires_at"])[:5] == (2999, 1, 31, 0, 0)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--expires", "soon"], "neither a duration such as 30d nor a date"),
        (["--expires", "2001-01-01"], "has passed"),
        (["--scopes", "fly"], "is no list of scopes; there are responses:write"),
        (["--scopes", ","], "is no list of scopes; there are"),
        (["--limit-tokens", "0"], "must be 1 or more"),
        (["--limit-requests", "99999999999999999999"], "must be 1 or more, and at most 1000000000000"),
        (["--limit-streams", str(10**12 + 1)], "must be 1 or more, and at most 1000000000000"),
        (["--name", ""], "--name takes 1 to 256 characters on one line; got ''."),
        (["--name", " "], "--name takes 1 to 256 characters"),
        (["--name", "a\nb"], "--name takes 1 to 256 characters on one line; got 'a\\nb'."),
        (["--tenant", "a\rb"], "--tenant takes 1 to 256 characters"),
        (["--tenant", "t" * 3000], "--tenant takes 1 to 256 characters"),
    ],
)
def test_what_makes_no_sense_is_refused_and_makes_no_key(antiphon, flags, told):
    refused = antiphon("keys", "create", *(() if "--name" in flags else ("--name", "x")), *flags)
    assert refused.code == 2 and told in refused.err
    assert antiphon("keys", "list", "--json").json == []


def test_a_key_is_revoked_by_its_name_or_its_id_and_stays_listed(antiphon):
    by_id = antiphon("keys", "create", "--name", "one", "--json").json["id"]
    antiphon("keys", "create", "--name", "two")
    assert antiphon("keys", "revoke", by_id, "two").out.splitlines()[0] == f"{by_id} (one) is revoked"
    assert [key["state"] for key in antiphon("keys", "list", "--json").json] == ["revoked", "revoked"]
    assert antiphon("keys", "revoke", "two").code == 2


def test_a_name_that_two_keys_have_is_not_enough(antiphon):
    ids = [antiphon("keys", "create", "--name", "twin", "--json").json["id"] for _ in range(2)]
    refused = antiphon("keys", "revoke", "twin")
    assert refused.code == 2 and all(id in refused.err for id in ids)
    assert {key["state"] for key in antiphon("keys", "list", "--json").json} == {"live"}


def test_revoking_nothing_asks_what(antiphon):
    assert antiphon("keys", "revoke").code == 2


def test_a_store_that_forgets_has_no_keys(antiphon):
    refused = antiphon("keys", "create", "--name", "x", ANTIPHON_STORE__URL="memory")
    assert refused.code == 2 and "Keys need a store that lasts" in refused.err


# The store, and who uses it


@contextlib.contextmanager
def server_with_home(folder):
    """A server that keeps keys in a folder of its own; yields its port."""
    flags = {"models": [{"name": "parrot", "engine": "scripted"}], "home": str(folder), "logging.level": "error"}
    config = load(flags, None, {"HOME": str(folder)}, folder.parent, system_file=folder / "none.toml").config
    with background_server(config, is_persistent=True) as url:
        yield urlsplit(url).port


def created(antiphon, port, **environ):
    result = antiphon("keys", "create", "--name", "laptop", ANTIPHON_PORT=str(port), **environ)
    assert result.code == 0
    return result.err.splitlines()


def test_a_new_key_comes_with_its_store(antiphon, tmp_path, free_port):
    (line, _) = created(antiphon, free_port, ANTIPHON_HOME=str(tmp_path / "mine"))
    assert f" in the store {tmp_path / 'mine' / 'antiphon.sqlite3'}. Keep the key" in line
    key = antiphon("keys", "create", "--name", "b", "--json", ANTIPHON_PORT=str(free_port), ANTIPHON_HOME=str(tmp_path / "mine")).json
    assert key["store"] == str(tmp_path / "mine" / "antiphon.sqlite3")


def test_a_key_for_the_server_that_runs_needs_no_warning(antiphon, tmp_path, free_port):
    with server_with_home(tmp_path / "served") as port:
        for _ in range(2):  # the first key closes the server, the second finds it closed
            assert len(created(antiphon, port, ANTIPHON_HOME=str(tmp_path / "served"))) == 1
        assert len(created(antiphon, free_port, ANTIPHON_HOME=str(tmp_path / "served"))) == 1  # it listens elsewhere, and uses the home


def test_a_key_that_only_its_creation_asked_about_was_never_used(antiphon, tmp_path):
    home = {"ANTIPHON_HOME": str(tmp_path / "served")}
    with server_with_home(tmp_path / "served") as port:
        unused = antiphon("keys", "create", "--name", "unused", "--json", ANTIPHON_PORT=str(port), **home).json
        secret = antiphon("keys", "create", "--name", "used", ANTIPHON_PORT=str(port), **home).out.strip()
        ApiClient(f"http://127.0.0.1:{port}", secret).get("/v1/models")
    keys = {key["name"]: key for key in antiphon("keys", "list", "--json", **home).json}  # the server wrote when it stopped
    assert keys["unused"]["id"] == unused["id"] and keys["unused"]["last_used_at"] is None
    assert keys["used"]["last_used_at"] is not None


def test_a_client_that_claims_to_probe_has_used_its_key_elsewhere(antiphon, tmp_path):
    home = {"ANTIPHON_HOME": str(tmp_path / "served")}
    with server_with_home(tmp_path / "served") as port:
        secret = antiphon("keys", "create", "--name", "used", ANTIPHON_PORT=str(port), **home).out.strip()
        ApiClient(f"http://127.0.0.1:{port}", secret, is_probe=True).post("/v1/responses", {"model": "parrot", "input": "Hello."})
    assert antiphon("keys", "list", "--json", **home).json[0]["last_used_at"] is not None


def test_a_key_in_another_store_than_the_servers_is_warned_of(antiphon, tmp_path):
    with server_with_home(tmp_path / "served") as port:
        for _ in range(2):  # an open server takes every key, and a closed one not this
            (_, warning) = created(antiphon, port, ANTIPHON_HOME=str(tmp_path / "other"))
            assert f"the server at http://127.0.0.1:{port} has another store, so it does not know the key. If your server" in warning
            assert len(created(antiphon, port, ANTIPHON_HOME=str(tmp_path / "served"))) == 1


def test_a_key_that_no_server_uses_is_warned_of(antiphon, tmp_path, free_port):
    (_, warning) = created(antiphon, free_port)
    assert warning.startswith(f"antiphon: no server answers at http://127.0.0.1:{free_port}; the key is for one with this store. If")


def test_revoking_the_last_key_says_the_way_back(antiphon):
    for name in ("one", "two"):
        antiphon("keys", "create", "--name", name)
    assert antiphon("keys", "revoke", "one").err == ""
    assert antiphon("keys", "revoke", "two").err == (
        "antiphon: no valid key is left, so the server refuses every request: create a key with `antiphon keys create`, or set "
        "`require_keys = false` under `[server]`, which serves this machine without keys\n"
    )


def test_who_is_locked_out_is_told_the_way_back_by_the_server(antiphon, tmp_path):
    home = str(tmp_path / "served")
    with server_with_home(tmp_path / "served") as port:
        secret = antiphon("keys", "create", "--name", "last", ANTIPHON_HOME=home).out.strip()
        client, stranger = ApiClient(f"http://127.0.0.1:{port}", secret), ApiClient(f"http://127.0.0.1:{port}")
        assert client.list_models() == ["parrot"]
        antiphon("keys", "revoke", "last", ANTIPHON_HOME=home)
        for asking in (client, stranger):
            assert "or sets `server.require_keys = false` to serve its own machine without keys." in refusal(asking, port)
        antiphon("keys", "create", "--name", "next", ANTIPHON_HOME=home)
        while "require_keys" in (message := refusal(stranger, port)):  # until the server reads the keys again
            time.sleep(0.02)
        assert message.endswith("The operator of this server creates keys with `antiphon keys create`.")


def refusal(client, port):
    """The message of the 401 that a client gets, sooner or later."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"api-key": client.key or ""})
    while True:
        try:
            urllib.request.urlopen(request, timeout=30).close()
            time.sleep(0.02)
        except urllib.error.HTTPError as error:
            with error:
                assert error.code == 401
                return json.load(error)["error"]["message"]
