"""Checks of the configuration and of what is installed, without loading what they check."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from antiphon.cli.common import lazy
from antiphon.cli.common.shell import UsageError
from antiphon.config.load import Config, ModelEntry
from antiphon.config.names import name_problems
from antiphon.engine_api.engine import BuildContext
from antiphon.errors import ServerError
from antiphon.installation import missing_modules
from antiphon.runtime.balancing.build import build_engine, fallback_problems
from antiphon.runtime.balancing.fallback_engine import FallbackModel
from antiphon.runtime.webhooks.endpoint import build_endpoints
from antiphon.weights import catalogue, fetch, verify

_T = TypeVar("_T")


def check_models(config: Config) -> None:
    """
    Check that every model, every prompt and every route can be served as configured.

    Raises:
        UsageError: one line for each that can't.
    """
    raise_usage_error([*prompt_problems(config), *route_problems(config), *model_problems(config)])


def raise_usage_error(problems: Iterable[str]) -> None:
    """
    Raise if there are problems.

    Raises:
        UsageError: one line for each problem.
    """
    if lines := list(problems):
        raise UsageError("\n".join(lines))


def process_problems(config: Config) -> Iterator[str]:
    """What several server processes can't do together; one line each."""
    if config.server.processes > 1:
        yield from _problems_from(lazy.supervisor.check_shareable, config)


def store_problems(config: Config) -> Iterator[str]:
    """What is wrong with the configured store; one line each. It does not connect to the store."""
    yield from _problems_from(lazy.service.check_key_store, config)
    if config.database_url is not None:
        yield from _problems_from(lazy.database.Database, config.database_url)


def prompt_problems(config: Config) -> Iterator[str]:
    """What is wrong with the configured prompts; one line each."""
    if config.prompts:
        yield from lazy.prompts.prompt_problems(config)


def route_problems(config: Config) -> Iterator[str]:
    """What of the configured routes and rewrites does not fit the models; one line each."""
    return name_problems(config, [entry.name for entry in config.models] or [model.name for model in catalogue.default_models()])


def webhook_problems(config: Config) -> Iterator[str]:
    """What is missing for the configured webhooks; one line each. It calls none of them."""
    for index, webhook in enumerate(config.webhooks):
        for problem in _problems_from(lambda entry: build_endpoints([entry], config.secrets), webhook):
            yield config.locate(f"webhooks[{index}].secret_env", problem)


def tool_problems(config: Config) -> Iterator[str]:
    """What the configured tools need and is not there: keys, files, folders, programs; one line each. It runs none of them."""
    for key, problem in _missing_for_tools(config):
        yield config.locate(key, f"`{key}`: {problem}")


def _missing_for_tools(config: Config) -> Iterator[tuple[str, str]]:
    tools = config.tools
    keys = {f"tools.mcp[{n}]": server.key_env for n, server in enumerate(tools.mcp)}
    keys |= {f"tools.images[{n}]": images.key_env for n, images in enumerate(tools.images)}
    keys["tools.web_search"] = tools.web_search.key_env if tools.web_search else None
    for table, name in keys.items():
        if name and not config.secrets.get(name, "").strip():
            yield f"{table}.key_env", f"{name} is not set."
    for n, server in enumerate(tools.mcp):
        program = server.command[0] if server.command else ""
        # A relative path is one in the folder in which the program will run.
        if program and (Path(program).is_absolute() or "/" not in program) and not shutil.which(program):
            yield f"tools.mcp[{n}].command", f"there is no program '{program}'."
    for n, functions in enumerate(tools.functions):
        if functions.file and not Path(functions.file).is_file():
            yield f"tools.functions[{n}].file", f"there is no file '{functions.file}'."
    pages = tools.web_search.folders if tools.web_search else ()
    folders = {f"tools.web_search.folders[{n}].path": Path(each.path) for n, each in enumerate(pages)}
    if (packages := tools.code_interpreter.packages_folder) is not None:
        folders["tools.code_interpreter.packages_folder"] = packages
    for key, folder in folders.items():
        if not folder.is_dir():
            yield key, f"there is no folder '{folder}'."


def _problems_from(check: Callable[[_T], object], subject: _T) -> Iterator[str]:
    try:
        check(subject)
    except ServerError as error:
        yield error.message


def runtime_problems(config: Config) -> Iterator[str]:
    """What is not installed of what the configured models run on; one line each."""
    is_local = not config.models or any(model.engine == "local" for model in config.models)
    # Asked first, as the engine takes a while to load.
    if is_local and missing_modules(("xllamacpp",)) and (problem := lazy.llama_server.runtime_problem()):
        yield problem


def model_problems(config: Config, notice: Callable[[str], None] = lambda _line: None) -> Iterator[str]:
    """What is wrong with the configured models; one line for each model. `notice` takes what may be a mistake."""
    for name, problem in fallback_problems(config.models):
        yield config.locate_model(name, problem)
    for entry in config.models:
        if text := _model_problem(entry, config, notice):
            yield config.locate_model(entry.name, text if f"'{entry.name}'" in text else f"Model '{entry.name}': {text}")


def _find_no_model(name: str) -> FallbackModel:
    raise LookupError(name)  # nothing is answered here


def _model_problem(entry: ModelEntry, config: Config, notice: Callable[[str], None]) -> str | None:
    context = BuildContext(weights_folder=config.models_dir, base_folder=entry.origin_folder, secrets=config.secrets, notice=notice)
    try:
        build_engine(entry, context, _find_no_model)
    except ServerError as error:
        return error.message
    path = entry.options.get("path") if entry.engine == "local" else None
    if isinstance(path, str) and not (file := context.base_folder / Path(path).expanduser()).is_file():
        return f"There is no model file {file}."
    return None


def missing_speech_models(config: Config) -> list[str]:
    """The configured speech models that are not fetched."""
    installed_names = {model.name for model in fetch.installed_models(config.models_dir) if model.is_complete}
    return [name for name in config.speech.catalogue_models if name not in installed_names]


def altered_speech_models(config: Config) -> list[str]:
    """The configured speech models whose files have changed since they were fetched."""
    missing = missing_speech_models(config)
    models = [catalogue.find(name) for name in config.speech.catalogue_models if name not in missing]
    return [model.name for model in models if verify.altered_files(model, config.models_dir / model.name)]


def pull_command(names: Sequence[str], program: str = "antiphon") -> str:
    """The command that fetches these speech models."""
    defaults = {model.name for model in catalogue.speech_models()}
    return f"{program} models pull {'--speech' if defaults.issuperset(names) else ' '.join(names)}"
