"""The engine that makes vectors: what it takes, and what it refuses by name."""

import asyncio
import base64
import json
from pathlib import Path

import numpy as np
import pytest

from antiphon.embeddings.minilm import MiniLM
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.embeddings.engine import build
from antiphon.errors import ServerError, only_embeds
from antiphon.wire.http.embeddings import MAX_INPUTS
from support.embeddings.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def context(base=Path()):
    return BuildContext(weights_folder=base, base_folder=base)


def outcome(folder, *sent):
    """The events of all requests."""

    async def scenario():
        engine, heard, over = build("vectors", {"path": folder.name}, context(folder.parent)), [], asyncio.Event()

        def deliver(batch):
            heard.extend(batch)
            ends = [event for event in heard if isinstance(event, events.ResponseEnded | events.ResponseFailed)]
            if len(ends) == sum(not isinstance(command, commands.Cancel) for command in sent):
                over.set()

        await engine.start()
        async with asyncio.timeout(30), engine.open(ConversationSettings(model="vectors"), deliver) as conversation:
            for command in sent:
                conversation.send(command)
            await over.wait()
        await engine.stop()
        return heard

    return asyncio.run(scenario())


def relay(path="embeddings", id="r", **body):
    return commands.Relay(id=id, path=path, body=json.dumps({"model": "vectors", **body}).encode())


def answer(folder, **body):
    data, usage, end = outcome(folder, relay(**body))
    assert end == events.ResponseEnded("r", "stop")
    reply = json.loads(data.data)
    assert usage.input_tokens == reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"]
    return reply


def test_texts_become_vectors_in_their_order(folder):
    texts = ["hello world", "abc", "hello world"]
    reply = answer(folder, input=texts)
    assert (reply["object"], reply["model"]) == ("list", "vectors")
    assert [each["index"] for each in reply["data"]] == [0, 1, 2] and {each["object"] for each in reply["data"]} == {"embedding"}
    assert np.allclose([each["embedding"] for each in reply["data"]], MiniLM(folder).embed(texts), atol=1e-6)
    assert reply["usage"]["prompt_tokens"] == 4 + 5 + 4


def test_one_text_needs_no_list(folder):
    assert answer(folder, input="abc")["data"] == answer(folder, input=["abc"], user="ann", dimensions=64, unknown={"a": 1})["data"]


def test_base64_has_the_same_numbers(folder):
    (encoded,) = answer(folder, input="abc", encoding_format="base64")["data"]
    (plain,) = answer(folder, input="abc", encoding_format="float")["data"]
    assert np.frombuffer(base64.b64decode(encoded["embedding"]), "<f4").tolist() == plain["embedding"]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "input"),
        ({"input": 3}, "invalid_type", "input"),
        ({"input": []}, "empty_array", "input"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "array_above_max_length", "input"),
        ({"input": ""}, "empty_string", "input"),
        ({"input": ["a", ""]}, "empty_string", "input[1]"),
        ({"input": [1, 2]}, "invalid_value", "input"),
        ({"input": [[1], [2]]}, "invalid_value", "input"),
        ({"input": "a", "dimensions": 63}, "invalid_value", "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "invalid_value", "encoding_format"),
    ],
)
def test_what_it_cannot_take_is_refused_by_name(folder, body, code, param):
    (failure,) = outcome(folder, relay(**body))
    assert (failure.status, failure.code, failure.param) == (400, code, param)


def test_who_sends_tokens_is_told_what_to_do(folder):
    (failure,) = outcome(folder, relay(input=[[1, 2]]))
    assert "Send text (LangChain: check_embedding_ctx_length=False)" in failure.message


def test_it_answers_nothing_and_says_so(folder):
    ask = commands.Respond(id="a", history=(history.Message("user", (history.TextPart("Hi"),)),))
    refused = outcome(folder, ask, relay("completions", "b"), relay("chat/completions", "c"))
    assert refused == [events.ResponseFailed.from_error(id, only_embeds("vectors")) for id in "abc"]


def test_a_request_that_is_cancelled_ends_and_others_go_on(folder):
    heard = outcome(
        folder, relay(id="a", input=["hello " * 256] * 500), relay(id="b", input="abc"), commands.Cancel("a"), commands.Cancel("x")
    )
    assert events.ResponseEnded("a", "cancelled") in heard and events.ResponseEnded("b", "stop") in heard


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": "smollm2-135m-instruct"}, "can't be used here; the catalogue has 'all-minilm-l6-v2'"),
        ({"model": "a", "path": "b"}, "give one"),
        ({"modle": "a"}, "modle"),
    ],
)
def test_wrong_options_are_refused(options, problem):
    with pytest.raises(ServerError, match=problem):
        build("vectors", options, context())


def test_missing_weights_say_what_fetches_them(tmp_path):
    with pytest.raises(ServerError, match="antiphon models pull all-minilm-l6-v2"):
        asyncio.run(build("vectors", {}, context(tmp_path)).start())
