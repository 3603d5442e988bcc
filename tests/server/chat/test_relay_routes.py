"""Vectors over HTTP: from the embedded model and from other servers, by the official client and by plain HTTP."""

import base64
import json

import numpy as np
import openai
import pytest

from antiphon.embeddings.minilm import MiniLM
from antiphon.server.processes.run import background_server
from support.embeddings.tiny_model import write_tiny_model
from support.engines.upstreams import whole
from support.server.plain_http import post
from support.server.raw_upstream import playing
from support.server.scripted_server import configured

PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def served(tmp_path_factory, folder):
    vectors = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [1.0, 0.5]}],
        "model": "x",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    with playing(whole("200 OK", vectors)) as (url, upstream):
        models = {
            "vectors": {"engine": "embeddings", "path": str(folder)},
            "parrot": {"engine": "scripted"},
            "there": {"engine": "chat", "base_url": url, "quirks": "vllm"},
            "responses": {"engine": "responses", "base_url": url},
        }
        with background_server(configured(tmp_path_factory.mktemp("home"), models)) as base_url:
            yield base_url, upstream


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_official_client_gets_vectors_as_base64_and_as_numbers(client, folder):
    texts = ["hello world", "abc"]
    expected = MiniLM(folder).embed(texts)
    for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model="vectors", input=texts, **more)
        got = [
            np.frombuffer(base64.b64decode(each.embedding), "<f4") if isinstance(each.embedding, str) else each.embedding
            for each in answer.data
        ]
        assert np.allclose(got, expected, atol=1e-6)
        assert (answer.model, answer.usage.prompt_tokens) == ("vectors", 9)


def test_other_servers_get_the_request_as_it_is(served):
    base_url, upstream = served
    for model in ("there", "responses"):
        body = {"model": model, "input": [[1, 2], [3]], "dimensions": 2, "truncate_prompt_tokens": -1, "user": "ann"}
        status, _, reply = post(base_url, body, PATH)
        assert status == 200 and json.loads(reply)["model"] == model
        assert upstream.asked[-1] == (upstream.asked[-1][0], body) and upstream.asked[-1][0].startswith("POST /v1/embeddings ")


def test_a_request_without_a_model_goes_to_the_first_that_makes_vectors(served):
    assert json.loads(post(served[0], {"input": "abc"}, PATH)[2])["model"] == "vectors"


def test_a_model_that_makes_none_says_which_do(served):
    status, _, body = post(served[0], {"model": "parrot", "input": "abc"}, PATH)
    error = json.loads(body)["error"]
    assert (status, error["code"], error["param"]) == (400, "unsupported_model", "model")
    assert all(f"'{name}'" in error["message"] for name in ("vectors", "there", "responses"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/responses/input_tokens", {"input": "Hi"}),
    ],
)
def test_a_model_that_makes_vectors_is_refused_by_name_elsewhere(served, path, body):
    status, _, reply = post(served[0], {"model": "vectors", **body}, path)
    error = json.loads(reply)["error"]
    assert (status, error["code"], error["param"]) == (400, "unsupported_model", "model")
    assert "'vectors'" in error["message"] and "/v1/embeddings" in error["message"]


def test_it_is_not_the_model_of_those_who_name_none(served):
    status, _, reply = post(served[0], {"messages": [{"role": "user", "content": "Hi"}]}, "/v1/chat/completions")
    assert status == 200 and json.loads(reply)["model"] == "parrot"


def test_it_is_among_the_models(client):
    assert "vectors" in [model.id for model in client.models.list()]
    assert client.models.retrieve("vectors").id == "vectors"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": "vectors"}, "missing_required_parameter", "input"),
        ({"model": 3, "input": "a"}, "invalid_type", "model"),
        ({"model": "vectors", "input": [[1]]}, "invalid_value", "input"),
        ({"model": "vectors", "input": "a", "dimensions": 5}, "invalid_value", "dimensions"),
        ({"model": "nobody", "input": "a"}, "model_not_found", "model"),
    ],
)
def test_what_is_wrong_is_said_in_the_shape_of_the_original(served, body, code, param):
    status, _, reply = post(served[0], body, PATH)
    error = json.loads(reply)["error"]
    assert status in (400, 404) and (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize("body", [[], "x", 3, None])
def test_what_is_no_object_is_refused(served, body):
    status, _, reply = post(served[0], body, PATH)
    assert status == 400 and json.loads(reply)["error"]["type"] == "invalid_request_error"


def test_the_longest_list_of_the_original_is_answered(served):
    status, _, reply = post(served[0], {"model": "vectors", "input": ["a"] * 2048, "encoding_format": "base64"}, PATH)
    assert status == 200 and len(json.loads(reply)["data"]) == 2048
