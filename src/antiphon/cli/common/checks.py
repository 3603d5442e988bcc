"""Whether what is configured and what is here can be served, found out without loading any of it."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from antiphon.cli.common.shell import UsageError
from antiphon.errors import ServerError, quote_list
from antiphon.weights import catalogue, fetch, verify

if TYPE_CHECKING:
    from antiphon.config.load import Config, ModelEntry

_T = TypeVar("_T")


def check_models(config: "Config") -> None:
    """
    Refuse models that can't be served as they are configured.

    Raises:
        UsageError: with a line for each.
    """
    raise_usage_error(model_problems(config))


def raise_usage_error(problems: Iterable[str]) -> None:
    """
    Refuse what is configured, unless nothing is wrong with it.

    Raises:
        UsageError: with a line for each mistake.
    """
    if wrong := list(problems):
        raise UsageError("\n".join(wrong))


def process_problems(config: "Config") -> Iterator[str]:
    """What several processes could not do together, in a line; found without loading what each of them loads."""
    if config.server.processes > 1:
        from antiphon.server.processes.supervisor import check_shareable  # noqa: PLC0415 - `--help` should not wait for what it doesn't use

        yield from _problems_found_by(check_shareable, config)


def store_problems(config: "Config") -> Iterator[str]:
    """What is wrong with where responses and keys are to be kept, in a line, as far as that can be told without going there."""
    from antiphon.runtime.service import check_key_store  # noqa: PLC0415 - likewise
    from antiphon.stores.sql.database import Database  # noqa: PLC0415 - likewise

    yield from _problems_found_by(check_key_store, config)
    if config.database_url is not None:
        yield from _problems_found_by(Database, config.database_url)


def _problems_found_by(check: Callable[[_T], object], subject: _T) -> Iterator[str]:
    """What a check has against it."""
    try:
        check(subject)
    except ServerError as fault:
        yield fault.message


def model_problems(config: "Config") -> Iterator[str]:
    """What is wrong with the tables of the models, in a line for each that is wrong; it may be in an option, or in a file it names."""
    for entry in config.models:
        if wrong := _model_problem(entry, config):
            yield wrong if f"'{entry.name}'" in wrong else f"Model '{entry.name}': {wrong}"


def _model_problem(entry: "ModelEntry", config: "Config") -> str | None:
    from antiphon.engine_api.engine import BuildContext  # noqa: PLC0415 - `--help` should not wait for what it doesn't use
    from antiphon.runtime.core.engine_types import ENGINES  # noqa: PLC0415 - likewise

    if entry.engine not in ENGINES:
        return f"There is no engine '{entry.engine}'; there are {quote_list(ENGINES)}."
    place = BuildContext(weights_folder=config.models_dir, base_folder=entry.origin_folder, secrets=config.secrets)
    try:
        importlib.import_module(ENGINES[entry.engine]).build(entry.name, entry.options, place)
    except ServerError as fault:
        return fault.message
    path = entry.options.get("path") if entry.engine == "local" else None
    if isinstance(path, str) and not (file := place.base_folder / Path(path).expanduser()).is_file():
        return f"There is no model file {file}."
    return None


def missing_speech_models(config: "Config") -> list[str]:
    """The models of speech that are not here."""
    here = {model.name for model in fetch.installed_models(config.models_dir) if model.is_complete}
    return [name for name in config.speech.catalogue_models if name not in here]


def altered_speech_models(config: "Config") -> list[str]:
    """The models of speech that are here, and are not what was fetched."""
    absent = missing_speech_models(config)
    models = [catalogue.find(name) for name in config.speech.catalogue_models if name not in absent]
    return [model.name for model in models if verify.altered_files(model, config.models_dir / model.name)]


def pull_command(names: Sequence[str], program: str = "antiphon") -> str:
    """What to type to fetch models of speech."""
    usual = {model.name for model in catalogue.speech_models()}
    return f"{program} models pull {'--speech' if usual.issuperset(names) else ' '.join(names)}"
