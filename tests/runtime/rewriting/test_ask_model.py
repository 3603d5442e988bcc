"""Asking another model for a text, whatever becomes of its engine."""

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ServerError
from antiphon.runtime.rewriting.ask_model import Reply, ask_other
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
