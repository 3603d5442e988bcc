"""Preparing the configured models: fetching the weights they need."""

from antiphon.cli.common import checks, progress
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.config.load import Config, ModelEntry
from antiphon.config.routing import EMBEDDING_MODEL
from antiphon.errors import ApiError
from antiphon.installation import missing_modules
from antiphon.runtime.speech import service
from antiphon.weights import catalogue, fetch
from antiphon.weights.watch import FetchWatch

TEXT_ENGINES = ("local", "chat", "responses")
"""Engines without audio: talking to their models takes speech models, too."""

SILENT_ENGINES = (*TEXT_ENGINES, "embeddings")
"""Engines whose models take no speech without speech models, or at all."""


def weights_name(entry: ModelEntry) -> str:
    """The name of the weights that a configured model takes from the catalogue; empty for none."""
    name = entry.options.get("model") if entry.engine in ("local", "embeddings") else None
    if entry.engine == "embeddings" and "path" not in entry.options:
        name = name or catalogue.embedding_model().name
    return name if isinstance(name, str) else ""


def with_models(config: Config, shell: Shell, watch: FetchWatch | None = None) -> Config:
    """
    Fetch the weights that the models take from the catalogue.

    Returns:
        `config`; with the default model where it has none.

    Raises:
        ApiError: weights can't be fetched.
        UsageError: a model can't be served as configured, or what it runs on is not installed.
    """
    checks.raise_usage_error(checks.runtime_problems(config))
    if not config.models:
        return _with_default_model(config, shell, watch)
    if config.server.processes == 1:  # several processes check for themselves: the one that starts them should load no engine
        checks.check_models(config)
    fetch_embedding_model(config, shell, watch)
    for model in config.models:
        name = weights_name(model)
        if name in catalogue.load():
            with progress.show_progress(shell) as report:
                fetch.ensure(name, config.models_dir, report, watch=watch)
    return config


def with_optional_models(config: Config, shell: Shell, watch: FetchWatch | None = None) -> Config:
    """
    `with_optional_speech`, and the default embedding model where no model is configured.

    Raises:
        ApiError: as `with_optional_speech`. If the embedding model can't be fetched, that only makes a note.
    """
    served_config = with_optional_speech(config, shell, watch)
    return served_config if config.models else with_default_embeddings(served_config, shell, watch)


def fetch_embedding_model(config: Config, shell: Shell, watch: FetchWatch | None = None) -> None:
    """
    Fetch the model that compares requests with examples, if there are any.

    Raises:
        ApiError: it can't be fetched.
    """
    if any(route.examples for route in config.routing):
        with progress.show_progress(shell) as report:
            fetch.ensure(EMBEDDING_MODEL, config.models_dir, report, watch=watch)


def with_optional_speech(config: Config, shell: Shell, watch: FetchWatch | None = None) -> Config:
    """
    `with_models`, and the speech models where they are switched on, or no model is configured.

    Raises:
        ApiError: weights can't be fetched. Speech models that are not switched on only make a note.
    """
    served_config = with_models(config, shell, watch)
    if config.speech.enabled:
        _fetch_speech(config, shell, watch)
    elif not config.models:
        try:
            _fetch_speech(config, shell, watch)
        except ApiError as error:
            shell.note(f"{error.message} So the server can't hold voice conversations.")
    return served_config


def with_speech(config: Config, shell: Shell) -> Config:
    """
    `with_models`, and the speech models where a model needs them.

    Raises:
        ApiError: weights can't be fetched.
        UsageError: as `with_models`; or a model would need speech models, and what they run on is not installed.
    """
    needs_speech = not config.models or any(model.engine in TEXT_ENGINES for model in config.models)
    if needs_speech and config.speech.enabled is not False and (problem := service.packages_problem(config.speech)):
        raise UsageError(f"To talk to a model that reads and writes, {problem}")
    served_config = with_models(config, shell)
    if any(model.engine in TEXT_ENGINES for model in served_config.models):
        _fetch_speech(config, shell)
    return served_config


def _fetch_speech(config: Config, shell: Shell, watch: FetchWatch | None = None) -> None:
    if config.speech.enabled is False or service.missing_modules(config.speech):
        return
    if problem := service.catalogue_problem(config.speech):
        raise UsageError(problem)
    with progress.show_progress(shell) as report:
        for name in config.speech.catalogue_models:
            fetch.ensure(name, config.models_dir, report, watch=watch)


def with_default_embeddings(config: Config, shell: Shell, watch: FetchWatch | None = None) -> Config:
    """`config` with the default embedding model; if that can't be fetched, `config` itself, and a note."""
    if missing_modules(("numpy",)):
        return config
    name = catalogue.embedding_model().name
    try:
        with progress.show_progress(shell) as report:
            fetch.ensure(name, config.models_dir, report, watch=watch)
    except ApiError as error:
        shell.note(f"{error.message} So the server makes no vectors of texts.")
        return config
    entry = ModelEntry(name=name, engine="embeddings", options={"model": name})
    return config.model_copy(update={"models": (*config.models, entry)})


def _with_default_model(config: Config, shell: Shell, watch: FetchWatch | None = None) -> Config:
    notices: list[str] = []
    with progress.show_progress(shell) as report:
        name = fetch.default_model(config.models_dir, report, notices.append, watch=watch)
    for notice in notices:  # the progress bar would overwrite them
        shell.note(notice)
    return config.model_copy(update={"models": (ModelEntry(name=name, engine="local", options={"model": name}),)})
