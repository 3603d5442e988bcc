"""The models to serve, with their weights on this machine."""

from typing import TYPE_CHECKING

from antiphon.cli import progress
from antiphon.cli.shell import Shell
from antiphon.weights import catalogue, fetch

if TYPE_CHECKING:
    from antiphon.config import Config


def with_models(config: "Config", shell: Shell) -> "Config":
    """
    `config` with at least one model, and the weights fetched that its models take from the catalogue.

    Raises:
        Fault: weights are needed and can't be had.
    """
    if not config.models:
        return _with_default(config, shell)
    for model in config.models:
        name = model.options.get("model")
        # An engine says itself what is wrong with its options; here they only tell what to fetch before it starts.
        if model.engine == "local" and isinstance(name, str) and name in catalogue.load():
            with progress.shown(shell) as report:
                fetch.ensure(name, config.models_dir, report)
    return config


def _with_default(config: "Config", shell: Shell) -> "Config":
    from antiphon.config import ModelEntry  # noqa: PLC0415 - pydantic takes longer to load than `--help` takes altogether

    notices: list[str] = []
    with progress.shown(shell) as report:
        name = fetch.default_model(config.models_dir, report, notices.append)
    for notice in notices:
        shell.note(notice)
    return config.model_copy(update={"models": (ModelEntry(name=name, engine="local", options={"model": name}),)})
