"""Webhooks of a running server: one for every end of a background response, and for no other."""

import openai
import pytest

from antiphon.runtime.webhooks.signing import new_secret
from antiphon.server.processes.run import background_server
from support.runtime.webhook_receiver import receiving
from support.server.scripted_server import SCRIPT, configured

SECRET = new_secret()


@pytest.fixture(scope="module")
def hook():
    with receiving() as made:
        yield made


@pytest.fixture(scope="module")
def base_url(tmp_path_factory, hook):
    webhooks = [{"name": "hook", "url": hook.url, "secret": SECRET, "networks": ["127.0.0.0/8"]}]
    models = {"parrot": {"engine": "scripted", **SCRIPT}, "slow": {"engine": "scripted", "pace_ms": 5, **SCRIPT}}
    settings = {"store.url": "memory", "background.running": 1, "webhooks": webhooks}
    with background_server(configured(tmp_path_factory.mktemp("home"), models, **settings)) as url:
        yield url


def events(client, hook, count):
    """All events so far, by response, as the official client reads them."""
    unwrapped = [client.webhooks.unwrap(request.body, request.headers, secret=SECRET) for request in hook.wait_for(count)]
    return {event.data.id: event.type for event in unwrapped}


def test_every_end_of_a_background_response_is_told(client, hook):
    hook.requests.clear()
    create = client.responses.create
    create(model="parrot", input="Not in the background.")
    expected = {
        create(model="parrot", input=text, background=True).id: event
        for text, event in (
            ("Hello.", "response.completed"),
            ("too long", "response.incomplete"),
            ("break midway", "response.failed"),
            ("break at once", "response.failed"),
        )
    }
    assert events(client, hook, 4) == expected
    running = create(model="slow", input="sing", background=True).id
    waiting = create(model="slow", input="sing", background=True, stream=True)
    waiting_id = next(event.response.id for event in waiting if event.type == "response.created")
    for response_id in (waiting_id, running):
        assert client.responses.cancel(response_id).status == "cancelled"
        client.responses.cancel(response_id)
    waiting.close()
    expected |= dict.fromkeys((waiting_id, running), "response.cancelled")
    last = create(model="parrot", input="Hello.", background=True, stream=True)
    last_id = next(event.response.id for event in last if event.type == "response.completed")
    assert events(client, hook, 7) == expected | {last_id: "response.completed"}
    assert len(hook.requests) == 7


def test_metrics_count_them(client, hook, base_url):
    hook.requests.clear()
    client.responses.create(model="parrot", input="Hello.", background=True)
    hook.wait_for(1)
    body = client._client.get(f"{base_url}/metrics").text
    assert 'antiphon_webhooks_pending{endpoint="hook"}' in body
    assert 'antiphon_webhook_attempts_total{endpoint="hook",outcome="delivered"}' in body


@pytest.fixture(scope="module")
def client(base_url):
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as made:
        yield made
