"""The page's frame: tabs, keys, colours, the first visit, signing in."""

import asyncio
import contextlib
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from antiphon.server.console.state import ConsoleAbilities, ConsoleState
from antiphon.server.processes.run import background_server
from antiphon.wire.codec.types import encode
from antiphon.wire.http.start import StartStatus, WeightsStatus
from support.console.browser import Visit, axe_findings, expect
from support.console.node import packages
from support.server.key_server import KeyServer
from support.server.scripted_server import SCRIPT, configured

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}}
QUIET = {"logging.level": "error"}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("shell"), MODELS, **QUIET)) as url:
        yield url


def test_the_first_visit_is_shown_around_and_the_next_one_is_at_the_chat(browser, tmp_path):
    with background_server(configured(tmp_path, MODELS, **QUIET)) as url:
        visit = Visit(browser, url)
        page = visit.go().page
        page.get_by_role("heading", name="antiphon is ready").wait_for()
        page.get_by_role("status").get_by_text("Ready · 1 model").wait_for()
        page.get_by_role("button", name="Ask it").click()
        page.get_by_role("article").get_by_text("You said: What is a fugue").wait_for()
        page.get_by_role("button", name="Answer again").wait_for()
        page.goto("about:blank")
        visit.go()
        page.get_by_role("heading", name="Ask something").wait_for()
        expect(page).to_have_title("Chat · antiphon")
        visit.close()


@pytest.mark.long
def test_the_first_visit_shows_a_call_of_a_tool(visit):
    page = visit.go("welcome").page
    page.get_by_role("button", name="Show me").click()
    page.get_by_text("waits for a result").wait_for()


@pytest.mark.long
def test_each_tab_has_one_heading_of_the_first_level(visit):
    for tab in ("Chat", "Talk", "Duplex", "Events", "Operate"):
        page = visit.go(tab.lower()).page
        page.get_by_role("heading", level=1, name=tab, exact=True).wait_for()
        page.get_by_role("region", name=tab, exact=True).locator("> *").first.wait_for()
        expect(page.get_by_role("heading", level=1)).to_have_count(1)


@pytest.mark.long
def test_a_question_mark_lists_the_keys_and_digits_go_to_the_tabs(visit):
    page = visit.go("welcome").page
    page.get_by_role("heading", name="antiphon is ready").wait_for()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    dialog.get_by_text("Open or close the events below").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("1")
    page.get_by_role("link", name="Chat", exact=True).and_(page.locator("[aria-current=page]")).wait_for()
    page.keyboard.press("Control+j")
    page.get_by_role("region", name="Messages").wait_for()


@pytest.mark.long
def test_keys_without_ctrl_can_be_switched_off(visit):
    page = visit.go("welcome").page
    page.get_by_role("heading", name="antiphon is ready").wait_for()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    dialog.get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("1")
    page.keyboard.press("?")
    page.get_by_role("button", name="Keys").click()  # a modal dialog would be in the way
    expect(dialog).to_have_count(1)
    expect(page).to_have_url(re.compile("#/welcome$"))
    dialog.get_by_role("checkbox").check()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("1")
    expect(page).to_have_url(re.compile("#/chat"))


@pytest.mark.long
def test_a_choice_of_colours_is_kept(visit):
    page = visit.go("welcome").page
    page.get_by_role("button", name="Colours: system").click()
    page.get_by_role("button", name="Colours: light").click()
    expect(page.locator("html")).to_have_css("color-scheme", "dark")
    page.reload()
    page.get_by_role("button", name="Colours: dark").wait_for()
    expect(page.locator("html")).to_have_css("color-scheme", "dark")


@pytest.mark.long
def test_the_first_visit_shows_how_a_program_asks_at_this_address(visit):
    page = visit.go("welcome").page
    page.get_by_role("heading", name="antiphon is ready").wait_for()
    page.get_by_text('model="parrot"').wait_for()
    expect(page.locator(".code pre")).to_contain_text(f'base_url="{visit.url}/v1"')
    page.get_by_role("button", name="curl").click()
    page.get_by_text(f"curl {visit.url}/v1/responses").wait_for()


def weights(name, purpose, state, *, is_fetched):
    speed = {"bytes_per_s": 24_000_000, "eta_s": 21.0} if state == "fetching" and is_fetched else {"bytes_per_s": None, "eta_s": None}
    return WeightsStatus(
        name=name, purpose=purpose, state=state, bytes=612_000_000 if is_fetched else 0, bytes_total=1_117_000_000, **speed
    )


def state_of(start, *, is_ready=False):
    return ConsoleState(
        "antiphon", "0.1.0", False, is_ready, ConsoleAbilities(True, False, False), start.weights, start.reason, start.message
    )


@pytest.mark.long
def test_while_weights_are_fetched_the_page_says_how_far_they_are_and_goes_on_by_itself(visit):
    ears = weights("moonshine", "hearing", "fetching", is_fetched=False)
    start = StartStatus(reason="fetching", weights=[weights("parrot", "answers", "fetching", is_fetched=True), ears])
    states = [state_of(start)]
    visit.page.route("**/console/state", lambda route: route.fulfill(body=encode(states[0]), content_type="application/json"))
    page = visit.go("welcome").page
    page.get_by_role("heading", name="antiphon is almost ready").wait_for()
    expect(page.get_by_role("progressbar", name=re.compile("parrot"))).to_have_attribute("aria-valuenow", "55")
    page.get_by_text("24 MB/s · about 21 s").wait_for()
    page.get_by_text("next, 1.12 GB").wait_for()
    page.get_by_role("status").get_by_text("Fetching weights").wait_for()
    assert axe_findings(page, packages().folder) == []
    states[0] = state_of(StartStatus(reason="failed", message="There is no space left.", weights=[]))
    page.get_by_role("alert").get_by_text("There is no space left.").wait_for()
    states[0] = ConsoleState("antiphon", "0.1.0", False, True, ConsoleAbilities(True, False, False), [])
    page.get_by_role("heading", name="antiphon is ready").wait_for()


@pytest.mark.long
@pytest.mark.parametrize("colour_scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_first_visit(visit, colour_scheme):
    page = visit.go("welcome").page
    page.emulate_media(color_scheme=colour_scheme)
    page.get_by_role("status").get_by_text("Ready · 1 model").wait_for()
    assert axe_findings(page, packages().folder) == []


def test_a_key_is_asked_for_once_and_kept_nowhere(browser, tmp_path):
    server = KeyServer(tmp_path, MODELS)
    with ThreadPoolExecutor() as threads:  # Playwright has a loop in ours
        key = threads.submit(asyncio.run, server.key()).result()
    with server.serving() as url:
        visit = Visit(browser, url)
        visit.expect("401")  # the page asks whether it is signed in
        page = visit.go("chat").page
        dialog = page.get_by_role("dialog", name="Sign in")
        dialog.get_by_label("Key").fill("ak-nobody")
        dialog.get_by_role("button", name="Sign in").click()
        dialog.get_by_text("401 invalid_api_key").wait_for()
        dialog.get_by_label("Key").fill(key)
        dialog.get_by_label("Key").press("Enter")
        dialog.wait_for(state="detached")
        ready = page.get_by_role("status").get_by_text("Ready · 1 model")
        ready.wait_for()
        page.reload()
        ready.wait_for()
        kept = page.evaluate("JSON.stringify({...localStorage, ...sessionStorage}) + location.href + document.documentElement.outerHTML")
        assert not [secret for secret in (key, "ck_", "cc_") if secret in kept]
        page.get_by_role("button", name="Sign out").click()
        dialog.wait_for()
        page.reload()
        dialog.wait_for()
        visit.close()


@pytest.mark.long
def test_signing_in_is_asked_for_until_it_is_done_and_then_one_can_write(browser, tmp_path):
    server = KeyServer(tmp_path, MODELS)
    with ThreadPoolExecutor() as threads:  # Playwright has a loop in ours
        key = threads.submit(asyncio.run, server.key()).result()
    with server.serving() as url, contextlib.closing(Visit(browser, url)) as visit:
        visit.expect("401")  # the page asks whether it is signed in
        page = visit.go("chat").page
        field = page.get_by_role("dialog", name="Sign in").get_by_label("Key")
        field.wait_for()
        for _ in range(3):  # browsers close a dialog at the second one, whatever it says
            page.keyboard.press("Escape")
        page.locator("dialog").evaluate("dialog => dialog.close()")  # as the key or the gesture of a phone for going back
        expect(page.locator("dialog")).to_have_attribute("open", "")
        field.fill(key)
        field.press("Enter")
        expect(page.get_by_label("Message", exact=True)).to_be_focused()


@pytest.mark.long
def test_a_key_that_lists_nothing_is_not_told_that_there_is_nothing(browser, tmp_path):
    server = KeyServer(tmp_path, MODELS)
    with ThreadPoolExecutor() as threads:
        key = threads.submit(asyncio.run, server.key(scopes=("realtime",))).result()
    with server.serving() as url, contextlib.closing(Visit(browser, url)) as visit:
        visit.expect("401|403")
        page = visit.go("chat").page
        dialog = page.get_by_role("dialog", name="Sign in")
        dialog.get_by_label("Key").fill(key)
        dialog.get_by_label("Key").press("Enter")
        page.get_by_text("The chats could not be listed.").wait_for()
        expect(page.get_by_role("button", name="Try again")).to_have_count(0)  # the key stays as it is
        page.get_by_role("link", name="Talk", exact=True).click()
        page.locator("button.big").get_by_text("the models could not be listed").wait_for()
