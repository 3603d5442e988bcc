"""The models to serve, with their weights on this machine."""

from typing import TYPE_CHECKING

from antiphon.cli.common import checks, progress
from antiphon.cli.common.shell import Shell
from antiphon.errors import ApiError
from antiphon.weights import catalogue, fetch

if TYPE_CHECKING:
    from antiphon.config.load import Config


def with_models(config: "Config", shell: Shell) -> "Config":
    """
    `config` with at least one model, and the weights fetched that its models take from the catalogue.

    Raises:
        ApiError: weights are needed and can't be had.
        UsageError: a model can't be served as it is configured.
    """
    if not config.models:
        return _with_default_model(config, shell)
    if config.server.processes == 1:  # of several each looks for itself; the one that starts them has no engine in its memory
        checks.check_models(config)
    for model in config.models:
        name = model.options.get("model")
        if model.engine == "local" and isinstance(name, str) and name in catalogue.load():
            with progress.show_progress(shell) as report:
                fetch.ensure(name, config.models_dir, report)
    return config


TEXT_ENGINES = ("local", "chat", "responses")
"""Engines that only read and write, so that talking to their models takes ears and a voice."""


def with_optional_speech(config: "Config", shell: Shell) -> "Config":
    """
    `config` as `with_models` makes it, and ears and a voice where models are not chosen or these are asked for.

    Raises:
        ApiError: weights are needed and can't be had. Those of ears and a voice that nobody asked for are none of these.
    """
    served = with_models(config, shell)
    if config.speech.enabled:
        _fetch_speech(config, shell)
    elif not config.models:
        try:
            _fetch_speech(config, shell)
        except ApiError as fault:
            shell.note(f"{fault.message} So there will be no conversations aloud.")
    return served


def with_speech(config: "Config", shell: Shell) -> "Config":
    """
    `config` as `with_models` makes it, for a conversation aloud.

    Raises:
        ApiError: weights are needed and can't be had.
    """
    served = with_models(config, shell)
    if any(model.engine in TEXT_ENGINES for model in served.models):
        _fetch_speech(config, shell)
    return served


def _fetch_speech(config: "Config", shell: Shell) -> None:
    """Fetch what ears and a voice take, where they are of any use."""
    from antiphon.runtime.speech import service  # noqa: PLC0415 - the engines' contracts load slowly, and most verbs need none

    if config.speech.enabled is False or service.missing_modules(config.speech):
        return
    with progress.show_progress(shell) as report:
        for name in config.speech.catalogue_models:
            fetch.ensure(name, config.models_dir, report)


def _with_default_model(config: "Config", shell: Shell) -> "Config":
    from antiphon.config.load import ModelEntry  # noqa: PLC0415 - pydantic takes longer to load than `--help` takes altogether

    notices: list[str] = []
    with progress.show_progress(shell) as report:
        name = fetch.default_model(config.models_dir, report, notices.append)
    for notice in notices:
        shell.note(notice)
    return config.model_copy(update={"models": (ModelEntry(name=name, engine="local", options={"model": name}),)})
