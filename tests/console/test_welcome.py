"""What the first visit hands to other programs, and how little the page asks for on its way."""

import ast
import tomllib

import pytest

from antiphon.server.processes.run import background_server
from support.console.browser import expect
from support.server.scripted_server import configured


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    models = {"parrot": {"engine": "scripted", "answers": [{"when": "", "say": "You said: {input}"}]}}
    with background_server(configured(tmp_path_factory.mktemp("home"), models, **{"logging.level": "error"}), is_persistent=True) as url:
        yield url


def sample(page, name):
    page.get_by_role("button", name=name, exact=True).click()
    expect(page.locator(".code [aria-pressed=true]")).to_have_text(name)
    return page.locator(".code code").inner_text()


def test_programs_are_pointed_at_this_address_by_one_paste(visit, url):
    page = visit.go("welcome").page
    page.get_by_role("heading", name="antiphon is ready").wait_for()
    page.locator(".models").get_by_text("parrot").wait_for()
    codex = tomllib.loads(sample(page, "Codex"))
    assert (codex["model"], codex["model_provider"]) == ("parrot", "antiphon")
    assert codex["model_providers"]["antiphon"] == {"name": "antiphon", "base_url": f"{url}/v1", "wire_api": "responses"}
    livekit, pipecat = sample(page, "LiveKit"), sample(page, "Pipecat")
    ast.parse(livekit)
    ast.parse(pipecat)
    assert f'base_url="{url}/v1"' in livekit and 'model="parrot"' in livekit
    assert f'base_url="{url.replace("http", "ws", 1)}/v1/realtime"' in pipecat and 'model="parrot"' in pipecat


@pytest.mark.long
def test_the_models_are_asked_for_once(visit):
    asked = []
    visit.page.on("request", lambda request: request.url.endswith("/v1/models") and asked.append(request.url))
    page = visit.go("welcome").page
    page.locator(".models").get_by_text("parrot").wait_for()
    page.get_by_role("link", name="Chat").first.click()
    page.get_by_role("button", name="Model: parrot").wait_for()
    assert len(asked) == 1
