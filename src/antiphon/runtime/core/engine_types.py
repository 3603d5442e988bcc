"""The engines that there are, by the names that they have in the configuration."""

import importlib

from antiphon.engine_api.engine import Build
from antiphon.errors import ServerError, quote_list

ENGINES: dict[str, str] = {
    "chat": "antiphon.engines.chat.engine",
    "local": "antiphon.engines.local.engine",
    "omni": "antiphon.engines.omni.engine",
    "realtime": "antiphon.engines.realtime.engine",
    "responses": "antiphon.engines.responses.engine",
    "scripted": "antiphon.engines.scripted.engine",
    "worker": "antiphon.engines.remote.engine",
}
"""Every engine by the name it has in the configuration; its module is loaded when a model asks for it."""


NATIVE_ENGINES = frozenset({"local"})
"""Engines that are native code in this machine's memory, and therefore have a process of their own where the settings say so."""


def load_builder(engine: str) -> Build:
    """
    What builds such an engine; only now is its module loaded.

    Raises:
        ServerError: there is none of that name.
    """
    if engine not in ENGINES:
        raise ServerError(f"There is no engine '{engine}'; there are {quote_list(ENGINES)}.")
    build: Build = importlib.import_module(ENGINES[engine]).build
    return build
