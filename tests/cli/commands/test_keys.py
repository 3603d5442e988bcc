"""`antiphon keys`, on a machine that has none."""

import time

import pytest


def test_a_key_is_all_that_is_printed_and_is_shown_only_once(antiphon):
    made = antiphon("keys", "create", "--name", "laptop")
    secret = made.out.strip()
    assert made.code == 0 and secret.startswith("ak-") and len(secret) >= 46
    assert "it can't be shown again" in made.err and secret not in made.err
    assert secret not in antiphon("keys", "list").out + antiphon("keys", "list", "--json").out


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
    ],
)
def test_what_makes_no_sense_is_refused_and_makes_no_key(antiphon, flags, told):
    refused = antiphon("keys", "create", "--name", "x", *flags)
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
