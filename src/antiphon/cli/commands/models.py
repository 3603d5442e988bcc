"""`antiphon models`: list, show, pull, rm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from cyclopts import App

from antiphon.cli.common import progress, settings
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter
from antiphon.cli.common.shell import UsageError
from antiphon.errors import ServerError, quote_list
from antiphon.weights import catalogue, fetch
from antiphon.weights.catalogue import CatalogueModel

_HELP = """
See, fetch and remove model weights.

Try:
    antiphon models list
    antiphon models pull
"""


def build_app() -> App:
    """`models` and what can be done with them."""
    app = App(name="models", help=_HELP)
    app.command(list_, name="list")
    for verb in (show, pull, rm):
        app.command(verb)
    app["pull"].usage = "Usage: antiphon models pull [OPTIONS] [NAMES...]"
    app["rm"].usage = "Usage: antiphon models rm [OPTIONS] NAMES..."
    return app


def list_(*, as_json: JsonFlag = False, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    List the models that can be fetched, and which are here.

    Of the kinds, an llm answers. The others are for conversations aloud: vad
    tells when someone speaks, turn when they are done, stt what they said, and
    tts is a voice. Any other GGUF file can be served too: name it by `path` in
    the configuration.

    Try:
        antiphon models list
    """
    folder = settings.load(shell, file).config.models_dir
    states = _states(folder)
    if as_json:
        return shell.say_json([_to_dict(model, folder, states) for model in catalogue.load().values()])
    rows = [
        (name, model.kind, _megabytes(model.size_bytes), model.licence, states[name], model.description)
        for name, model in catalogue.load().items()
    ]
    return shell.say_rows([("NAME", "KIND", "SIZE", "LICENCE", "STATE", "WHAT IT IS"), *rows])


def show(name: str, /, *, as_json: JsonFlag = False, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Show a model: what it is, where it is from, which files it has.

    Try:
        antiphon models show smollm2-135m-instruct

    Args:
        name: as `antiphon models list` has it.
    """
    model = _find(name)
    folder = settings.load(shell, file).config.models_dir
    facts = _to_dict(model, folder, _states(folder))
    if as_json:
        return shell.say_json(facts | {"files": msgspec.to_builtins(model.files)})
    files = [("file", f"{part.path}, {_megabytes(part.size_bytes)}, sha256 {part.sha256}") for part in model.files]
    told = {"size_bytes": ("size", _megabytes(model.size_bytes)), "default": ("default", "yes" if facts["default"] else "no")}
    return shell.say_rows([*(told.get(key, (key, str(value))) for key, value in facts.items()), *files])


def pull(*names: str, speech: bool = False, file: ConfigFlag = None, shell: ShellParameter) -> int:
    """
    Fetch models, and check every byte.

    What is here already is not fetched again; what broke off goes on. One that
    can't be had keeps no other from being fetched.

    Try:
        antiphon models pull
        antiphon models pull smollm2-135m-instruct
        antiphon models pull --speech

    Args:
        names: as `antiphon models list` has them; the default model where none is given.
        speech: those that conversations aloud take.
    """
    models = [_find(name) for name in names] + list(catalogue.speech_models() if speech else ())
    models = models or list(catalogue.default_models()[:1])
    folder = settings.load(shell, file).config.models_dir
    lacking = 0
    for model in models:
        try:
            with progress.show_progress(shell) as report:
                home = fetch.ensure(model, folder, report)
        except ServerError as fault:
            shell.note(fault.message)
            lacking += 1
        else:
            shell.say(str(model.main_file(home) if len(model.files) == 1 else home))
    return int(lacking > 0)


def rm(*names: str, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Remove models from this machine.

    Try:
        antiphon models rm smollm2-135m-instruct

    Args:
        names: as `antiphon models list` has them.
    """
    if not names:
        raise UsageError(f"Which one? There are {quote_list(catalogue.load())}.")
    models = [_find(name) for name in names]
    folder = settings.load(shell, file).config.models_dir
    for model in models:
        shell.say(f"{model.name}: {_megabytes(fetch.remove(model, folder))} freed")


def _find(name: str) -> CatalogueModel:
    if name not in catalogue.load():
        raise UsageError(f"There is no model '{name}'; there are {quote_list(catalogue.load())}.")
    return catalogue.find(name)


def _states(folder: Path) -> dict[str, str]:
    """What is here of every model of the catalogue."""
    found = {model.name: "here" if model.is_complete else "in part" for model in fetch.installed_models(folder) if model.size_bytes}
    return {name: found.get(name, "-") for name in catalogue.load()}


def _to_dict(model: CatalogueModel, folder: Path, states: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": model.name,
        "kind": model.kind,
        "description": model.description,
        "licence": model.licence,
        "homepage": model.homepage,
        "size_bytes": model.size_bytes,
        "state": {"here": "installed", "in part": "partial", "-": "absent"}[states[model.name]],
        "default": model in (*catalogue.default_models()[:1], *catalogue.speech_models()),
        "folder": str(folder / model.name),
    }


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"
