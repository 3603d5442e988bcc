"""The models that this server has: which engine answers for which name."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from antiphon.config import ModelEntry
from antiphon.engines.base import UNWATCHED, Build, Engine, Place, Watcher
from antiphon.errors import OurFault, listed, model_not_found

ENGINES: dict[str, str] = {
    "chat": "antiphon.engines.chat",
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

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        weights: Path,
        created_at: int,
        notice: Callable[[str], None],
        secrets: Mapping[str, str] = MappingProxyType({}),
        watcher: Watcher = UNWATCHED,
    ) -> None:
        self._models: dict[str, Model] = {}
        for entry in entries:
            place = Place(weights=weights, base=entry.origin_folder, notice=notice, secrets=secrets, watcher=watcher)
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
        The model of that name, or when no name is given the first that has one of its own.

        A configured name that ends in `*` stands for every name that begins so, and answers under the name that was asked; an
        exact name goes before it, and a longer one before a shorter.

        Raises:
            ClientMistake: `model_not_found`.
        """
        if name is None:
            name = next((known for known in self._models if not known.endswith("*")), "")
        if (exact := self._models.get(name)) is not None:
            return exact
        families = [known for known in self._models if known.endswith("*") and name.startswith(known[:-1])]
        if not name or not families:
            raise model_not_found(name, self._models)
        family = self._models[max(families, key=len)]
        return Model(name, family.engine, family.created_at)


def _build(engine: str) -> Build:
    if engine not in ENGINES:
        raise OurFault(f"There is no engine '{engine}'; there are {listed(ENGINES)}.")
    build: Build = importlib.import_module(ENGINES[engine]).build
    return build
