"""Draws the pictures of the page in the guide: a program, which needs Chromium. `make docs/images` runs it."""

import contextlib
import json
import re
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[2]))

from antiphon.server.processes.run import background_server
from support.console.browser import Visit, chromium
from support.console.sound import MICROPHONE, say, tone
from support.server.scripted_server import configured

IMAGES = Path(__file__).parents[3] / "docs" / "images"
SIZE = {"width": 1120, "height": 700}

FUNCTIONS = '''
def tides(harbour: str) -> str:
    """When the water is high in a harbour today."""
    return "high water 14:12 and 02:38, low water 08:05 and 20:21"
'''

ANSWER = """**Leave at 13:30.** The water is high at 14:12, and the bar at the mouth is safe for an hour on both sides of it.

| | today |
|---|---|
| high water | 14:12 and 02:38 |
| low water | 08:05 and 20:21 |
"""

MODELS = {
    "harbour-pilot": {
        "engine": "scripted",
        "hears": [{"turn": 1, "says": "When can I leave the harbour?"}, {"says": "And tonight?"}],
        "answers": [
            {"to": "result", "lines": [{"text": ANSWER}]},
            {
                "when": "sail",
                "lines": [
                    {"reasoning": "The bar is shallow."},
                    {"call": "tides", "namespace": "almanac", "arguments": {"harbour": "Oudeschild"}},
                ],
            },
            {"when": "tonight", "lines": [{"text": "Tonight at two, an hour around high water."}]},
            {"when": "", "lines": [{"text": "At half past one, when the water is high."}]},
        ],
    },
    "look-out": {
        "engine": "scripted",
        "speech": [],
        "answers": [{"say": "You said: {input}"}],
        "duplex": {"says": [{"at": 2, "lines": [{"text": "I see a light, three points to starboard. "}, {"aloud_ms": 30_000}]}]},
        "sessions": 2,
    },
}


def draw(visit: Visit, name: str) -> None:
    visit.page.wait_for_timeout(400)  # what moves comes to rest
    visit.page.screenshot(path=IMAGES / f"page-{name}.png")


def choose(visit: Visit, **models: str) -> None:
    visit.page.add_init_script(f"localStorage.setItem('antiphon.models', JSON.stringify({json.dumps(models)}))")


def draw_chat_and_events(visit: Visit) -> None:
    choose(visit, chat="harbour-pilot")
    page = visit.go("chat").page
    page.get_by_role("button", name="Tools").click()
    page.get_by_label("almanac").check()
    page.keyboard.press("Escape")
    page.get_by_label("Message", exact=True).fill("When should I sail from Oudeschild today?")
    page.keyboard.press("Enter")
    page.get_by_role("button", name=re.compile("^Allow")).first.click()
    page.get_by_text("Leave at 13:30.", exact=True).wait_for()
    page.get_by_role("button", name="Answer again").last.wait_for()
    draw(visit, "chat")
    page.get_by_role("link", name="Events", exact=True).click()
    draw(visit, "events")


def draw_talk(visit: Visit) -> None:
    choose(visit, talk="harbour-pilot")
    visit.context.add_init_script(MICROPHONE)
    page = visit.go("talk").page
    page.locator("button.big").filter(has_text="Talk").click()
    page.locator("button.big").filter(has_text="Listening").wait_for()
    for answer in ("At half past one", "Tonight at two"):
        say(page, tone(0.9))
        page.get_by_role("log", name="Captions").get_by_text(answer).wait_for()
        page.locator("button.big").filter(has_text="Listening").wait_for()
    draw(visit, "talk")


def draw_duplex(visit: Visit) -> None:
    choose(visit, duplex="look-out")
    page = visit.go("duplex/video").page
    page.get_by_role("button", name="Start").click()
    page.get_by_text("three points to starboard").first.wait_for()
    draw(visit, "duplex")


def draw_operate(visit: Visit) -> None:
    for question in ("When should I sail?", "And tonight?") * 6:
        body = json.dumps({"model": "harbour-pilot", "input": question}).encode()
        urlopen(Request(f"{visit.url}/v1/responses", body, {"content-type": "application/json"})).close()
    page = visit.go("operate").page
    page.get_by_text("Updates live").wait_for()
    visit.page.wait_for_timeout(4000)  # some seconds of its curves
    draw(visit, "operate")


def main() -> None:
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as stack:
        functions = Path(home, "almanac.py")
        functions.write_text(FUNCTIONS)
        settings = {"logging.level": "error", "tools.functions": [{"label": "almanac", "file": str(functions)}]}
        url = stack.enter_context(background_server(configured(Path(home), MODELS, **settings), is_persistent=True))
        browser = stack.enter_context(chromium("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", "--no-sandbox"))
        for draw_tab, colours in (
            (draw_chat_and_events, "light"),
            (draw_talk, "dark"),
            (draw_duplex, "light"),
            (draw_operate, "light"),
        ):
            with contextlib.closing(Visit(browser, url, viewport=SIZE, color_scheme=colours)) as visit:
                draw_tab(visit)


if __name__ == "__main__":
    main()
