"""A conversation that has ended is freed with its audio and its history by counting references, whatever the engine."""

import asyncio

import pytest

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.cascade.engine import Cascade
from antiphon.engines.cascade.parts import SpeechStack
from antiphon.engines.duplex.engine import DuplexAdapter
from antiphon.engines.local.engine import build as build_local
from support.engines import cascades, hearings, omni_doubles, realtime_server, upstreams
from support.engines.duplexes import TURN_END, silent_parrot
from support.left_behind import no_collector
from support.runtime.worker_links import Heard, ask, linked

SETTINGS = ConversationSettings(model="m")
SPOKEN = history.SpeechPart(b"\1\0" * cascades.RATE_HZ, cascades.RATE_HZ, "turn_1")
SECOND = commands.AppendAudio(hearings.quiet(1000, cascades.RATE_HZ))


async def conversed(engine, *words):
    """The kinds of events that an engine tells, a few turns of the loop after each word."""
    heard = []
    async with engine.open(SETTINGS, heard.extend) as conversation:
        for word in words:
            conversation.send(word)
            for _ in range(60):
                await asyncio.sleep(0)
    return {type(event) for event in heard}


def pieces(*sounds):
    return [commands.AppendAudio(sound[at : at + 3200]) for sound in sounds for at in range(0, len(sound), 3200)]


def cascade(text):
    stack = SpeechStack(vad=cascades.Activity(), transcriber=cascades.Ear(), synthesizer=cascades.Synthesizer(), voices=("low",))
    turn = pieces(cascades.said("one", "two"), cascades.quiet(800))
    request = commands.Respond(id="resp_1", history=(history.Message("user", (SPOKEN, history.TextPart(text))),), voice=cascades.VOICE)
    return conversed(Cascade(silent_parrot(), stack), cascades.LISTEN, *turn, request)


async def cascade_whole():
    assert {events.SpeechStopped, events.AudioDelta} <= await cascade("Hi")


async def cascade_left():
    assert events.ResponseEnded not in await cascade("la " * 5000)


async def duplex_adapter():
    assert events.Listening in await conversed(
        DuplexAdapter(silent_parrot(), None), commands.StartDuplex(), *pieces(TURN_END), *[SECOND] * 3
    )


async def duplex_of_its_own():
    assert events.AudioDelta in await conversed(hearings.engine(), commands.StartDuplex(), *pieces(TURN_END), *[SECOND] * 3)


async def remote():
    async with linked(hearings.engine()) as (engine, _):
        heard = Heard()
        async with engine.open(SETTINGS, heard) as conversation:
            conversation.send(commands.Configure())
            conversation.send(SECOND)
            conversation.send(ask("resp_1"))
            await heard.end_of("resp_1")
            conversation.send(ask("resp_2", "la " * 5000))


async def omni(worker=omni_doubles.Worker):
    async with omni_doubles.facing(worker()) as client:
        client.tell(commands.StartDuplex(instructions="Be kind."))
        await client.log.some(events.DuplexStarted)
        client.tell(commands.AppendAudio(omni_doubles.loud()), commands.AppendAudio(omni_doubles.loud()))
        await client.log.some(events.AudioDelta)


async def omni_native():
    await omni(omni_doubles.Native)


async def realtime():
    async with (
        realtime_server.RealtimeServer(realtime_server.hello).open() as server,
        realtime_server.talking(server) as (conversation, heard),
    ):
        conversation.send(realtime_server.ask("resp_1"))
        await heard.end_of("resp_1")


class Llama:
    """Takes prompts, and never answers."""

    context = 4096

    async def tokenize(self, _segment, *, add_special):
        return list(range(100 + add_special))

    async def process_prompt(self, *_prompt, **_slot):
        await asyncio.Event().wait()

    async def complete(self, *_request, on_begin):
        on_begin()
        await asyncio.Event().wait()


async def local():
    engine = build_local("smollm2-135m-instruct", {}, BuildContext(weights_folder=None, base_folder=None))
    engine._llama = Llama()
    await conversed(engine, commands.Prepare(ask("resp_1")))
    await conversed(engine, ask("resp_1"))


async def chat():
    async with (
        upstreams.Server(upstreams.streamed("Hi"), upstreams.CUT).open() as server,
        upstreams.before(server) as (conversation, heard),
    ):
        for id in ("resp_1", "resp_2"):
            conversation.send(upstreams.ask(id))
            await heard.end_of(id)


WHOLE_ENGINE = {
    "BuildContext",
    "UpstreamClient",
    "UpstreamOptions",
    "HttpConnectionPool",
    "CircuitBreaker",
    "ConcurrencyLimit",
    "FailureLog",
}
"""Of an engine before a server, which is there as long as the process."""

LINK = {"LinkEndpoint", "FrameDecoder", "RemoteEngine", "ConversationServer", "Hello", "Capabilities", "ScriptedEngine", "Script"}
"""Likewise of a worker that is joined."""


@pytest.mark.parametrize(
    "use", [cascade_whole, cascade_left, duplex_adapter, duplex_of_its_own, remote, omni, omni_native, realtime, local, chat]
)
def test_a_conversation_that_has_ended_is_freed_without_the_collector(use):
    asyncio.run(use())
    with no_collector() as left:
        asyncio.run(use())
        assert left().keys() <= WHOLE_ENGINE | LINK | {"RealtimeOptions", "ChatOptions", "OmniOptions", "ScriptedRecordings"}
