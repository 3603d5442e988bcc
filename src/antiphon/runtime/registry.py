"""The models that this server has: which engine answers for which name."""

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from antiphon.config import ModelEntry
from antiphon.engines.base import UNWATCHED, Build, Engine, Fetch, ListingEngine, Place, Watcher, fetch_nothing
from antiphon.errors import OurFault, listed, model_not_found

ENGINES: dict[str, str] = {
    "chat": "antiphon.engines.chat",
    "local": "antiphon.engines.local",
    "realtime": "antiphon.engines.realtime",
    "responses": "antiphon.engines.responses",
    "scripted": "antiphon.engines.scripted",
}
"""Every engine by the name it has in the configuration; its module is loaded when a model asks for it."""


class Model(Struct, frozen=True, eq=False):
    """
    A model under the name that clients ask for.

    Attributes:
        around: gives an engine ears and a voice where it has none of its own.
    """

    name: str
    engine: Engine
    created_at: int
    around: Callable[[Engine], Engine] = lambda engine: engine

    @property
    def live(self) -> Engine:
        """What answers in live conversations."""
        return self.around(self.engine)


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
        fetch: Fetch = fetch_nothing,
        around: Callable[[Engine], Engine] = lambda engine: engine,
    ) -> None:
        self._models: dict[str, Model] = {}
        for entry in entries:
            place = Place(weights=weights, base=entry.origin_folder, notice=notice, secrets=secrets, watcher=watcher, fetch=fetch)
            engine = _build(entry.engine)(entry.name, entry.options, place)
            self._models[entry.name] = Model(entry.name, engine, created_at, around)

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

    async def listed(self) -> list[Model]:
        """Every model that can be asked for by name, in the order configured: for a family, those that its upstream says it has."""
        async with asyncio.TaskGroup() as tasks:
            members = [tasks.create_task(self._members(model)) for model in self._models.values()]
        found: dict[str, Model] = {}
        for model in (model for task in members for model in task.result()):
            found.setdefault(model.name, model)
        return list(found.values())

    async def _members(self, model: Model) -> list[Model]:
        if not model.name.endswith("*"):
            return [model]
        names = await model.engine.names() if isinstance(model.engine, ListingEngine) else ()
        return [Model(name, model.engine, model.created_at, model.around) for name in names if self._family(name) is model]

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
        if name.endswith("*"):  # a family's own name is nobody's
            raise model_not_found(name, self._models)
        if (exact := self._models.get(name)) is not None:
            return exact
        family = self._family(name)
        if not name or family is None:
            raise model_not_found(name, self._models)
        return Model(name, family.engine, family.created_at, family.around)

    def has(self, name: str) -> bool:
        """Whether a model answers to that name."""
        return bool(name) and not name.endswith("*") and (name in self._models or self._family(name) is not None)

    def _family(self, name: str) -> Model | None:
        """The family that answers for a name."""
        families = [known for known in self._models if known.endswith("*") and name.startswith(known[:-1])]
        return self._models[max(families, key=len)] if families else None


def _build(engine: str) -> Build:
    if engine not in ENGINES:
        raise OurFault(f"There is no engine '{engine}'; there are {listed(ENGINES)}.")
    build: Build = importlib.import_module(ENGINES[engine]).build
    return build
