"""Events: every message, filtered, looked into, saved as lines and as a script that answers like that again."""

import json
import re
import tomllib
from urllib.request import Request, urlopen

import pytest

from antiphon.server.processes.run import background_server
from support.console.browser import axe_findings, expect, until
from support.console.node import packages
from support.server.scripted_server import configured

SCRIPT = {
    "answers": [
        {"to": "result", "say": "The tool says {input}"},
        {"when": "ferry", "lines": [{"reasoning": "Sundays differ."}, {"text": 'At "21:30".\n'}, {"wait_ms": 120}, {"text": "Be early."}]},
        {"when": "break", "lines": [{"text": "So far"}, {"failure": {"message": "The model broke."}}]},
        {"when": "", "say": "You said: {input}"},
    ]
}
MANY = 10_000
MOST_ROWS = 100

WATCH_TASKS = """() => {
    window.longTasks = [];
    new PerformanceObserver(list => window.longTasks.push(...list.getEntries().map(task => task.duration))).observe({type: 'longtask'});
}"""

SCROLL_TO = "(grid, place) => { grid.scrollTop = place * grid.scrollHeight; }"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    models = {"parrot": {"engine": "scripted", **SCRIPT}}
    with background_server(configured(tmp_path_factory.mktemp("events"), models, **{"logging.level": "error"})) as url:
        yield url


@pytest.fixture
def page(visit):
    page = visit.go("chat").page
    page.get_by_role("button", name="Model: parrot").wait_for()
    return page


def ask(page, text, answer):
    field = page.get_by_label("Message", exact=True)
    field.fill(text)
    field.press("Enter")
    page.get_by_role("article").filter(has_text=answer).get_by_role("button", name="Answer again").wait_for()


def shown(page):
    """The tab and its lines."""
    page.get_by_role("link", name="Events", exact=True).click()
    tab = page.get_by_role("region", name="Events", exact=True)
    tab.locator(".line").first.wait_for()
    return tab


def saved(page, name):
    with page.expect_download() as download:
        page.get_by_role("button", name=name).first.click()
    return download.value.path().read_text()


def test_messages_are_filtered_and_looked_into(page):
    ask(page, "When is the ferry?", "Be early.")
    tab = shown(page)
    tab.get_by_role("button", name="↑ sent", exact=True).click()
    tab.get_by_text("response.created").wait_for(state="detached")
    tab.get_by_role("button", name="POST /v1/responses").first.click()
    picked = tab.get_by_role("region", name="The picked message")
    picked.get_by_text('"When is the ferry?"').first.wait_for()
    picked.get_by_text("Asks for an answer.").wait_for()
    picked.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied.").wait_for()
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["model"] == "parrot"
    tab.get_by_role("button", name="↑ sent", exact=True).click()
    page.keyboard.press("/")
    expect(tab.get_by_label("Filter")).to_be_focused()
    page.keyboard.type("early.")
    tab.get_by_role("button", name=re.compile("response.created")).wait_for(state="detached")
    tab.get_by_role("button", name=re.compile("response.output_text.delta")).first.wait_for()


@pytest.mark.long
def test_the_keyboard_alone_reaches_the_next_error(page, visit):
    visit.expect("status of 50")  # the browser notes it
    ask(page, "Is all well?", "You said: Is all well?")
    page.get_by_label("Message", exact=True).fill("Now break")
    page.get_by_label("Message", exact=True).press("Enter")
    page.get_by_text("The model broke.").first.wait_for()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("4")
    tab = page.get_by_role("region", name="Events", exact=True)
    tab.locator(".line.bad").first.wait_for()
    page.keyboard.press("n")
    picked = tab.get_by_role("region", name="The picked message")
    picked.get_by_text("The model broke.").first.wait_for()
    before = picked.inner_text()
    tab.get_by_role("region", name="Messages").press("ArrowUp")
    picked.get_by_text("The model broke.").wait_for(state="detached")
    expect(picked).not_to_have_text(before)
    page.keyboard.press("Escape")
    picked.wait_for(state="detached")


@pytest.mark.long
def test_lines_are_those_of_recordings(page):
    ask(page, "When is the ferry?", "Be early.")
    shown(page)
    lines = [json.loads(line) for line in saved(page, "Save as JSONL").splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert {line["direction"] for line in lines} == {"in", "out"}
    assert [line["at_s"] for line in lines] == sorted(line["at_s"] for line in lines)
    words = [line["event"]["delta"] for line in lines if line["event"].get("type") == "response.output_text.delta"]
    assert "".join(words) == 'At "21:30".\nBe early.'


@pytest.mark.long
def test_a_server_takes_the_script_and_answers_as_before(page, tmp_path):
    ask(page, "When is the ferry?", "Be early.")
    ask(page, "What is 2+2 (in words)?", "You said: What is 2+2 (in words)?")
    shown(page)
    text = saved(page, "Save as script")
    script = tomllib.loads(text)
    assert [answer["to"] for answer in script["answers"]] == ["message", "message"]
    assert {"reasoning": "Sundays differ."} in script["answers"][0]["lines"]
    path = tmp_path / "script.toml"
    path.write_text(text)
    with background_server(configured(tmp_path, {"again": {"engine": "scripted", "script": str(path)}})) as url:
        assert answer(url, "When is the ferry?") == 'At "21:30".\nBe early.'
        assert answer(url, "What is 2+2 (in words)?") == "You said: What is 2+2 (in words)?"


def answer(url, question):
    body = json.dumps({"model": "again", "input": question}).encode()
    with urlopen(Request(f"{url}/v1/responses", body, {"content-type": "application/json"})) as reply:
        items = json.load(reply)["output"]
    return "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])


@pytest.mark.long
def test_ten_thousand_messages_stay_smooth(page, record_property):
    response = {"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": "parrot", "output": []}
    events = [{"type": "response.created", "sequence_number": 0, "response": response}]
    events += [{"type": "response.in_progress", "sequence_number": number, "response": response} for number in range(1, MANY)]
    events += [{"type": "response.completed", "sequence_number": MANY, "response": {**response, "status": "completed"}}]
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    page.route(
        "**/v1/responses",
        lambda route: route.fulfill(body=body, content_type="text/event-stream") if route.request.method == "POST" else route.continue_(),
    )
    page.get_by_label("Message", exact=True).fill("All of it")
    page.get_by_label("Message", exact=True).press("Enter")
    page.get_by_role("article").get_by_role("button", name="Answer again").wait_for()
    tab = shown(page)
    tab.get_by_text(re.compile("10,00[0-9] messages")).wait_for()
    tab.get_by_role("button", name=re.compile(r"response\.completed")).first.wait_for()
    page.evaluate(WATCH_TASKS)
    rows = [tab.locator(".line").count()]
    messages = tab.get_by_role("region", name="Messages")
    for place in (0, 0.3, 0.6, 0.9, 0.1):
        line = tab.locator(".line > :first-child").get_by_text(str(int(place * MANY) + 3), exact=True)
        until(page, lambda place=place, line=line: messages.evaluate(SCROLL_TO, place) or line.count())
        rows.append(tab.locator(".line").count())
    tab.get_by_label("Filter").press_sequentially("completed")
    tab.get_by_text(re.compile(r"^\d lines? shown$")).wait_for()
    tab.get_by_label("Filter").fill("")
    tab.get_by_role("button", name="Deltas folded").click()
    rows.append(tab.locator(".line").count())
    assert max(rows) < MOST_ROWS
    tasks = page.evaluate("window.longTasks")
    record_property("long_tasks_ms", tasks)
    print(f"{MANY} messages: {max(rows)} rows at most, long tasks {tasks} ms")


@pytest.mark.long
@pytest.mark.parametrize("colour_scheme", ["light", "dark"])
def test_axe_finds_nothing_among_events(page, colour_scheme):
    page.emulate_media(color_scheme=colour_scheme)
    ask(page, "Hello", "You said: Hello")
    tab = shown(page)
    tab.locator(".line").first.click()
    tab.get_by_role("region", name="The picked message").wait_for()
    assert axe_findings(page, packages().folder) == []
