"""What every engine promises, whatever answers: the contract of `engines/base.py`."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from antiphon import talk, turns
from antiphon.engines.base import Place
from antiphon.runtime.registry import ENGINES, _build

SETTINGS = talk.Settings(model="m")
CASES = [
    pytest.param("scripted", {"pace_ms": 1}, id="scripted"),
    pytest.param("scripted", {}, id="scripted-at-once"),
    pytest.param("chat", {"quirks": "generic"}, id="chat"),
    pytest.param("responses", {}, id="responses"),
    pytest.param("local", {"model": "smollm2-135m-instruct", "context": 1024}, id="local", marks=pytest.mark.weights),
]


def weights():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ANTIPHON_MODELS") or cache / "antiphon" / "models")


def ask(id, text="Count from one to a hundred in words.", **more):
    more.setdefault("sampling", talk.Sampling(max_tokens=24))
    return talk.Respond(id=id, history=(turns.Message("user", (turns.TextPart(text),)),), **more)


class Listener:
    """Takes an engine's words, and can wait for some."""

    def __init__(self):
        self.words = []
        self.telling = False
        self._changed = asyncio.Event()

    def __call__(self, words):
        assert not self.telling, "an engine may not deliver from within `tell`"
        assert words, "an engine has no reason to deliver nothing"
        self.words.extend(words)
        self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition(self.words):
                self._changed.clear()
                await self._changed.wait()

    def ends(self, id):
        return [word for word in self.words if word.id == id and isinstance(word, talk.Ended | talk.Broke)]

    async def end_of(self, id):
        await self.until(lambda _: self.ends(id))
        return self.ends(id)[0]


@contextlib.asynccontextmanager
async def conversing(engine):
    listener = Listener()
    async with engine.open(SETTINGS, listener) as conversation:

        def tell(word):
            listener.telling = True
            conversation.tell(word)
            listener.telling = False

        yield listener, conversation, tell


async def counting(reader, writer):
    """A model server that counts to as many as it is asked, one every two milliseconds, while somebody listens."""
    try:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await count(reader, writer)
    finally:
        writer.close()


async def count(reader, writer):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
    asked = json.loads(await reader.readexactly(length) or b"{}")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    chunk, last = COUNTS[head.split()[1].decode()]
    for number in range(asked.get("max_tokens") or asked.get("max_completion_tokens") or asked.get("max_output_tokens") or 0):
        writer.write(f"data: {json.dumps(chunk(f' {number}'))}\n\n".encode())
        await writer.drain()
        await asyncio.sleep(0.002)
    writer.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())


def chat_chunk(text):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def text_delta(text):
    return {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text}


CUT_OFF = {"status": "incomplete", "usage": {"input_tokens": 9, "output_tokens": 24}}
COUNTS = {
    "/v1/chat/completions": (
        chat_chunk,
        {
            "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 24},
        },
    ),
    "/v1/responses": (text_delta, {"type": "response.incomplete", "response": CUT_OFF}),
}
"""For each path what says a number, and what says that it was the last."""


def with_engine(name, options, scenario):
    """Build the engine, start it, play the scenario, stop it."""

    async def play():
        upstream = await asyncio.start_server(counting, "127.0.0.1", 0)
        async with upstream:
            address = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1"
            await play_before(options | ({"base_url": address} if name in ("chat", "responses") else {}))

    async def play_before(options):
        engine = _build(name)("m", options, Place(weights=weights(), base=Path()))
        await engine.start()
        try:
            await scenario(engine)
        finally:
            await engine.stop()
            await engine.stop()

    asyncio.run(play())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_answer_has_one_end_and_its_words_carry_its_id(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1"))
            tell(ask("resp_2"))
            for id in ("resp_1", "resp_2"):
                assert (await listener.end_of(id)).reason in ("stop", "length")
            for id in ("resp_1", "resp_2"):
                said = [word for word in listener.words if word.id == id]
                assert len(listener.ends(id)) == 1
                assert said[-1] is listener.ends(id)[0], "the end comes last"
                assert "".join(word.text for word in said if isinstance(word, talk.Text)).strip()
                (used,) = (word for word in said if isinstance(word, talk.Used))
                assert used.input_tokens > 0
                assert used.output_tokens > 0

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_cancelled_answer_ends_as_cancelled_or_had_ended_before(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1", sampling=talk.Sampling(max_tokens=500)))
            tell(talk.Cancel("resp_1"))
            await listener.end_of("resp_1")
            tell(ask("resp_2"))
            await listener.until(lambda words: any(word.id == "resp_2" for word in words))
            tell(talk.Cancel("resp_2"))
            tell(talk.Cancel("resp_2"))
            tell(talk.Cancel("resp_never"))
            await listener.end_of("resp_2")
            tell(ask("resp_3"))
            assert (await listener.end_of("resp_3")).reason in ("stop", "length")
            assert [len(listener.ends(id)) for id in ("resp_1", "resp_2", "resp_3", "resp_never")] == [1, 1, 1, 0]

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_leaving_a_conversation_delivers_nothing_more(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1"))
        count = len(listener.words)
        async with conversing(engine) as (other, _, tell):
            tell(ask("resp_2"))
            await other.end_of("resp_2")
        assert len(listener.words) == count

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_paused_conversation_goes_on_when_it_is_resumed(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, conversation, tell):
            conversation.pause()
            tell(ask("resp_1"))
            conversation.resume()
            assert (await listener.end_of("resp_1")).reason in ("stop", "length")

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_engine_that_stops_ends_what_it_was_saying(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1", sampling=talk.Sampling(max_tokens=500)))
            await listener.until(lambda words: words)
            await engine.stop()
            await listener.end_of("resp_1")

    with_engine(name, options, scenario)


def test_every_engine_is_held_to_the_contract():
    assert {case.values[0] for case in CASES} == set(ENGINES)
