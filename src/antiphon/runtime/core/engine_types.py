"""The engines by their names in the configuration."""

import importlib

from antiphon.engine_api.engine import Build
from antiphon.errors import ServerError, did_you_mean, quote_list
from antiphon.installation import install_hint

ENGINES: dict[str, str] = {
    "chat": "antiphon.engines.chat.engine",
    "embeddings": "antiphon.engines.embeddings.engine",
    "local": "antiphon.engines.local.engine",
    "omni": "antiphon.engines.omni.engine",
    "realtime": "antiphon.engines.realtime.engine",
    "responses": "antiphon.engines.responses.engine",
    "scripted": "antiphon.engines.scripted.engine",
    "worker": "antiphon.engines.remote.engine",
}
"""The module of each engine; it is loaded when a model uses it."""

_EXTRAS = {"omni": "speech", "embeddings": "embeddings"}
"""The extra with what an engine needs to be loaded; all others need none."""

NATIVE_ENGINES = frozenset({"local"})
"""Engines that run native code in this process, and get a process of their own if the settings say so."""


def load_builder(engine: str) -> Build:
    """
    Load an engine's module and return its `build`.

    Raises:
        ServerError: there is no engine of that name, or a library that it needs is not installed.
    """
    if engine not in ENGINES:
        raise ServerError(f"There is no engine '{engine}'; there are {quote_list(ENGINES)}.{did_you_mean(engine, ENGINES)}")
    try:
        build: Build = importlib.import_module(ENGINES[engine]).build
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(engine, "speech")
        raise ServerError(f"The engine '{engine}' needs {error.name}, which is not installed. {install_hint(extra)}") from error
    return build
