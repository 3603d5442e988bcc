"""The engines that there are, by the names that they have in the configuration."""

import importlib

from antiphon.engines.base import Build
from antiphon.errors import OurFault, listed

ENGINES: dict[str, str] = {
    "chat": "antiphon.engines.chat",
    "local": "antiphon.engines.local",
    "omni": "antiphon.engines.omni",
    "realtime": "antiphon.engines.realtime",
    "responses": "antiphon.engines.responses",
    "scripted": "antiphon.engines.scripted",
    "worker": "antiphon.engines.worker",
}
"""Every engine by the name it has in the configuration; its module is loaded when a model asks for it."""


NATIVE = frozenset({"local"})
"""Engines that are native code in this machine's memory, and therefore have a process of their own where the settings say so."""


def builder(engine: str) -> Build:
    """
    What builds such an engine; only now is its module loaded.

    Raises:
        OurFault: there is none of that name.
    """
    if engine not in ENGINES:
        raise OurFault(f"There is no engine '{engine}'; there are {listed(ENGINES)}.")
    build: Build = importlib.import_module(ENGINES[engine]).build
    return build
