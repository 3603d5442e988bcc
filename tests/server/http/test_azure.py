"""Azure's clients: OpenAI's APIs under the paths of Azure, the model in the path or in the body."""

import json

import openai
import pytest

from support.server.plain_http import post

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def azure(base_url):
    with openai.AzureOpenAI(azure_endpoint=base_url, api_version="2025-04-01-preview", api_key="none", max_retries=0) as client:
        yield client


def test_the_official_client_of_azure_has_its_answers(azure):
    completion = azure.chat.completions.create(model="parrot", messages=MESSAGES)
    assert (completion.model, completion.choices[0].message.content) == ("parrot", "You said: Hi")
    words = [chunk.choices[0].delta.content for chunk in azure.chat.completions.create(model="parrot", messages=MESSAGES, stream=True)]
    assert "".join(word or "" for word in words) == "You said: Hi"
    response = azure.responses.create(model="parrot", input="Hi")
    assert azure.responses.retrieve(response.id).output_text == "You said: Hi"
    assert "parrot" in [model.id for model in azure.models.list()]


def test_a_client_with_a_deployment_of_its_own_reaches_the_other_routes_too(base_url):
    with openai.AzureOpenAI(azure_endpoint=base_url, azure_deployment="slow", api_version="2024-10-21", api_key="none") as client:
        assert client.chat.completions.create(model="slow", messages=MESSAGES).model == "slow"
        assert client.responses.create(model="parrot", input="Hi").output_text == "You said: Hi"


def test_the_client_of_openai_has_them_under_the_current_path_of_azure(base_url):
    with openai.OpenAI(base_url=f"{base_url}/openai/v1/", api_key="none", default_query={"api-version": "preview"}) as client:
        assert client.responses.create(model="parrot", input="Hi").output_text == "You said: Hi"
        assert client.realtime.client_secrets.create().value


@pytest.mark.parametrize(
    ("fields", "model"), [({}, "slow"), ({"model": None}, "slow"), ({"model": "plain"}, "plain"), ({"model": "slow"}, "slow")]
)
def test_the_model_of_the_path_answers_unless_the_body_names_one(base_url, fields, model):
    path = "/openai/deployments/slow/chat/completions?api-version=2024-10-21"
    status, _, body = post(base_url, {"messages": MESSAGES, **fields}, path)
    assert (status, json.loads(body)["model"]) == (200, model)


def test_a_model_of_the_path_that_there_is_none_of_is_refused_by_name(azure, base_url):
    status, _, body = post(base_url, {"messages": MESSAGES}, "/openai/deployments/gpt-9/chat/completions")
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        azure.chat.completions.create(model="gpt-9", messages=MESSAGES)
