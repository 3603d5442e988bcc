"""An engine that compacts: what it asks of the engine behind it, and what it delivers."""

import asyncio
import contextlib

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationSettings
from antiphon.protocols.responses.compaction import CompactionPlan
from antiphon.runtime.compaction_engine import MAX_SUMMARY_CHARACTERS, CompactingEngine

REQUEST = commands.Respond(id="resp_1", history=(history.Message("user", (history.TextPart("Hello."),)),), size_bytes=6)


class Behind:
    """An engine that does what the test has it do."""

    capabilities = Capabilities()

    def __init__(self):
        self.commands, self.changed = [], asyncio.Event()
        self.deliver = self.conversation = None

    @contextlib.asynccontextmanager
    async def open(self, _settings, deliver):
        self.deliver = deliver
        yield self

    def send(self, command):
        self.commands.append(command)
        self.changed.set()

    async def has_got(self, count):
        async with asyncio.timeout(10):
            while len(self.commands) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.commands[-1]


@contextlib.asynccontextmanager
async def summarizing(plan):
    """The engine behind, the id of the summary that it was asked for, and all batches that were delivered."""
    behind, batches = Behind(), []
    engine = CompactingEngine(behind, plan, lambda text: f"<{text}>")
    async with engine.open(ConversationSettings(model="m", kind="responses"), batches.append) as conversation:
        behind.conversation = conversation
        conversation.send(REQUEST)
        yield behind, (await behind.has_got(1)).id, batches


def test_what_the_client_need_not_know_is_not_delivered():
    async def scenario():
        async with summarizing(CompactionPlan(threshold=0)) as (behind, id, batches):
            behind.deliver((events.ItemBoundary(id, "msg_1"),))
            behind.deliver((events.TextDelta(id, "They greeted."),))
            behind.deliver((events.ResponseEnded(id),))
            request = await behind.has_got(2)
            behind.deliver((events.ResponseEnded(request.id),))
        return batches

    batches = asyncio.run(scenario())
    assert [[type(event) for event in batch] for batch in batches] == [
        [events.CompactionProgress],
        [events.ItemBoundary, events.HostedToolStarted, events.HostedToolDone],
        [events.ResponseEnded],
    ]


def test_a_summary_without_an_end_is_cancelled_at_the_model_before_the_conversation_goes_on():
    async def scenario():
        async with summarizing(CompactionPlan(threshold=0)) as (behind, id, batches):
            behind.deliver((events.TextDelta(id, "x" * (MAX_SUMMARY_CHARACTERS + 1)),))
            await behind.has_got(3)
            behind.deliver((events.TextDelta(id, "x"), events.ResponseEnded(id, "cancelled")))
            behind.deliver((events.ResponseEnded(REQUEST.id),))
        return id, behind.commands[1:], batches[-1]

    id, asked, last = asyncio.run(scenario())
    assert asked == [commands.Cancel(id), REQUEST]
    assert last == [events.ResponseEnded(REQUEST.id)]


def test_a_response_that_is_cancelled_takes_its_summary_along():
    async def scenario():
        async with summarizing(CompactionPlan(threshold=0)) as (behind, id, batches):
            behind.conversation.send(commands.Cancel(REQUEST.id))
            assert await behind.has_got(2) == commands.Cancel(id)
        return batches

    assert asyncio.run(scenario()) == [(events.ResponseEnded(REQUEST.id, "cancelled"),)]
