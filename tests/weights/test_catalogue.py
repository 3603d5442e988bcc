"""The catalogue: data that a mistake in can't hide."""

import msgspec
import pytest

from antiphon.errors import ServerError
from antiphon.weights import catalogue
from antiphon.weights.catalogue import HubFile, NpmFile, WheelsFile


def test_the_default_is_qwen_and_smollm2_stands_in_for_it():
    assert [model.name for model in catalogue.default_models()] == ["qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"]


@pytest.mark.parametrize("model", catalogue.load().values(), ids=lambda model: model.name)
def test_every_model_says_what_it_may_be_used_for_and_can_be_had_without_a_hub(model):
    assert model.licence and model.description and model.size_bytes > 0
    for file in model.files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert any(isinstance(source, WheelsFile | NpmFile) for source in file.sources)
        assert not any(isinstance(source, HubFile) for source in file.sources[1:])


def test_conversations_aloud_take_one_model_of_each_kind():
    assert [model.kind for model in catalogue.speech_models()] == ["vad", "turn", "stt", "tts"]


def test_only_models_that_answer_are_the_default():
    assert {model.kind for model in catalogue.default_models()} == {"llm"}


@pytest.mark.parametrize("model", catalogue.load().values(), ids=lambda model: model.name)
def test_packages_are_pinned_and_paths_stay_inside(model):
    for file in model.files:
        assert not file.path.startswith("/") and ".." not in file.path
        parts = [part for source in file.sources if isinstance(source, WheelsFile) for part in source.parts]
        assert all("==" in part.requirement for part in parts)
        assert all("@" in source.package[1:] for source in file.sources if isinstance(source, NpmFile))


def test_a_key_that_means_nothing_is_an_error():
    with pytest.raises(msgspec.ValidationError, match="colour"):
        catalogue.parse('defaults = []\n[models.x]\ncolour = "red"')


def test_an_unknown_model_is_refused_by_name():
    with pytest.raises(ServerError, match="no model 'gpt-9'"):
        catalogue.find("gpt-9")


def test_for_a_model_that_answers_only_such_models_are_offered():
    with pytest.raises(ServerError) as raised:
        catalogue.find("smollm2", "llm")
    assert "'smollm2-135m-instruct'" in raised.value.message
    for name, model in catalogue.load().items():
        assert (f"'{name}'" in raised.value.message) is (model.kind == "llm")


def test_a_voice_is_no_model_that_answers():
    with pytest.raises(ServerError, match="'piper-en-us-joe-medium' speaks, and can't be used here; the catalogue has 'qwen"):
        catalogue.find("piper-en-us-joe-medium", "llm")
