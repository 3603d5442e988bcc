"""What is downloaded before the server starts, and a machine where weights can't be stored."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.cli.common import weights
from antiphon.cli.common.shell import Shell
from antiphon.config.load import Config, ModelEntry
from antiphon.config.settings import SpeechSettings
from antiphon.errors import ServerError
from antiphon.installation import install_hint
from antiphon.runtime.speech import service
from support.programs import forks

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
WEIGHTS = Path(os.environ.get("ANTIPHON_MODELS") or CACHE)


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


# A core installation, without any extra. Its folder of weights is a file, so a fetch would end with another message.

_RUN_WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # as if it were not installed
from antiphon.__main__ import main
main()
"""


def run_without(modules: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "models").write_text("")
    environ = {"HOME": str(tmp_path), "ANTIPHON_MODELS": str(tmp_path / "models"), "PYTHONPATH": ":".join(sys.path), "ANTIPHON_PORT": "0"}
    command = [sys.executable, "-c", _RUN_WITHOUT, modules, *arguments]
    return forks.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "arguments", [("serve",), ("serve", "--processes", "2"), ("demo",), ("ask", "What is a fugue?"), ("talk", "--sample")]
)
def test_without_the_model_runtime_nothing_is_fetched(tmp_path, arguments):
    result = run_without("xllamacpp", tmp_path, *arguments)
    assert result.returncode == 2
    assert f"The engine 'local' is not installed. {install_hint('local')}" in result.stderr


@needs_speech
def test_talking_without_the_packages_for_speech_fetches_no_model(tmp_path):
    result = run_without("onnxruntime", tmp_path, "talk", "--sample")
    assert result.returncode == 2
    assert f"To talk to a model that reads and writes, these are not installed: onnxruntime. {install_hint('speech')}" in result.stderr


def test_the_engine_itself_fetches_nothing_that_it_could_not_run(tmp_path):
    script = """
import asyncio, sys
from pathlib import Path
sys.modules["xllamacpp"] = None
from antiphon.engine_api.engine import BuildContext
from antiphon.engines.local.engine import build
from antiphon.errors import ServerError
engine = build("smollm2-135m-instruct", {}, BuildContext(weights_folder=Path("models"), base_folder=Path()))
try:
    asyncio.run(engine.start())
except ServerError as error:
    print(error.message)
"""
    (tmp_path / "models").write_text("")
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == f"The engine 'local' is not installed. {install_hint('local')}\n"


@pytest.mark.weights
def test_where_no_model_is_configured_vectors_are_offered_beside_the_default(tmp_path, shell):
    entry = ModelEntry(name="default", engine="local", options={})
    config = Config(home=tmp_path, models_dir=WEIGHTS, models=(entry,))
    offered = weights.with_default_embeddings(config, shell)
    assert [(model.name, model.engine) for model in offered.models] == [("default", "local"), ("all-minilm-l6-v2", "embeddings")]
    assert shell.stderr.getvalue() == ""


def test_vectors_that_cannot_be_had_are_not_offered_and_a_line_says_so(config, shell):
    chosen = config("scripted")
    assert weights.with_default_embeddings(chosen, shell) is chosen
    assert "makes no vectors" in shell.stderr.getvalue()


@pytest.mark.parametrize(
    ("engine", "options", "name"),
    [
        ("local", {"model": "a"}, "a"),
        ("embeddings", {}, "all-minilm-l6-v2"),
        ("embeddings", {"path": "here"}, ""),
        ("chat", {"model": "a"}, ""),
    ],
)
def test_only_embedded_models_take_weights(engine, options, name):
    assert weights.weights_name(ModelEntry(name="m", engine=engine, options=options)) == name
