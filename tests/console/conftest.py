"""One browser for the tests of a module, a server for each module, a context for each test."""

import pytest

from support.console.browser import Visit, chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser, url):
    """A visit to `url`, which the module's own fixture serves."""
    visit = Visit(browser, url)
    yield visit
    visit.close()
