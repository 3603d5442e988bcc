"""`antiphon models`: list, show, pull, rm."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from cyclopts import App

from antiphon.cli.common import progress, settings
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter
from antiphon.cli.common.shell import UsageError, format_size
from antiphon.errors import ServerError, quote_list
from antiphon.weights import catalogue, fetch
from antiphon.weights.catalogue import CatalogueModel

app = App(
    name="models",
    help="""
See, fetch and remove model weights.

Try:
    antiphon models list
    antiphon models pull
""",
)


@app.command(name="list")
def list_(*, as_json: JsonFlag = False, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the models of the catalogue, and which are installed.

    Kinds: llm answers. The others are for voice conversations: vad detects
    speech, turn the end of a turn, stt transcribes, and tts speaks. You can
    serve any other GGUF file, too: name it by `path` in the configuration.

    Try:
        antiphon models list
    """
    folder = settings.load(shell, file).config.models_dir
    states = _states(folder)
    if as_json:
        return shell.say_json([_to_dict(model, folder, states) for model in catalogue.load().values()])
    rows = [
        (name, model.kind, format_size(model.size_bytes), model.licence, states[name], model.description)
        for name, model in catalogue.load().items()
    ]
    return shell.say_rows([("NAME", "KIND", "SIZE", "LICENCE", "STATE", "WHAT IT IS"), *rows])


@app.command
def show(name: str, /, *, as_json: JsonFlag = False, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Show a model: what it is, where it comes from, and its files.

    Try:
        antiphon models show smollm2-135m-instruct

    Args:
        name: from `antiphon models list`.
    """
    model = _find(name)
    folder = settings.load(shell, file).config.models_dir
    facts = _to_dict(model, folder, _states(folder))
    if as_json:
        return shell.say_json(facts | {"files": msgspec.to_builtins(model.files)})
    files = [("file", f"{part.path}, {format_size(part.size_bytes)}, sha256 {part.sha256}") for part in model.files]
    labels = {"size_bytes": ("size", format_size(model.size_bytes)), "default": ("default", "yes" if facts["default"] else "no")}
    return shell.say_rows([*(labels.get(key, (key, str(value))) for key, value in facts.items()), *files])


@app.command(usage="Usage: antiphon models pull [OPTIONS] [NAMES...]")
def pull(*names: str, speech: bool = False, file: ConfigFlag = None, shell: ShellParameter) -> int:
    """
    Fetch models, and check every byte.

    It skips what is installed, resumes what broke off, and goes on with the
    others when one fails.

    Try:
        antiphon models pull
        antiphon models pull smollm2-135m-instruct
        antiphon models pull --speech

    Args:
        names: from `antiphon models list`; by default the default model.
        speech: fetch the models for voice conversations.
    """
    models = [_find(name) for name in names] + list(catalogue.speech_models() if speech else ())
    models = models or list(catalogue.default_models()[:1])
    folder = settings.load(shell, file).config.models_dir
    failures = 0
    for model in models:
        try:
            with progress.show_progress(shell) as report:
                home = fetch.ensure(model, folder, report)
        except ServerError as error:
            shell.note(error.message)
            failures += 1
        else:
            shell.say(str(model.main_file(home) if len(model.files) == 1 else home))
    return int(failures > 0)


@app.command(usage="Usage: antiphon models rm [OPTIONS] NAMES...")
def rm(*names: str, file: ConfigFlag = None, shell: ShellParameter) -> int:
    """
    Remove models from this machine; the exit code is 1 if one is not here.

    Try:
        antiphon models rm smollm2-135m-instruct

    Args:
        names: from `antiphon models list`.
    """
    if not names:
        raise UsageError(f"Name at least one; there are {quote_list(catalogue.load())}.")
    models = [_find(name) for name in names]
    folder = settings.load(shell, file).config.models_dir
    states, absent_count = _states(folder), 0
    for model in models:
        if states[model.name] == "-":
            absent_count += 1
            shell.note(f"{model.name} is not here")
            continue
        shell.say(f"{model.name}: {format_size(fetch.remove(model, folder))} freed")
    return int(absent_count > 0)


def _find(name: str) -> CatalogueModel:
    try:
        return catalogue.find(name)
    except ServerError as error:
        raise UsageError(error.message) from None


def _states(folder: Path) -> dict[str, str]:
    """What is installed of every model of the catalogue."""
    # A folder of which nothing has arrived yet counts as absent.
    states = {model.name: "here" if model.is_complete else "in part" for model in fetch.installed_models(folder) if model.size_bytes}
    return {name: states.get(name, "-") for name in catalogue.load()}


def _to_dict(model: CatalogueModel, folder: Path, states: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": model.name,
        "kind": model.kind,
        "description": model.description,
        "licence": model.licence,
        "homepage": model.homepage,
        "size_bytes": model.size_bytes,
        "state": {"here": "installed", "in part": "partial", "-": "absent"}[states[model.name]],
        "default": model in (*catalogue.default_models()[:1], *catalogue.speech_models(), catalogue.embedding_model()),
        "folder": str(folder / model.name),
    }
