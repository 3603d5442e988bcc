"""Truncation before a chat server, as a live conversation asks for it."""

import asyncio

import pytest

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings, Retention
from antiphon.engines.chat.engine import build
from support.server.tokenizing_server import tokenizing


def turns(count, words):
    return tuple(history.Message("user", (history.TextPart(" ".join(["word"] * words)),)) for _ in range(count))


def kept(tmp_path, request, **window):
    """How many messages of a request reach a server that counts, and the events of its answer."""

    async def ask():
        answer, over = [], asyncio.Event()

        def deliver(said):
            answer.extend(said)
            if isinstance(said[-1], events.ResponseEnded | events.ResponseFailed):
                over.set()

        context = BuildContext(weights_folder=tmp_path, base_folder=tmp_path)
        engine = build("model", {"base_url": upstream, "quirks": "vllm", "retries": 0}, context)
        async with engine.open(ConversationSettings(model="model", tenant="t", kind="realtime"), deliver) as conversation:
            conversation.send(request)
            await over.wait()
        await engine.stop()
        return answer

    with tokenizing("vllm", **window) as (upstream, asked):
        answer = asyncio.run(ask())
    return [len(body["messages"]) for path, body in asked if path == "/v1/chat/completions"], answer


@pytest.mark.parametrize(("retention", "count"), [(None, 10), (Retention(0.5), 5), (Retention(1.0, 350), 3), (Retention(1.0, 5_000), 10)])
def test_a_live_conversation_says_how_much_is_left_of_it(tmp_path, retention, count):
    request = commands.Respond(id="resp_1", history=turns(20, 95), truncate=True, retention=retention, whole=True)
    messages, answer = kept(tmp_path, request, window=1_334)  # a quarter of it less: 1,001 tokens, for turns of 100
    assert messages == [count] and isinstance(answer[-1], events.ResponseEnded)


def test_what_fits_is_left_alone_whatever_a_retention_says(tmp_path):
    request = commands.Respond(id="resp_1", history=turns(3, 95), truncate=True, retention=Retention(0.1), whole=True)
    assert kept(tmp_path, request)[0] == [3]
