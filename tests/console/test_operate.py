"""Operate: what an operator sees live, and does: keys, workers, sessions, settings, the log."""

import asyncio
import contextlib
import json
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import pytest

from antiphon.server.processes.run import background_server
from support.console.browser import Visit, axe_findings, expect, until
from support.console.node import packages
from support.server.key_server import KeyServer
from support.server.one_place import serving_one_place
from support.server.scripted_server import SCRIPT, configured

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}, "single": {"engine": "scripted", "sessions": 1}}
ADMIN = ("responses:write", "responses:read", "models:read", "realtime", "sessions", "admin")

HEADINGS = {"Now": "Answers under way", "Workers and queue": "In the queue", "Keys and usage": "Usage"}

TALK = """async seconds => {
    const socket = new WebSocket(location.origin.replace('http', 'ws') + '/v1/realtime?model=parrot', ['realtime']);
    window.ended = new Promise(done => { socket.onclose = event => done(event.code); });
    const heard = kind => new Promise(done => socket.addEventListener('message', function look(event) {
        const message = JSON.parse(event.data);
        if (message.type === kind) { socket.removeEventListener('message', look); done(message); }
    }));
    const { session } = await heard('session.created');
    window.leave = () => { socket.close(); return window.ended; };
    if (!seconds) return session.id;
    const input = { transcription: { model: 'any' }, turn_detection: null };
    socket.send(JSON.stringify({ type: 'session.update', session: { type: 'realtime', audio: { input } } }));
    const sound = Uint8Array.from({ length: 24000 * seconds * 2 }, (_, byte) => (byte % 2 ? (byte >> 7) % 2 ? 32 : 224 : 0));
    const audio = btoa(Array.from(sound, byte => String.fromCharCode(byte)).join(''));
    socket.send(JSON.stringify({ type: 'input_audio_buffer.append', audio }));
    socket.send(JSON.stringify({ type: 'input_audio_buffer.commit' }));
    const done = heard('response.done');
    socket.send(JSON.stringify({ type: 'response.create' }));
    await done;
    return session.id;
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    config = configured(tmp_path_factory.mktemp("operate"), MODELS, **{"recording.when": "always", "logging.level": "info"})
    with background_server(config, is_persistent=True) as url:
        yield url


def section(visit, name):
    """A part of the tab, once its figures are live."""
    page = visit.go(f"operate/{name}").page
    page.get_by_text("Updates live").wait_for()
    return page


def row(page, table, text):
    return page.get_by_role("table", name=table).get_by_role("row").filter(has_text=text)


def ask(url, text, key=None):
    body = json.dumps({"model": "parrot", "input": text}).encode()
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    with urlopen(Request(f"{url}/v1/responses", body, headers)) as reply:
        return json.load(reply)["id"]


@pytest.mark.long
def test_figures_and_responses_come_without_a_reload(visit, url):
    page = section(visit, "responses")
    id = ask(url, "Tell me of the harbour")
    row(page, "Responses", id).get_by_role("button", name=id).click()
    details = page.get_by_role("region", name="Details")
    details.get_by_text('"Tell me of the harbour"').wait_for()
    details.get_by_text('"You said: Tell me of the harbour"').first.wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Now", exact=True).click()
    page.get_by_role("region", name="Answers, last hour").get_by_text(re.compile("^[1-9]")).first.wait_for()


def test_a_worker_is_drained_and_resumed_after_asking(visit):
    page = section(visit, "workers")
    worker = row(page, "Workers", "single-1")
    worker.get_by_role("button", name="Drain").click()
    worker.get_by_role("button", name="No", exact=True).click()
    expect(worker).to_contain_text("idle")
    worker.get_by_role("button", name="Drain").click()
    worker.get_by_role("group", name="No new conversations?").get_by_role("button", name="Drain").click()
    worker.get_by_text("draining").wait_for()
    worker.get_by_role("button", name="Resume").click()
    worker.get_by_text("idle").wait_for()


@pytest.mark.long
def test_a_live_session_is_closed_and_its_recording_deleted(visit):
    page = section(visit, "sessions")
    id = page.evaluate(TALK, 0)
    session = row(page, "Live sessions", id)
    session.get_by_role("button", name="Close").click()
    session.get_by_role("button", name="Close it").click()
    assert page.evaluate("window.ended") == 1008
    page.get_by_text("No session is under way.").wait_for()
    recording = row(page, "Recordings", id)
    recording.get_by_role("button", name="Delete").click()
    recording.get_by_role("group", name="For good?").get_by_role("button", name="Delete").click()
    recording.wait_for(state="detached")


def test_the_recordings_of_short_sessions_come_without_a_reload(visit):
    page = section(visit, "sessions")
    for _ in range(5):
        id = page.evaluate(TALK, 0)
        page.evaluate("window.leave()")
        row(page, "Recordings", id).get_by_role("button", name="Replay").wait_for()


@pytest.mark.long
def test_a_recording_is_replayed_in_step(visit):
    page = section(visit, "sessions")
    id = page.evaluate(TALK, 2)
    row(page, "Live sessions", id).wait_for()
    page.evaluate("window.leave()")
    recording = row(page, "Recordings", id)
    with page.expect_download() as download:
        recording.get_by_role("button", name="Download").click()
    assert {"events.jsonl", "in.wav", "meta.json"} <= {
        name.rpartition("/")[2] for name in zipfile.ZipFile(download.value.path()).namelist()
    }
    recording.get_by_role("button", name="Replay").click()
    replay = page.get_by_role("region", name="Replay", exact=True)
    clock = replay.get_by_role("slider", name="Time")
    replay.get_by_role("list", name="What was said").get_by_text("speech of 2000 ms").first.wait_for()
    expect(replay.get_by_role("button", name=re.compile("response.created"))).to_have_count(1)
    expect(clock).to_have_attribute("aria-valuemax", re.compile(r"^([2-9]|\d{2,})$"))
    clock.press("End")
    expect(clock).to_have_attribute("aria-valuenow", clock.get_attribute("aria-valuemax"))
    replay.get_by_role("region", name="The picked message").wait_for()
    clock.press("Home")
    expect(clock).to_have_attribute("aria-valuenow", "0")
    clock.press("Space")
    replay.locator("[role=slider]:not([aria-valuenow='0'])").wait_for()
    replay.get_by_role("button", name="Play", exact=True).wait_for()
    assert axe_findings(page, packages().folder) == []


@pytest.mark.long
def test_settings_have_their_origins_and_no_secret(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("UPSTREAM_SECRET", "sk-very-secret")
    models = {**MODELS, "far": {"engine": "chat", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "UPSTREAM_SECRET"}}
    with background_server(configured(tmp_path, models, **{"queue.size": 77})) as url:
        visit = Visit(browser, url)
        page = section(visit, "settings")
        page.keyboard.press("/")
        expect(page.get_by_label("Filter")).to_be_focused()
        page.keyboard.type("queue.size")
        setting = row(page, "Settings", "queue.size")
        setting.get_by_text("77").wait_for()
        page.get_by_label("Filter").fill("")
        page.get_by_label("Only what was set").check()
        row(page, "Settings", "models").get_by_role("button").click()
        page.get_by_role("region", name="Details").wait_for()
        assert "sk-very-secret" not in page.content()
        visit.close()


@pytest.mark.long
def test_the_log_is_followed_and_filtered(visit, url):
    page = section(visit, "log")
    lines = page.get_by_role("region", name="Lines of the log")
    lines.get_by_text("path=/v1/models").first.wait_for()
    ask(url, "Note this")
    lines.get_by_text("path=/v1/responses").last.wait_for()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter")).to_be_focused()
    page.keyboard.type("no-line-has-this")
    page.get_by_text("No line is like that.").wait_for()
    page.keyboard.press("Escape")
    lines.press("ArrowUp")
    page.get_by_text('"timestamp"').wait_for()


@pytest.mark.long
def test_an_admin_key_makes_keys_and_revokes_them(browser, tmp_path):
    server = KeyServer(tmp_path, MODELS)
    with ThreadPoolExecutor() as threads:  # Playwright has a loop in ours
        plain = threads.submit(asyncio.run, server.key()).result()
        admin = threads.submit(asyncio.run, server.key(scopes=ADMIN)).result()
    with server.serving() as url:
        visit = Visit(browser, url)
        visit.expect("40[13]")
        page = visit.go("operate/keys").page
        wanted = page.get_by_role("heading", name="Operating needs a key with the scope admin")
        field = page.get_by_role("dialog", name="Sign in").get_by_label("Key")
        field.fill(plain)
        expect(wanted).to_have_count(0)  # one question at a time
        field.press("Enter")
        wanted.wait_for()
        page.get_by_label("Admin key").fill(admin)
        page.get_by_label("Admin key").press("Enter")
        page.get_by_role("button", name="New key").click()
        form = page.get_by_role("dialog", name="New key")
        form.get_by_label("Name").fill("kiosk")
        form.get_by_role("checkbox", name=re.compile("^realtime")).uncheck()
        form.get_by_label("Requests a minute").fill("5")
        form.get_by_role("button", name="Make the key").click()
        shown = page.get_by_role("dialog", name="The new key")
        expect(shown.get_by_label("Key")).to_have_value(re.compile("^ak-"))
        value = shown.get_by_label("Key").input_value()
        page.keyboard.press("Escape")
        shown.wait_for(state="detached")
        assert value not in page.content()
        ask(url, "Count me", value)
        page.get_by_role("link", name="Now", exact=True).click()
        page.get_by_role("link", name="Keys and usage").click()
        kiosk = row(page, "Keys", "kiosk")
        kiosk.get_by_text(re.compile("[01] of 5 requests/min")).wait_for()  # it fills up again as time goes by
        expect(kiosk).not_to_contain_text("realtime")
        kiosk.get_by_role("button", name="Revoke").click()
        kiosk.get_by_role("group").get_by_role("button", name="Revoke").click()
        kiosk.wait_for(state="detached")
        with pytest.raises(OSError, match="401"):
            ask(url, "Once more", value)
        kept = page.evaluate("JSON.stringify({...localStorage, ...sessionStorage}) + location.href + document.documentElement.outerHTML")
        assert not [secret for secret in (value, admin, plain, "ck_") if secret in kept]
        visit.close()


@pytest.mark.long
def test_the_key_of_an_operator_is_not_replaced_by_one_that_was_asked_for_before(browser, tmp_path):
    server, held, is_admin = KeyServer(tmp_path, MODELS), [], []
    with ThreadPoolExecutor() as threads:  # Playwright has a loop in ours
        plain = threads.submit(asyncio.run, server.key()).result()
        admin = threads.submit(asyncio.run, server.key(scopes=ADMIN)).result()

    def hold(route):
        if held or "ak-" in route.request.headers.get("authorization", ""):
            return route.continue_()
        held.append(route)
        until(page, lambda: is_admin)
        with urlopen(Request(f"{url}/console/keys", b"", {"authorization": f"Bearer {plain}"})) as reply:
            route.fulfill(body=reply.read(), content_type="application/json")

    with server.serving() as url, contextlib.closing(Visit(browser, url)) as visit:
        visit.expect("401")
        page = visit.go("chat").page
        field = page.get_by_role("dialog", name="Sign in").get_by_label("Key")
        field.fill(plain)
        field.press("Enter")
        page.get_by_role("button", name="Model: parrot").wait_for()
        page.route("**/console/keys", hold)
        page.route("**/v1/responses", lambda route: route.fulfill(status=401, json={"error": {"message": "It has ended."}}))
        page.get_by_label("Message", exact=True).fill("Hello")
        page.get_by_label("Message", exact=True).press("Enter")
        until(page, lambda: held)
        page.get_by_role("link", name="Operate", exact=True).click()
        page.get_by_label("Admin key").fill(admin)
        page.get_by_label("Admin key").press("Enter")
        page.get_by_text("Updates live").wait_for()
        is_admin.append(True)
        page.get_by_text("It has ended.").wait_for(state="attached")
        expect(page.get_by_text("Updates live")).to_be_visible()


@pytest.mark.long
def test_usage_is_drawn_by_key_and_by_model(visit, url):
    ask(url, "Count this")
    page = section(visit, "keys")
    page.get_by_role("img", name="Usage by key").wait_for()
    page.get_by_role("button", name="by model").click()
    page.get_by_role("img", name="Usage by model").wait_for()
    row(page, "Usage", "parrot").wait_for()


@pytest.mark.long
def test_what_is_lost_is_not_shown_as_live(visit):
    visit.expect("ERR_|Failed to load|503")
    page = section(visit, "now")
    page.route("**/updates", lambda route: route.abort())
    page.get_by_role("link", name="Events", exact=True).click()
    page.get_by_role("link", name="Operate", exact=True).click()
    page.get_by_text("Not live since").wait_for()
    page.unroute("**/updates")
    page.get_by_text("Updates live").wait_for()


@pytest.mark.long
def test_headers_sort_by_keyboard(visit):
    page = section(visit, "models")
    header = page.get_by_role("columnheader", name="Model", exact=True)
    header.get_by_role("button").press("Enter")
    expect(header).to_have_attribute("aria-sort", "ascending")
    header.get_by_role("button").press("Enter")
    names = page.get_by_role("table", name="Models").locator("td:first-child")
    expect(names).to_have_text(["single", "parrot"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("colour_scheme", "parts"),
    [("light", ("Now", "Models", "Workers and queue", "Responses", "Settings")), ("dark", ("Now", "Keys and usage", "Log"))],
)
def test_axe_finds_nothing_in_any_part(visit, url, colour_scheme, parts):
    ask(url, "Hello")
    page = section(visit, "now")
    page.emulate_media(color_scheme=colour_scheme)
    found = []
    for name in parts:
        page.get_by_role("navigation", name="Operate").get_by_role("link", name=name).click()
        page.get_by_role("link", name=name, exact=True).and_(page.locator("[aria-current=page]")).wait_for()
        page.get_by_role("heading", name=HEADINGS.get(name, name)).first.wait_for()
        found += [(name, *finding) for finding in axe_findings(page, packages().folder)]
    assert found == []


WAIT = """() => {
    const socket = new WebSocket(location.origin.replace('http', 'ws') + '/v1/realtime?model=far&queue=1', ['realtime']);
    const told = new Promise(done => { socket.onmessage = ({data}) => done(JSON.parse(data)); });
    socket.ended = new Promise(done => { socket.onclose = ({code}) => done(code); });
    window.sockets = [...(window.sockets ?? []), socket];
    return told;
}"""
"""A client of the only place, or in the queue for it; the first event that it gets."""


@pytest.mark.long
def test_who_waits_is_sent_off_and_the_worker_is_drained_and_removed(browser, tmp_path):
    with serving_one_place(tmp_path) as place, contextlib.closing(Visit(browser, place.url)) as visit:
        page = section(visit, "workers")
        worker = row(page, "Workers", "far")
        worker.get_by_text("idle").wait_for()
        assert page.evaluate(WAIT)["type"] == "session.created"
        row(page, "Being served", "far").wait_for()
        ticket = page.evaluate(WAIT)["ticket_id"]
        waiting = row(page, "In the queue", ticket)
        waiting.get_by_role("button", name="Send off").click()
        waiting.get_by_role("group", name="Send it off?").get_by_role("button", name="Send off").click()
        waiting.wait_for(state="detached")
        assert page.evaluate("window.sockets[1].ended") == 1013
        worker.get_by_role("button", name="Drain").click()
        worker.get_by_role("group").get_by_role("button", name="Drain").click()
        worker.get_by_text("draining, 1 left").wait_for()
        worker.get_by_role("button", name="Resume").click()
        worker.get_by_text("busy").wait_for()
        worker.get_by_role("button", name="Remove").click()
        worker.get_by_role("group", name="Until it joins again?").get_by_role("button", name="Remove").click()
        page.get_by_text("It is removed.").wait_for()
        expect(row(page, "Being served", "far")).to_have_count(1)  # what is under way goes on
        page.evaluate("window.sockets[0].close()")
        page.get_by_text("No worker yet").wait_for()


@pytest.mark.long
def test_upstreams_are_shown_with_their_health(browser, url, tmp_path):
    upstreams = [{"name": "near", "base_url": f"{url}/v1"}, {"name": "gone", "base_url": "http://127.0.0.1:9/v1"}]
    models = {"many": {"engine": "chat", "quirks": "generic", "model": "parrot", "upstreams": upstreams}}
    with background_server(configured(tmp_path, models)) as many, contextlib.closing(Visit(browser, many)) as visit:
        page = section(visit, "models")
        for number in range(20):
            body = json.dumps({"model": "many", "input": f"Number {number}"}).encode()
            urlopen(Request(f"{many}/v1/responses", body, {"content-type": "application/json"})).read()
        row(page, "Upstreams", "near").get_by_text("ready").wait_for()
        row(page, "Upstreams", "gone").get_by_text("open").wait_for()


@pytest.mark.long
def test_the_first_key_of_an_open_server_is_made_and_the_page_goes_on_with_it(browser, tmp_path):
    with background_server(configured(tmp_path, MODELS), is_persistent=True) as url, contextlib.ExitStack() as stack:
        visit, other = (stack.enter_context(contextlib.closing(Visit(browser, url))) for _ in range(2))
        visit.expect("40[019]")
        page = section(visit, "keys")
        page.get_by_text("The first key changes that.").wait_for()
        page.get_by_role("button", name="New key").click()
        form = page.get_by_role("dialog", name="New key")
        form.get_by_label("Name").fill("operator")
        form.get_by_role("checkbox", name=re.compile("^admin")).uncheck()
        form.get_by_role("button", name="Make the key").click()
        form.get_by_role("button", name="Make it all the same").wait_for()
        form.get_by_role("checkbox", name=re.compile("^admin")).check()
        form.get_by_role("button", name="Make the key").click()
        shown = page.get_by_role("dialog", name="The new key")
        expect(shown.get_by_label("Key")).to_have_value(re.compile("^ak-"))
        page.keyboard.press("Escape")
        shown.wait_for(state="detached")
        row(page, "Keys", "operator").wait_for()
        page.get_by_role("button", name="Sign out").wait_for()
        with pytest.raises(OSError, match="401"):
            ask(url, "Who asks?")
        page.get_by_role("link", name="Workers and queue").click()
        worker = row(page, "Workers", "single-1")
        worker.get_by_role("button", name="Drain").click()
        worker.get_by_role("group").get_by_role("button", name="Drain").click()
        worker.get_by_text("draining").wait_for()
        page.reload()
        page.get_by_text("Updates live").wait_for()
        other.expect("401")
        other.go("operate/keys").page.get_by_role("dialog", name="Sign in").wait_for()
