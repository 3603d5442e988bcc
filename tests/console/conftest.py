"""One browser for all tests of this folder, a server for each module, a context for each test."""

import contextlib
from collections.abc import Generator
from pathlib import Path

import pytest

from support.console.browser import Visit, chromium

FAKES = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
"""A camera and a microphone that the browser makes up."""

_open, _browsers = contextlib.ExitStack(), []


@pytest.fixture
def browser():
    if not _browsers:
        _browsers.append(_open.enter_context(chromium(*FAKES)))
    return _browsers[0]


@pytest.fixture
def no_browser():
    """For a test that starts a browser with flags of its own: Playwright runs once in a thread."""
    _browsers.clear()
    _open.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        # No fixture is as long as a folder; and Playwright's asyncio loop would be in the way of the tests of others.
        if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
            _browsers.clear()
            _open.close()


@pytest.fixture
def visit(browser, url):
    """A visit to `url`, which the module's own fixture serves."""
    visit = Visit(browser, url)
    yield visit
    visit.close()
