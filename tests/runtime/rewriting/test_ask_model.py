"""Asking another model for a text, whatever becomes of its engine."""

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from antiphon.config.rewrites import RewriteEntry
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ServerError
from antiphon.runtime.rewriting.ask_model import Reply, ask_other, read_reply, rewrite_request
from antiphon.runtime.rewriting.failure import RewriteFailed
from support.runtime.rewrites import Playing

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Failing(Playing):
    """An engine that fails, at once or while it is waited for."""

    def __init__(self, error, at_once):
        super().__init__()
        self.error, self.at_once = error, at_once

    async def fail(self):
        await asyncio.sleep(0)
        raise self.error

    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        if self.at_once:
            raise self.error
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fail())
            yield self


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("error", "reason", "is_logged"), [(ServerError("not now"), "not now", False), (ZeroDivisionError(), "its engine failed", True)]
)
async def test_whatever_another_engine_raises_fails_the_rewrite_alone(error, reason, is_logged, at_once):
    ask = ask_other(Failing(error, at_once), ConversationSettings(model="m"))
    with capture_logs() as log, pytest.raises(RewriteFailed, match=reason):
        await ask(None, Reply(100))
    assert bool(log) == is_logged


def test_the_tag_around_a_text_is_none_that_stands_in_it():
    text, entry = "<text1>Helo</text1> text2> text004> text10>" + "text9>" * 100_000, RewriteEntry(name="r", kind="spelling")
    prompt = rewrite_request(entry, text, None, "", Capabilities()).history[0].parts[0].text
    assert prompt == f"<text3>\n{text}\n</text3>"
    assert read_reply("<text3>\nHello\n</text3>", entry, text) == "Hello"
