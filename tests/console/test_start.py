"""The page in front of a server that still fetches its weights: what is asked waits, and goes on by itself."""

import asyncio
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from antiphon.weights.catalogue import CatalogueModel, ModelFile
from support.console.browser import Visit, axe_findings, expect
from support.console.node import packages
from support.console.sound import DEPRECATED, MICROPHONE
from support.server.early_server import starting
from support.server.key_server import KeyServer
from support.server.scripted_server import configured

MODELS = {"parrot": {"engine": "scripted", "answers": [{"when": "", "say": "You said: {input}"}]}}
FILE = ModelFile(path="a.gguf", size_bytes=1000, sha256="0" * 64, sources=())
WEIGHTS = CatalogueModel(name="tiny", kind="llm", description="", licence="Apache-2.0", homepage="", files=(FILE,))


class Slow:
    """Weights of which seven tenths come, and the rest when a test says."""

    def __init__(self, config):
        self.config, self.may_end = config, threading.Event()

    def __call__(self, watch):
        with watch.fetching(WEIGHTS), watch.fetching_file(WEIGHTS, FILE, lambda *_progress: None) as report:
            report(f"fetching {FILE.path}", 700, FILE.size_bytes)
            self.may_end.wait()
        return self.config


@pytest.fixture
def slow(tmp_path):
    """A server that refuses at once what it can't answer yet."""
    slow = Slow(configured(tmp_path, MODELS, **{"logging.level": "error", "server.start_wait_s": 0}))
    with starting(slow.config, slow) as (slow.url, _early):
        yield slow
        slow.may_end.set()


@pytest.fixture
def visit(browser, slow):
    visit = Visit(browser, slow.url)
    visit.expect("503")
    yield visit
    visit.close()


def told(page):
    return page.get_by_role("region", name="The start of the server")


def test_what_is_asked_while_the_server_starts_is_answered_once_it_is_ready(visit, slow):
    page = visit.go("chat").page
    told(page).get_by_text("The server is starting").wait_for()
    expect(told(page).get_by_role("progressbar")).to_have_attribute("aria-valuenow", "70")
    draft = page.locator("#draft")
    draft.fill("Are you there?")
    draft.press("Enter")
    for part in ("Settings", "Sessions", "Keys and usage"):
        page.get_by_role("link", name="Operate", exact=True).click()
        page.get_by_role("navigation", name="Operate").get_by_role("link", name=part).click()
    page.get_by_role("link", name="Talk", exact=True).click()
    page.locator("button.big").get_by_text("the server is starting").wait_for()
    for colour_scheme in ("light", "dark"):
        page.emulate_media(color_scheme=colour_scheme)
        assert axe_findings(page, packages().folder) == []
    expect(page.get_by_role("alert")).to_have_count(0)
    slow.may_end.set()
    told(page).wait_for(state="detached")
    page.locator("button.big").get_by_text("press, then speak").wait_for()
    page.get_by_role("link", name="Chat", exact=True).click()
    page.get_by_role("log").get_by_text("You said: Are you there?").wait_for()
    page.get_by_role("link", name="Operate", exact=True).click()
    page.get_by_text("Updates live").wait_for()


@pytest.mark.long
@pytest.mark.parametrize("line", ["websocket", "webrtc"])
def test_a_conversation_that_is_begun_while_the_server_starts_begins_once_it_is_ready(visit, slow, line):
    visit.expect(DEPRECATED)
    visit.context.add_init_script(MICROPHONE)
    visit.page.add_init_script(f"localStorage.setItem('antiphon.options', JSON.stringify({{'talk.line': {line!r}}}));")
    model = {"id": "parrot", "object": "model", "created": 1, "owned_by": "us"}
    visit.page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": [model]}))  # as if known from before
    page = visit.go("talk").page
    page.locator("button.big").get_by_text("press, then speak").click()
    page.locator("button.big").get_by_text("the server is starting").wait_for()
    slow.may_end.set()
    page.locator("button.big").get_by_text("Listening").wait_for()
    page.locator("button.big").click()
    page.locator("button.big").get_by_text("press, then speak").wait_for()


@pytest.mark.long
def test_who_needs_a_key_sees_the_start_and_is_asked_once_it_is_ready(browser, tmp_path):
    server = KeyServer(tmp_path, MODELS, **{"server.start_wait_s": 0})
    with ThreadPoolExecutor() as threads:  # Playwright has a loop in ours
        key = threads.submit(asyncio.run, server.key()).result()
    slow = Slow(server.config)
    with starting(slow.config, slow) as (url, _early), contextlib.closing(Visit(browser, url)) as visit:
        visit.expect("401|503")
        page = visit.go().page
        page.get_by_role("heading", name="antiphon is almost ready").wait_for()
        page.get_by_text("asks for your key as soon as the model is there").wait_for()
        page.get_by_role("button", name="Ask it").click()
        told(page).get_by_text("It asks for your key once it is ready.").wait_for()
        slow.may_end.set()
        page.get_by_role("dialog", name="Sign in").get_by_label("Key").fill(key)
        page.get_by_role("dialog", name="Sign in").get_by_label("Key").press("Enter")
        page.get_by_role("log").get_by_text("You said: What is a fugue").wait_for()


@pytest.mark.long
def test_a_phone_shows_a_start_that_failed(browser, slow):
    visit = Visit(browser, slow.url, viewport={"width": 390, "height": 844})
    visit.expect("503")
    state = json.loads(visit.context.request.get(f"{slow.url}/console/state").text())
    state |= {"reason": "failed", "message": "There is no space left.", "weights": []}
    visit.page.route("**/console/state", lambda route: route.fulfill(json=state))
    page = visit.go("chat").page
    told(page).get_by_text("There is no space left.").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.close()
