"""
How soon is the page there, and does it stay smooth with much in it?

    python bench/page_load.py [--loads 8] [--turns 250]

Chromium opens the page at the chat, anew each time with nothing kept, then a chat of so many questions and answers, and scrolls through
that chat to its beginning. For comparison it opens a page of one word from the standard library's server. The server and Chromium run on
this machine, in processes of their own. It needs Playwright and a Chromium.

The table shows the milliseconds until something is painted and until one can write, as the median of all loads, the best in brackets, and
the tasks of more than 50 ms, in which the browser does not answer, with the longest of them.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

from measuring import free_port, print_head, print_row

SERVER = Path(__file__).parent / "common" / "serve.py"

ANSWER = "A **fugue** takes up one theme in turn.\n\n```python\nprint(1)\n```\n\nIts length is $t = 1$.\n"
FLAGS = {"server.port": 0, "logging.level": "error", "models": [{"name": "parrot", "engine": "scripted", "answers": [{"say": ANSWER}]}]}

WATCH = """
window.tasks = [];
const seen = (type, take) => new PerformanceObserver((list) => list.getEntries().forEach(take)).observe({type, buffered: true});
seen('longtask', (task) => window.tasks.push(task.duration));
seen('paint', (paint) => { if (paint.name === 'first-contentful-paint') window.paint = paint.startTime; });
const look = () => {
  const field = document.getElementById('draft') ?? document.querySelector('p');
  if (field && !field.disabled) window.ready = performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""

SETTLE_MS = 1000


@contextlib.contextmanager
def serving(home):
    """A server with a scripted model; yields its address."""
    with subprocess.Popen([sys.executable, SERVER, home, json.dumps(FLAGS)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.contextmanager
def one_word(folder):
    """A server of a page of one word; yields its address."""
    Path(folder, "index.html").write_text("<!doctype html><title>Hello</title><p>Hello")
    port = free_port()
    command = [sys.executable, "-u", "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            process.stdout.readline()
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def chat_of(url, turns):
    """The address of a chat of so many questions."""
    ids = [None]
    for number in range(turns):
        text = {"type": "input_text", "text": f"Question {number}"}
        body = {"model": "parrot", "input": [{"type": "message", "role": "user", "content": [text]}], "previous_response_id": ids[-1]}
        asked = urllib.request.Request(f"{url}/v1/responses", json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(asked) as answer:
            ids.append(json.load(answer)["id"])
    return f"{url}/#/chat/{ids[1]}"


def loaded(browser, url, then=lambda page: None):
    """Open a page in a context of its own; returns when it was painted and ready, in ms, and its long tasks."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(WATCH)
    page = context.new_page()
    page.goto(url)
    then(page)
    page.wait_for_timeout(SETTLE_MS)
    found = page.evaluate("[window.paint, window.ready, window.tasks]")
    context.close()
    return found


def scroll_to_the_first(page):
    """Until the first question is there."""
    page.locator(".bubble").first.wait_for()
    log = page.get_by_role("log")
    first = page.locator(".bubble").get_by_text("Question 0", exact=True)
    while not first.count():
        log.evaluate("log => { log.scrollTop = 0; }")
        page.wait_for_timeout(50)


def row(name, loads):
    """A row of the table."""
    paints, readies = ([load[column] for load in loads] for column in (0, 1))
    tasks = [len(load[2]) for load in loads]
    longest = max([task for load in loads for task in load[2]], default=0)
    times = [f"{statistics.median(each):.0f} ({min(each):.0f})" for each in (paints, readies)]
    print_row(name, *times, f"{statistics.median(tasks):.0f}", f"{longest:.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--loads", type=int, default=8)
    parser.add_argument("--turns", type=int, default=250)
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("there is no Chromium")
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder, serving(home) as url, one_word(folder) as plain:
        chat = chat_of(url, options.turns)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium)
            loaded(browser, plain)
            print_head("page", "painted, ms", "ready, ms", "long tasks", "longest")
            row("one word", [loaded(browser, plain) for _ in range(options.loads)])
            row("the chat", [loaded(browser, f"{url}/#/chat") for _ in range(options.loads)])
            row(f"a chat of {options.turns} turns", [loaded(browser, chat) for _ in range(options.loads)])
            row("the same, scrolled to its beginning", [loaded(browser, chat, scroll_to_the_first) for _ in range(options.loads)])
            browser.close()


if __name__ == "__main__":
    main()
