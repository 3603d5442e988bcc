"""The models that this server has: which engine answers for which name."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from antiphon.config import ModelEntry
from antiphon.engines.base import Build, Engine, Place
from antiphon.errors import OurFault, listed, model_not_found

ENGINES: dict[str, str] = {
    "local": "antiphon.engines.local",
    "scripted": "antiphon.engines.scripted",
}
"""Every engine by the name it has in the configuration; its module is loaded when a model asks for it."""


class Model(Struct, frozen=True, eq=False):
    """A model under the name that clients ask for."""

    name: str
    engine: Engine
    created_at: int


class Registry:
    """
    Models by name; the first is the one that answers when a request names none.

    Raises:
        OurFault: an entry names no engine that there is, or its options are wrong.
    """

    def __init__(self, entries: Sequence[ModelEntry], weights: Path, created_at: int, notice: Callable[[str], None]) -> None:
        self._models: dict[str, Model] = {}
        for entry in entries:
            place = Place(weights=weights, base=entry.origin_folder, notice=notice)
            engine = _build(entry.engine)(entry.name, entry.options, place)
            self._models[entry.name] = Model(entry.name, engine, created_at)

    async def start(self) -> None:
        """
        Make every engine ready to answer.

        Raises:
            Fault: one can't, with what it needs.
        """
        for model in self._models.values():
            await model.engine.start()

    async def stop(self) -> None:
        """Let every engine go; idempotent."""
        for model in self._models.values():
            await model.engine.stop()

    def all(self) -> list[Model]:
        """Every model, in the order configured."""
        return list(self._models.values())

    def find(self, name: str | None) -> Model:
        """
        The model of that name, or the first when no name is given.

        Raises:
            ClientMistake: `model_not_found`.
        """
        if name is None and self._models:
            return next(iter(self._models.values()))
        if name is None or name not in self._models:
            raise model_not_found(name or "", self._models)
        return self._models[name]


def _build(engine: str) -> Build:
    if engine not in ENGINES:
        raise OurFault(f"There is no engine '{engine}'; there are {listed(ENGINES)}.")
    build: Build = importlib.import_module(ENGINES[engine]).build
    return build
