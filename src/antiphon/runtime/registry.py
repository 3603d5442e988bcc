"""The models that this server has: which engine answers for which name."""

import asyncio
import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, structs

from antiphon.config.load import ModelEntry
from antiphon.engine_api.engine import UNWATCHED, Engine, Fetch, ListingEngine, Place, PooledEngine, Watcher, fetch_nothing
from antiphon.engine_api.options import Kind
from antiphon.errors import model_not_found
from antiphon.runtime.core.engine_types import ENGINES, NATIVE, builder
from antiphon.runtime.scheduling.base import SCARCE, Coordinator, Worker
from antiphon.runtime.scheduling.engine import Queued
from antiphon.runtime.scheduling.local import Places
from antiphon.runtime.workers.child_engine import embedded

if TYPE_CHECKING:
    from antiphon.engines.duplex.vision import Reader


REMEMBERED = 64

_MINICPMO: tuple[Kind, ...] = ("chat", "audio", "video")


class Model(Struct, frozen=True, eq=False):
    """
    A model under the name that clients ask for.

    Attributes:
        engine: answers in writing.
        around: gives an engine ears and a voice where it has none of its own.
        duplex: answers clients of the MiniCPM-o protocol, when they have a place.
        family: the configured name that ends in `*` and stands for this one; None for a model with a name of its own.
    """

    name: str
    engine: Engine
    created_at: int
    around: Callable[[Engine], Engine]
    duplex: Queued
    family: str | None = None

    @property
    def live(self) -> Engine:
        """What answers in live conversations."""
        return self.around(self.engine)


class Registry:
    """
    Models by name; the first is the one that answers when a request names none.

    Args:
        around: gives an engine ears and a voice where it has none of its own.
        native_in: where engines of native code run.
        coordinator: gives out the places of those of which there are few.

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
        native_in: Literal["process", "thread"] = "thread",
        coordinator: Coordinator | None = None,
    ) -> None:
        self._models: dict[str, Model] = {}
        self._engines: list[Engine] = []
        self._coordinator = coordinator or Places()
        self._worker_ids: set[str] = set()
        self._duplexes: OrderedDict[int, Engine] = OrderedDict()
        self._pictures: Reader | None = None
        for entry in entries:
            place = Place(weights=weights, base=entry.origin_folder, notice=notice, secrets=secrets, watcher=watcher, fetch=fetch)
            engine = builder(entry.engine)(entry.name, entry.options, place)
            if entry.engine in NATIVE and native_in == "process":
                engine = embedded(ENGINES[entry.engine], entry.name, entry.options, place, engine.abilities)
            self._engines.append(engine)
            self._models[entry.name] = self._model(entry, engine, created_at, around)

    def _model(self, entry: ModelEntry, engine: Engine, created_at: int, around: Callable[[Engine], Engine]) -> Model:
        """What answers for an entry; an engine of several workers, or of those that join, does so when one of them has a place."""
        duplex = self._queued(entry.name, lambda worker: self._conversing(worker if worker.abilities.full_duplex else around(worker)))
        if isinstance(engine, PooledEngine):
            for address, place in engine.places.items():
                id, most = self._worker_id(entry.name), entry.sessions or place.abilities.sessions or 1
                self._coordinator.offer(Worker(id=id, model=entry.name, engine=place, slots=most, address=address))
        elif entry.engine not in SCARCE:
            id, slots = self._worker_id(entry.name), entry.sessions or engine.abilities.sessions
            self._coordinator.offer(Worker(id=id, model=entry.name, engine=engine, kinds=_MINICPMO, slots=slots))
            return Model(entry.name, engine, created_at, around, duplex)
        live = self._queued(entry.name, around)
        return Model(entry.name, self._queued(entry.name), created_at, lambda _engine: live, duplex)

    def _queued(self, model: str, dress: Callable[[Engine], Engine] = lambda engine: engine) -> Queued:
        queued = Queued(self._coordinator, model, dress)
        self._engines.insert(0, queued)  # to be stopped before what it is about
        return queued

    def _conversing(self, engine: Engine) -> Engine:
        """The engine in full duplex, where it is not and can be made so; workers come and go, and the last few are remembered."""
        if id(engine) not in self._duplexes:
            self._duplexes[id(engine)] = self._in_full_duplex(engine)  # which has the engine, so that no other has its id
            if len(self._duplexes) > REMEMBERED:
                self._duplexes.popitem(last=False)
        return self._duplexes[id(engine)]

    def _in_full_duplex(self, engine: Engine) -> Engine:
        from antiphon.engines.duplex.engine import Duplex, can_converse  # noqa: PLC0415 - many servers have no such conversations
        from antiphon.engines.duplex.vision import reader  # noqa: PLC0415 - likewise

        if not can_converse(engine.abilities):
            return engine
        if self._pictures is None:
            self._pictures = reader()
        return Duplex(engine, self._pictures)

    def _worker_id(self, model: str) -> str:
        """One that can stand in an address."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", model)
        id = next(f"{name}-{number}" for number in itertools.count(1) if f"{name}-{number}" not in self._worker_ids)
        self._worker_ids.add(id)
        return id

    async def start(self) -> None:
        """
        Make every engine ready to answer.

        Raises:
            Fault: one can't, with what it needs.
        """
        for engine in self._engines:
            await engine.start()

    async def stop(self) -> None:
        """Let every engine go; idempotent."""
        for engine in self._engines:
            await engine.stop()
        if self._pictures is not None:
            self._pictures.stop()

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
        return [structs.replace(model, name=name) for name in names if self._family(name) is model]

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
        return structs.replace(family, name=name, family=family.name)

    def has(self, name: str) -> bool:
        """Whether a model answers to that name."""
        return bool(name) and not name.endswith("*") and (name in self._models or self._family(name) is not None)

    def _family(self, name: str) -> Model | None:
        """The family that answers for a name."""
        families = [known for known in self._models if known.endswith("*") and name.startswith(known[:-1])]
        return self._models[max(families, key=len)] if families else None
