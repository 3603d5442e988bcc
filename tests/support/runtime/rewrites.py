"""An engine that delivers a test's events, and rewrites of its output."""

import asyncio
import contextlib

from antiphon.config.rewrites import RewriteEntry
from antiphon.engine_api import events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.runtime.rewriting.failure import RewriteFailed
from antiphon.runtime.rewriting.rewrites import Text

USED = events.Usage(id="other", input_tokens=10, output_tokens=20)


class Playing:
    """An engine that delivers a test's events."""

    capabilities = Capabilities()

    def __init__(self):
        self.commands = []
        self.deliver = None

    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        self.deliver = deliver
        yield self
        self.deliver = None

    def send(self, command):
        self.commands.append(command)

    def pause(self):
        self.commands.append("pause")

    def resume(self):
        self.commands.append("resume")


class Louder:
    """A rewrite into capitals, unless `does` makes it whisper, fail, hang or match nothing."""

    def __init__(self, does="shouts", **fields):
        self.entry = RewriteEntry(name="louder", kind="spelling", **fields)
        self.does = does

    def fits(self, _text, _request):
        return self.does != "nothing"

    async def prepare(self):
        pass

    async def apply(self, text, answer):
        answer.add_usage(USED)
        await asyncio.sleep(0)
        if self.does == "fails":
            raise RewriteFailed("no voice")
        if self.does == "hangs":
            await asyncio.Event().wait()
        return Text(text.content if self.does == "whispers" else text.content.upper() + "!", text.annotations)


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)
