"""A real browser on the page: what it must never do is asserted after every test."""

import contextlib
import functools
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

TIMEOUT_MS = 120_000
"""Only a defect reaches it, however busy the machine is."""

LOOK_AGAIN_MS = 50

Value = TypeVar("Value")

WATCH = (
    "document.addEventListener('securitypolicyviolation', (e) => console.error(`CSP ${e.violatedDirective} ${e.blockedURI} ${e.sample}`));"
)

SPARE = ("--disable-background-networking", "--disable-component-update", "--no-first-run")


@functools.cache
def _sync_api():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    sync_api.expect.set_options(timeout=TIMEOUT_MS)
    return sync_api


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator[object]:
    """The distribution's Chromium, headless. Without it, or without Playwright, the test is skipped."""
    sync_api = _sync_api()
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*SPARE, *flags], timeout=TIMEOUT_MS)
        yield browser
        browser.close()


def expect(shown):
    """Playwright's assertions on a locator or a page: they wait. Say what is absent only after what shows that the page has settled."""
    return _sync_api().expect(shown)


def until(page, condition: Callable[[], Value]) -> Value:
    """Wait for what no locator can see, such as a message of the page; returns what the condition gave."""
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came"
        page.wait_for_timeout(LOOK_AGAIN_MS)
    return value


class Visit:
    """
    A context of its own on the page.

    Attributes:
        page: Playwright's. Wait with locators: `wait_for_function` evaluates text, which the page's policy refuses.
        troubles: errors on the console, violations of the policy, and requests to other origins.
    """

    def __init__(self, browser, url: str, **options) -> None:
        self.url, self.troubles, self._expected = url, [], []
        options = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **options}
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(TIMEOUT_MS)
        if url.startswith(("https:", "http://127.0.0.1", "http://localhost")):  # no other page can have it
            self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        self.context.add_init_script(WATCH)
        self.page = self.context.new_page()
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.troubles.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("request", self._note_request)

    def _note_request(self, request) -> None:
        if not request.url.startswith((self.url, self.url.replace("http", "ws", 1), "data:", "blob:")):
            self.troubles.append(f"off-origin: {request.url}")

    def go(self, path: str = "") -> "Visit":
        """Open the page at a hash, such as `chat`."""
        self.page.goto(f"{self.url}/#/{path}" if path else self.url)
        return self

    def expect(self, pattern: str) -> None:
        """A trouble that the test brings about, such as a refusal that the browser puts on its console."""
        self._expected.append(re.compile(pattern))

    def close(self) -> None:
        self.context.close()
        unexpected = [trouble for trouble in self.troubles if not any(pattern.search(trouble) for pattern in self._expected)]
        assert not unexpected


def axe_findings(page, root: Path) -> list[tuple[str, str, str]]:
    """What axe-core finds: rule, impact, and the first element. Its source is evaluated, as the policy refuses a script tag's text."""
    source = root / "node_modules" / "axe-core" / "axe.min.js"
    page.evaluate(source.read_text())
    tags = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("tags => axe.run(document, {runOnly: tags})", tags)
    assert len(found["passes"]) > 10
    return [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found["violations"]]
