"""`antiphon webhooks`: what an operator sees of endpoints and deliveries, and can do about them."""

import asyncio
import hashlib

import openai
import pytest

from antiphon.records import BackgroundRecord, DisabledEndpoint, WebhookDelivery
from antiphon.runtime.webhooks.signing import new_secret
from antiphon.stores.sql.store import SqlStore
from support.runtime.webhook_receiver import receiving
from support.stores.responses import response

pytestmark = pytest.mark.usefixtures("store")

SECRET = new_secret()


class Subscriber:
    """Wants one delivery of each response."""

    def deliveries(self, response):
        fields = {"endpoint": "hook", "event": "response.completed", "tenant": "", "response_id": response.id, "body": b"{}"}
        return [WebhookDelivery(id="wh_1", created_at=1, expires_at=2, **fields)]

    def max_pending(self, _endpoint):
        return 1

    def on_deliveries(self, dropped_ones):
        assert not dropped_ones


@pytest.fixture
def hook(home):
    with receiving() as made:
        (home / "antiphon.toml").write_text(
            f'[[webhooks]]\nname = "hook"\nurl = "{made.url}?token=sesame"\nsecret = "{SECRET}"\nnetworks = ["127.0.0.0/8"]\n'
        )
        yield made


def in_store(home, work):
    async def run():
        store = SqlStore(f"sqlite:///{home}/.local/share/antiphon/antiphon.sqlite3")
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def test_a_test_event_is_signed_and_its_outcome_is_told(antiphon, hook):
    assert antiphon("webhooks", "test").out.startswith("'hook' took response.completed in ")
    assert antiphon("webhooks", "test", "hook", "--event", "response.failed").code == 0
    events = [openai.OpenAI(api_key="none").webhooks.unwrap(each.body, each.headers, secret=SECRET) for each in hook.requests]
    assert [event.type for event in events] == ["response.completed", "response.failed"]
    hook.answers += [500]
    refused = antiphon("webhooks", "test")
    assert (refused.code, refused.err) == (1, "antiphon: The webhook 'hook' did not take the event: it answered with status 500.\n")


def test_an_unknown_endpoint_is_named_with_those_there_are(antiphon, hook, home):
    assert antiphon("webhooks", "test", "other").err == "antiphon: There is no webhook 'other'; there is 'hook'.\n"
    (home / "antiphon.toml").unlink()
    assert antiphon("webhooks", "test").code == 2
    assert "no webhooks are configured" in antiphon("webhooks", "list").err


def test_endpoints_are_listed_without_secrets(antiphon, hook):
    text = antiphon("webhooks", "list").out + antiphon("webhooks", "list", "--json").out + antiphon("config", "show").out
    assert SECRET not in text and "sesame" not in text
    [listed] = antiphon("webhooks", "list", "--json").json
    assert (listed["name"], listed["disabled_at"], listed["pending"]) == ("hook", None, 0)


def test_a_disabled_endpoint_is_enabled_again(antiphon, hook, home):
    antiphon("webhooks", "list")
    url_hash = hashlib.sha256(f"{hook.url}?token=sesame".encode()).digest()
    in_store(home, lambda store: store.webhooks.disable(DisabledEndpoint(name="hook", url_hash=url_hash, disabled_at=5), "gone"))
    assert antiphon("webhooks", "list").out.splitlines()[1].split()[:2] == ["hook", "disabled"]
    assert antiphon("webhooks", "enable", "hook").err == "antiphon: 'hook' is enabled\n"
    assert antiphon("webhooks", "list").out.splitlines()[1].split()[:2] == ["hook", "enabled"]
    assert antiphon("webhooks", "enable", "hook").err == "antiphon: 'hook' was not disabled\n"


def test_deliveries_are_listed_and_sent_again(antiphon, hook, home):
    assert antiphon("webhooks", "deliveries").err == "antiphon: there are no such deliveries\n"

    async def fail_one(store):
        store.webhooks.subscribe(Subscriber())
        await store.background.add(response("resp_1", "queued"), BackgroundRecord(key_id=None, request=None, is_streamed=False), None)
        await store.background.finish(response("resp_1"), None)
        await store.webhooks.disable(DisabledEndpoint(name="hook", url_hash=b"", disabled_at=5), "gone")

    in_store(home, fail_one)
    row = antiphon("webhooks", "deliveries", "--status", "failed").out.splitlines()[1]
    assert row.split()[:5] == ["wh_1", "hook", "response.completed", "resp_1", "failed"] and row.endswith("gone")
    assert antiphon("webhooks", "deliveries", "other").out == ""
    assert antiphon("webhooks", "resend", "wh_1").code == 0
    [listed] = antiphon("webhooks", "deliveries", "--status", "pending", "--json").json
    assert (listed["id"], listed["attempts"], listed["body"]) == ("wh_1", 0, "{}")
    refused = antiphon("webhooks", "resend", "wh_1", "wh_2")
    assert refused.code == 2 and "no delivery 'wh_1' and 'wh_2' that" in refused.err
    assert antiphon("webhooks", "resend").code == antiphon("webhooks", "deliveries", "--limit", "0").code == 2


def test_a_store_in_memory_has_no_deliveries_to_show(antiphon, hook):
    refused = antiphon("webhooks", "deliveries", ANTIPHON_STORE__URL="memory")
    assert refused.code == 2 and "`store.url` is `memory`" in refused.err
    assert antiphon("webhooks", "list", ANTIPHON_STORE__URL="memory").code == 0


def test_a_new_secret_is_one_that_the_configuration_takes(antiphon, hook, home):
    secret = antiphon("webhooks", "secret").out.strip()
    (home / "antiphon.toml").write_text(f'[[webhooks]]\nname = "hook"\nurl = "https://example.com"\nsecret = "{secret}"\n')
    assert antiphon("config", "check").code == 0


def test_a_secret_that_is_not_set_is_found_by_the_check(antiphon, home):
    (home / "antiphon.toml").write_text('[[webhooks]]\nname = "hook"\nurl = "https://example.com"\nsecret_env = "HOOK_SECRET"\n')
    problem = antiphon("config", "check").err
    assert problem == f"antiphon: {home / 'antiphon.toml'}:4: The secret of the webhook 'hook' is to be in HOOK_SECRET, which is not set.\n"
    wrong = antiphon("config", "check", HOOK_SECRET="sesame")
    assert wrong.code == 2 and "HOOK_SECRET, of the webhook 'hook': expected secrets" in wrong.err and "sesame" not in wrong.err
    assert antiphon("config", "check", HOOK_SECRET=SECRET).code == 0
    refused = antiphon("serve")
    assert (refused.code, refused.err) == (2, problem)
