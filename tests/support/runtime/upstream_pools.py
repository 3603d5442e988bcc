"""Engines in front of several upstreams, which are servers on real sockets with a test's plays."""

import asyncio
import contextlib
from pathlib import Path

from antiphon.config.load import ModelEntry
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.runtime.balancing.build import build_engine
from antiphon.runtime.balancing.options import BalanceOptions, UpstreamLimits
from antiphon.runtime.balancing.upstreams import ModelUpstream, UpstreamPool
from support.contracts.engines import Listener

CONTEXT = BuildContext(weights_folder=Path(), base_folder=Path())


class Observer:
    """An observer of upstreams that remembers."""

    def __init__(self):
        self.states, self.attempts, self.choices, self.fallbacks = [], [], [], []
        self.outstanding = {}

    def on_upstream_state(self, name, state):
        self.states.append((name, state))

    def on_upstream_attempt(self, name, outcome):
        self.attempts.append((name, outcome))

    def on_upstream_choice(self, name, kind):
        self.choices.append((name, kind))

    def on_upstream_outstanding(self, name, count):
        self.outstanding[name] = count

    def on_fallback(self, model, fallback, reason):
        self.fallbacks.append((model, fallback, reason))


class Hollow:
    """Stands for an engine that gets no requests."""


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


async def settle():
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


def pool_of(clock, *limits, observer=None, max_waiting=8, timeout_s=5.0, **options):
    """A pool without engines; each of `limits` has the fields of an `UpstreamLimits`."""
    balance = BalanceOptions(**options)
    observer = observer or Observer()
    upstreams = [
        ModelUpstream("m", Hollow(), UpstreamLimits(**{"name": f"u{number}", **each}), balance, observer, clock)
        for number, each in enumerate(limits, start=1)
    ]
    return UpstreamPool(upstreams, balance, max_waiting, timeout_s, clock)


def entry_for(servers, name="m", tables=(), **options):
    """The table of a model with these servers as its upstreams; `tables` are more keys of each."""
    tables = tables or [{} for _ in servers]
    upstreams = [{"base_url": f"http://127.0.0.1:{server.port}/v1", **table} for server, table in zip(servers, tables, strict=True)]
    return ModelEntry(name=name, engine="chat", options={"quirks": "generic", "upstreams": upstreams, **options})


@contextlib.asynccontextmanager
async def before_all(*servers, find=None, observer=None, tables=(), **options):
    """An engine in front of the servers, which it starts."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(30):
        for server in servers:
            await stack.enter_async_context(server.open())
        engine = build_engine(entry_for(servers, tables=tables, **options), CONTEXT, find, observer or Observer())
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


async def answer_to(engine, request, **settings):
    """The events of one request."""
    listener = Listener()
    async with engine.open(ConversationSettings(model="m", **settings), listener) as conversation:
        conversation.send(request)
        await listener.end_of(request.id)
    return listener.words
