"""What is fetched before anything is served, on a machine where no weights can be kept."""

import io
from pathlib import Path

import pytest

from antiphon.cli.common import weights
from antiphon.cli.common.shell import Shell
from antiphon.config.load import Config, ModelEntry
from antiphon.config.settings import SpeechSettings
from antiphon.errors import ServerError
from antiphon.runtime.speech import service


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(environ={}, cwd=tmp_path, stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO())


@pytest.fixture
def config(tmp_path: Path):
    """A configuration by its engine, whose folder of weights is a file."""
    (tmp_path / "models").write_text("")

    def of(engine: str, **settings: object) -> Config:
        entry = ModelEntry(name="model", engine=engine, options={} if engine == "scripted" else {"base_url": "http://127.0.0.1:1/v1"})
        return Config(home=tmp_path, models_dir=tmp_path / "models", models=(entry,), speech=SpeechSettings(**settings))

    return of


needs_speech = pytest.mark.skipif(bool(service.missing_modules(SpeechSettings())), reason="the extra speech is not installed")


def test_models_that_were_chosen_get_no_ears_that_nobody_asked_for(config, shell):
    chosen = config("chat")
    assert weights.with_optional_speech(chosen, shell) is chosen
    assert shell.stderr.getvalue() == ""


@needs_speech
def test_ears_that_were_asked_for_are_fetched_or_it_fails(config, shell):
    with pytest.raises(ServerError, match="models can't be used"):
        weights.with_optional_speech(config("chat", enabled=True), shell)


@needs_speech
def test_to_talk_to_a_model_that_only_writes_takes_ears(config, shell):
    with pytest.raises(ServerError, match="models can't be used"):
        weights.with_speech(config("chat"), shell)


@pytest.mark.parametrize(("engine", "settings"), [("scripted", {}), ("realtime", {}), ("chat", {"enabled": False})])
def test_nothing_is_fetched_for_what_hears_by_itself_or_is_not_to_hear(config, shell, engine, settings):
    assert weights.with_speech(config(engine, **settings), shell).models[0].engine == engine
