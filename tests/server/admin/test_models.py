"""The list of models, in both shapes."""

import openai
import pytest

from antiphon.server.processes.run import background_server
from support.server.messages_peer import ask
from support.server.scripted_server import configured


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    plain = dict.fromkeys(["images", "files", "audio_in", "listens", "videos", "sees"], False)
    models = {f"model-{number}": {"engine": "scripted"} for number in range(5)}
    models["small"] = {"engine": "scripted", "abilities": plain | {"context_window": 4096, "images": True, "audio_out": False}}
    with background_server(configured(tmp_path_factory.mktemp("home"), models)) as address:
        yield address


def listed(url, query=""):
    status, headers, body = ask(url, "GET", f"/v1/models{query}", anthropic_version="2023-06-01")
    assert status == 200 and headers["request-id"]
    return [model["id"] for model in body["data"]], body["has_more"], body["first_id"], body["last_id"]


def test_a_model_says_how_much_it_reads_and_of_what(url):
    model = ask(url, "GET", "/v1/models/small")[2]
    assert (model["object"], model["owned_by"]) == ("model", "antiphon")
    assert model["context_length"] == model["max_model_len"] == 4096
    assert model["input_modalities"] == ["text", "image"]
    assert model["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
    assert "context_length" not in ask(url, "GET", "/v1/models/model-0")[2]


def test_a_model_says_what_it_is_for(url):
    told = ask(url, "GET", "/v1/models/small")[2]["antiphon"]
    assert (told["engine"], told["state"], told["context_window"]) == ("scripted", "ready", 4096)
    assert told["abilities"]["images"] is True and told["abilities"]["audio_in"] is False
    assert (told["listens"], told["speaks"]) == (False, False) and told["kinds"] == ["responses", "chat"]
    other = ask(url, "GET", "/v1/models/model-0")[2]["antiphon"]
    assert other["listens"] and other["speaks"] and "realtime" in other["kinds"]
    listed = {model["id"]: model["antiphon"] for model in ask(url, "GET", "/v1/models")[2]["data"]}
    assert listed["small"] == told and listed["model-0"] == other


def test_openais_client_passes_what_it_does_not_know_over(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        models = {model.id: model for model in client.models.list()}
        assert set(models) == {*(f"model-{number}" for number in range(5)), "small"}
        assert client.models.retrieve("small").model_extra["antiphon"]["engine"] == "scripted"


def test_anthropics_clients_get_the_shape_of_their_api(url):
    model = ask(url, "GET", "/v1/models/small", anthropic_version="2023-06-01")[2]
    assert model.pop("created_at").endswith("Z")
    expected = {"type": "model", "id": "small", "display_name": "small", "lifecycle": "active"}
    assert model == expected | {"max_input_tokens": 4096, "max_tokens": 4096}


def test_their_list_has_pages_in_both_directions(url):
    names = [*(f"model-{number}" for number in range(5)), "small"]
    assert listed(url) == (names, False, "model-0", "small")
    assert listed(url, "?limit=2") == (names[:2], True, "model-0", "model-1")
    assert listed(url, "?limit=2&after_id=model-1") == (names[2:4], True, "model-2", "model-3")
    assert listed(url, "?limit=9&after_id=model-3") == (names[4:], False, "model-4", "small")
    assert listed(url, "?limit=2&before_id=model-3") == (names[1:3], True, "model-1", "model-2")
    assert listed(url, "?after_id=small") == ([], False, None, None)


WRONG_PAGES = ["limit=0", "limit=x", "limit=1001", "limit=010009", f"limit=00001{'0' * 5000}", "after_id=none", "before_id=none"]


@pytest.mark.parametrize("query", WRONG_PAGES, ids=lambda query: query[:20])
def test_a_wrong_page_is_refused(url, query):
    status, _, body = ask(url, "GET", f"/v1/models?{query}", anthropic_version="2023-06-01")
    assert (status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert query.partition("=")[0] in body["error"]["message"]


def test_a_model_that_is_not_there_is_told_in_either_shape(url):
    status, _, body = ask(url, "GET", "/v1/models/none", anthropic_version="2023-06-01")
    assert (status, body["error"]["type"]) == (404, "not_found_error")
    status, _, body = ask(url, "GET", "/v1/models/none")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
