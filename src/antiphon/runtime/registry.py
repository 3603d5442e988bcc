"""The models of this server: which engine answers for which name."""

import asyncio
import contextlib
import itertools
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Struct, structs

from antiphon.config.load import ModelEntry
from antiphon.engine_api.engine import (
    NULL_OBSERVER,
    Build,
    BuildContext,
    Engine,
    Fetch,
    ListingEngine,
    UpstreamObserver,
    WorkerPoolEngine,
    refuse_to_fetch,
)
from antiphon.engine_api.options import ConversationKind
from antiphon.engines.duplex.options import can_adapt
from antiphon.engines.duplex.vision import OcrReader, new_ocr_reader
from antiphon.errors import ApiError, ClientError, ServerError, missing_parameter, model_not_found, only_embeds
from antiphon.runtime.balancing.balanced_engine import BalancedEngine
from antiphon.runtime.balancing.build import NULL_ROUTING_OBSERVER, build_engine, check_fallbacks
from antiphon.runtime.balancing.fallback_engine import FallbackEngine
from antiphon.runtime.balancing.upstreams import RoutingObserver, UpstreamPool, UpstreamView
from antiphon.runtime.core import lazy
from antiphon.runtime.core.engine_types import ENGINES, NATIVE_ENGINES, load_builder
from antiphon.runtime.scheduling.base import POOLED_ENGINES, Coordinator, Worker
from antiphon.runtime.scheduling.engine import QueuedEngine
from antiphon.runtime.scheduling.local import LocalCoordinator
from antiphon.runtime.scheduling.pool import no_worker_error
from antiphon.runtime.workers.child_engine import embedded_engine

MAX_DUPLEX_ENGINES = 64

_MINICPMO_KINDS: tuple[ConversationKind, ...] = ("chat", "audio", "video")


class ModelUse:
    """Part of a model: once it is garbage, nobody uses the model, and one that is no longer offered can be stopped."""


class ServedModel(Struct, frozen=True, eq=False):
    """
    A model under the name that clients use.

    Attributes:
        engine: answers requests.
        with_speech: adds speech recognition and a voice to an engine that lacks them.
        duplex_engine: answers MiniCPM-o clients, which wait for a worker first.
        family: the configured name with `*` that this name belongs to; None for a model configured by its own name.
        answers: false for a model that makes vectors of texts and nothing else.
        engine_name: as configured, such as `local`.
        use: shows, as long as it exists, that the model is in use.
    """

    name: str
    engine: Engine
    created_at: int
    with_speech: Callable[[Engine], Engine]
    duplex_engine: QueuedEngine
    family: str | None = None
    answers: bool = True
    engine_name: str = ""
    use: ModelUse = msgspec.field(default_factory=ModelUse)

    def require_worker(self) -> None:
        """
        Check that the model has a worker, if it needs one: until then it isn't known what the model can do.

        Raises:
            ApiError: `worker_busy`.
        """
        if isinstance(self.engine, QueuedEngine) and not self.engine.has_worker:
            raise no_worker_error()

    @property
    def live_engine(self) -> Engine:
        """The engine for live conversations."""
        return self.with_speech(self.engine)


class _Offer(Struct, eq=False):
    """
    A model with all that was made for it.

    Attributes:
        secrets: values of the environment variables that its options name.
        engines: in the order in which to start them; they are stopped the other way round.
        pool: of its upstreams, if it has several.
        worker_ids: of its workers, but for those that joined by themselves.
    """

    entry: ModelEntry
    secrets: Mapping[str, str]
    model: ServedModel
    engines: list[Engine]
    pool: UpstreamPool | None
    worker_ids: list[str] = []


class ModelChanges(Struct, frozen=True):
    """
    What became of the models when they were replaced, by name.

    Attributes:
        problems: why some of them can't be started; what was offered under their names still is.
    """

    added: Sequence[str]
    changed: Sequence[str]
    removed: Sequence[str]
    problems: Mapping[str, str]


class ModelRegistry:
    """
    Models by name; the first answers requests that name none.

    Args:
        with_speech: adds speech recognition and a voice to an engine that lacks them.
        native_mode: where engines with native code run.
        coordinator: leases the workers of engines with a limited number of them.
        route_names: names that stand for one of the models; the error for an unknown name lists them, too.
        find_builder: loads what builds an engine of that name.
        locate: puts the place of a model's mistake before it; see `Config.locate_model`.

    Raises:
        ServerError: entries name an unknown engine, or their options are wrong; a line for each.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        weights: Path,
        created_at: int,
        notice: Callable[[str], None],
        secrets: Mapping[str, str] = MappingProxyType({}),
        observer: UpstreamObserver = NULL_OBSERVER,
        fetch: Fetch = refuse_to_fetch,
        with_speech: Callable[[Engine], Engine] = lambda engine: engine,
        native_mode: Literal["process", "thread"] = "thread",
        coordinator: Coordinator | None = None,
        routing_observer: RoutingObserver = NULL_ROUTING_OBSERVER,
        route_names: Sequence[str] = (),
        find_builder: Callable[[str], Build] = load_builder,
        locate: Callable[[str, str], str] = lambda _name, problem: problem,
    ) -> None:
        check_fallbacks(entries)
        self._route_names = route_names
        self._routing_observer = routing_observer
        self._find_builder = find_builder
        self._coordinator = coordinator or LocalCoordinator()
        self._with_speech = with_speech
        self._native_mode = native_mode
        self._context = BuildContext(
            weights_folder=weights, base_folder=Path(), notice=notice, secrets=secrets, observer=observer, fetch=fetch
        )
        self._worker_ids: set[str] = set()
        self._duplex_engines: OrderedDict[int, Engine] = OrderedDict()
        self._image_reader: OcrReader | None = None
        self._stopping: dict[asyncio.Task[None], Sequence[Engine]] = {}
        self._models: dict[str, ServedModel] = {}  # models with fallbacks look for them while they are built
        self._offers = self._build_offers(entries, secrets, created_at, locate)
        self._models = {name: offer.model for name, offer in self._offers.items()}
        for offer in self._offers.values():
            self._add_workers(offer)

    def _build_offers(
        self, entries: Sequence[ModelEntry], secrets: Mapping[str, str], created_at: int, locate: Callable[[str, str], str]
    ) -> dict[str, _Offer]:
        offers: dict[str, _Offer] = {}
        problems: list[str] = []
        for entry in entries:
            try:
                offers[entry.name] = self._build_offer(entry, secrets, created_at)
            except ServerError as error:
                text = error.message if f"'{entry.name}'" in error.message else f"Model '{entry.name}': {error.message}"
                problems.append(locate(entry.name, text))
        if problems:
            raise ServerError("\n".join(problems))
        return offers

    def _build_offer(self, entry: ModelEntry, secrets: Mapping[str, str], created_at: int) -> _Offer:
        """All that a model needs, not yet offered to anybody."""
        context = structs.replace(self._context, base_folder=entry.origin_folder, secrets=secrets)
        engine = build_engine(entry, context, self.find, self._routing_observer, self._find_builder)
        if entry.engine in NATIVE_ENGINES and self._native_mode == "process":
            engine = embedded_engine(ENGINES[entry.engine], entry.name, entry.options, context, engine.capabilities)
        engines = [engine]
        model = self._build_model(entry, engine, created_at, engines)
        balanced_engine = engine.engine if isinstance(engine, FallbackEngine) else engine
        pool = balanced_engine.pool if isinstance(balanced_engine, BalancedEngine) else None
        return _Offer(entry, _secrets_of(entry, secrets), model, engines, pool)

    def _build_model(self, entry: ModelEntry, engine: Engine, created_at: int, engines: list[Engine]) -> ServedModel:
        """The model of an entry; conversations with an engine that has workers wait for one of them."""
        with_speech = self._with_speech
        duplex_engine = self._queued_engine(
            entry.name, engines, lambda worker: self._cached_duplex(worker if worker.capabilities.full_duplex else with_speech(worker))
        )
        if not engine.capabilities.answers:
            return ServedModel(
                entry.name, engine, created_at, lambda engine: engine, duplex_engine, answers=False, engine_name=entry.engine
            )
        if entry.engine not in POOLED_ENGINES and not isinstance(engine, WorkerPoolEngine):
            return ServedModel(entry.name, engine, created_at, with_speech, duplex_engine, engine_name=entry.engine)
        live_engine = self._queued_engine(entry.name, engines, with_speech)
        queued_engine = self._queued_engine(entry.name, engines)
        return ServedModel(entry.name, queued_engine, created_at, lambda _engine: live_engine, duplex_engine, engine_name=entry.engine)

    def _add_workers(self, offer: _Offer) -> None:
        """Let conversations queue for the workers of a model."""
        entry, engine = offer.entry, offer.engines[0]
        if not offer.model.answers:
            return
        if isinstance(engine, WorkerPoolEngine):
            for address, worker in engine.workers.items():
                id, slots = self._new_worker_id(entry.name), entry.sessions or worker.capabilities.sessions or 1
                self._coordinator.add_worker(Worker(id=id, model=entry.name, engine=worker, slots=slots, address=address))
                offer.worker_ids.append(id)
        elif entry.engine not in POOLED_ENGINES:
            id, limit = self._new_worker_id(entry.name), entry.sessions or engine.capabilities.sessions
            self._coordinator.add_worker(Worker(id=id, model=entry.name, engine=engine, kinds=_MINICPMO_KINDS, slots=limit))
            offer.worker_ids.append(id)

    def _queued_engine(self, model: str, engines: list[Engine], wrap: Callable[[Engine], Engine] = lambda engine: engine) -> QueuedEngine:
        engine = QueuedEngine(self._coordinator, model, wrap)
        engines.append(engine)  # stopped before the engine of its worker
        return engine

    def _cached_duplex(self, engine: Engine) -> Engine:
        """The engine as a full-duplex one; the latest are remembered, as workers come and go."""
        if id(engine) not in self._duplex_engines:
            self._duplex_engines[id(engine)] = self._as_full_duplex(engine)  # holds the engine, so that its id stays unique
            if len(self._duplex_engines) > MAX_DUPLEX_ENGINES:
                self._duplex_engines.popitem(last=False)
        return self._duplex_engines[id(engine)]

    def _as_full_duplex(self, engine: Engine) -> Engine:
        if not can_adapt(engine.capabilities):
            return engine
        if self._image_reader is None:
            self._image_reader = new_ocr_reader()
        return lazy.DuplexAdapter(engine, self._image_reader)

    def _new_worker_id(self, model: str) -> str:
        """An unused id that needs no quoting in a URL."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", model)
        id = next(f"{name}-{number}" for number in itertools.count(1) if f"{name}-{number}" not in self._worker_ids)
        self._worker_ids.add(id)
        return id

    async def start(self) -> None:
        """
        Start every engine.

        Raises:
            ApiError: one can't start; says what it needs.
        """
        for offer in self._offers.values():
            for engine in offer.engines:
                await engine.start()

    async def stop(self) -> None:
        """Stop every engine, and those of models that are no longer offered; idempotent."""
        stopping, self._stopping = self._stopping, {}
        for task in stopping:
            task.cancel()
        if stopping:
            await asyncio.wait(stopping)
        for engines in (*(offer.engines for offer in self._offers.values()), *stopping.values()):
            await _stop_engines(engines)
        if self._image_reader is not None:
            self._image_reader.stop()

    def upstreams(self) -> list[UpstreamView]:
        """What is known of the upstreams of models that have several, in the order configured."""
        pools = [offer.pool for offer in self._offers.values() if offer.pool is not None]
        return [view for pool in pools for view in pool.views()]

    async def replace(
        self,
        entries: Sequence[ModelEntry],
        secrets: Mapping[str, str],
        created_at: int,
        deadline_s: float,
        route_names: Sequence[str] = (),
    ) -> ModelChanges:
        """
        Offer these models instead, from one moment to the next. A model whose entry is the same stays as it is.

        Who uses a model that is replaced or removed keeps it, for `deadline_s` at most; then its engine is stopped.

        Args:
            secrets: values of environment variables that entries name.
            route_names: as `ModelRegistry` has them.

        Raises:
            ServerError: as `check_fallbacks`; nothing has changed then.
        """
        check_fallbacks(entries)
        problems: dict[str, str] = {}
        fresh: dict[str, _Offer] = {}
        try:
            for entry in entries:
                if not self._offers_same(entry, secrets):
                    try:
                        fresh[entry.name] = await self._start_offer(entry, secrets, created_at)
                    # The rest goes on: mostly its server is just away, while a mistake in the file is found before (docs/decisions/0041).
                    except ApiError as error:
                        problems[entry.name] = error.message
        except BaseException:  # the server stops, and knows nothing of these
            for offer in fresh.values():
                await asyncio.shield(_stop_engines(offer.engines))
            raise
        names = [entry.name for entry in entries if entry.name in fresh or entry.name in self._offers]
        offers = {name: fresh.get(name) or self._offers[name] for name in names}
        # From here to the end there is no `await`: every request finds either the old models or the new ones.
        former_offers, self._offers, self._route_names = self._offers, offers, route_names
        self._models = {name: offer.model for name, offer in offers.items()}
        for offer in fresh.values():
            self._add_workers(offer)
        for name, offer in former_offers.items():
            if offers.get(name) is not offer:
                self._retire(offer, deadline_s)
        return ModelChanges(
            added=[name for name in fresh if name not in former_offers],
            changed=[name for name in fresh if name in former_offers],
            removed=[name for name in former_offers if name not in offers],
            problems=problems,
        )

    def _offers_same(self, entry: ModelEntry, secrets: Mapping[str, str]) -> bool:
        offer = self._offers.get(entry.name)
        return offer is not None and offer.entry == entry and offer.secrets == _secrets_of(entry, secrets)

    async def _start_offer(self, entry: ModelEntry, secrets: Mapping[str, str], created_at: int) -> _Offer:
        await asyncio.to_thread(self._find_builder, entry.engine)  # loading its modules may take longer than the loop may be held
        offer = self._build_offer(entry, secrets, created_at)
        try:
            for engine in offer.engines:
                await engine.start()
        except BaseException:
            await asyncio.shield(_stop_engines(offer.engines))
            raise
        return offer

    def _retire(self, offer: _Offer, deadline_s: float) -> None:
        for id in offer.worker_ids:
            self._coordinator.remove_worker(id)
        # By a weak reference: no user has to report that it is done, and none can forget to (docs/decisions/0041).
        release_event, loop = asyncio.Event(), asyncio.get_running_loop()
        # The last reference may go in any thread; when the program ends, there is no loop to hear of it.
        weakref.finalize(offer.model.use, lambda: None if loop.is_closed() else loop.call_soon_threadsafe(release_event.set)).atexit = False
        # It outlives the request that replaced the model, and is ended by `stop`.
        task = asyncio.create_task(self._stop_unused(offer.engines, release_event, deadline_s), name=f"end of '{offer.entry.name}'")  # noqa: TID251
        self._stopping[task] = offer.engines
        task.add_done_callback(lambda task: self._stopping.pop(task, None))

    async def _stop_unused(self, engines: Sequence[Engine], release_event: asyncio.Event, deadline_s: float) -> None:
        """Stop the engines of a model once it is no longer in use, or the deadline is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await release_event.wait()
        for engine in engines:
            # Else the cache would keep the engine in memory.
            self._duplex_engines.pop(id(engine), None)
        await _stop_engines(engines)

    def all(self) -> list[ServedModel]:
        """Every model, in the order configured."""
        return list(self._models.values())

    def is_unavailable(self, model: ServedModel) -> bool:
        """Whether a model has no worker now, or none of its upstreams takes requests."""
        if not model.duplex_engine.has_worker and isinstance(model.engine, QueuedEngine):
            return True
        pool = self._offers[model.family or model.name].pool if (model.family or model.name) in self._offers else None
        return pool is not None and all(view.state in ("resting", "open") for view in pool.views())

    async def list_models(self) -> list[ServedModel]:
        """Every model that requests can name, in the order configured; for a family, those that its upstream lists."""
        async with asyncio.TaskGroup() as tasks:
            members = [tasks.create_task(self._members(model)) for model in self._models.values()]
        models: dict[str, ServedModel] = {}
        for model in (model for task in members for model in task.result()):
            models.setdefault(model.name, model)
        return list(models.values())

    async def _members(self, model: ServedModel) -> list[ServedModel]:
        if not model.name.endswith("*"):
            return [model]
        names = await model.engine.list_models() if isinstance(model.engine, ListingEngine) else ()
        return [structs.replace(model, name=name) for name in names if self._find_family(name) is model]

    def answering(self) -> list[ServedModel]:
        """Those that give answers, in the order configured."""
        return [model for model in self._models.values() if model.answers]

    def find(self, name: str | None) -> ServedModel:
        """
        The model of that name, to answer; without a name, the first that is configured without `*`.

        Raises:
            ClientError: as `find_any`; or `unsupported_model`: it gives no answers.
        """
        if name is None:
            name = next((model.name for model in self.answering() if not model.name.endswith("*")), None)
        model = self.find_any(name)
        if not model.answers:
            raise only_embeds(model.name)
        return model

    def find_relaying(self, name: str | None, path: str) -> ServedModel:
        """
        The model of that name, to take requests for `path`; without a name, the first that takes them. One that does nothing
        else goes before one whose server may not know what to do with them.

        Raises:
            ClientError: as `find_any`.
        """
        if name is None:
            takers = [model for model in self._models.values() if path in model.engine.capabilities.relays and model.name[-1] != "*"]
            name = min(takers, key=lambda model: model.answers).name if takers else None
        return self.find_any(name)

    def find_any(self, name: str | None) -> ServedModel:
        """
        The model of that name, whatever it is for; without a name, the first that is configured without `*`.

        A configured name that ends in `*` stands for every name that begins so, and the model has the requested name.
        An exact name wins over it, and a longer pattern over a shorter one.

        Raises:
            ClientError: `model_not_found`; without a name, `missing_required_parameter` if every model needs one.
        """
        if name is None:
            name = next((each for each in self._models if not each.endswith("*")), None)
            if name is None and self._models:
                raise missing_parameter("model")
        if name is None or name.endswith("*"):  # the pattern itself is no model
            raise self._not_found(name or "")
        if (exact := self._models.get(name)) is not None:
            return exact
        family = self._find_family(name)
        if not name or family is None:
            raise self._not_found(name)
        return structs.replace(family, name=name, family=family.name)

    def _not_found(self, name: str) -> ClientError:
        return model_not_found(
            name, [*self._models, *self._route_names], [each.name for each in self.all() if isinstance(each.engine, ListingEngine)]
        )

    def has(self, name: str) -> bool:
        """Whether a model answers to that name."""
        return bool(name) and not name.endswith("*") and (name in self._models or self._find_family(name) is not None)

    def _find_family(self, name: str) -> ServedModel | None:
        pattern = longest_pattern(name, self._models)
        return None if pattern is None else self._models[pattern]


def longest_pattern(name: str, model_names: Iterable[str]) -> str | None:
    """Of models' names, the longest with a `*` at its end that matches a name: the family that it belongs to, or None."""
    patterns = [each for each in model_names if each.endswith("*") and name.startswith(each[:-1])]
    return max(patterns, key=len, default=None)


def _secrets_of(entry: ModelEntry, secrets: Mapping[str, str]) -> dict[str, str]:
    """The values of the variables that an entry names, or its upstreams."""
    variables = [variable for table in (entry.options, *entry.upstream_tables) for key, variable in table.items() if key.endswith("_env")]
    return {variable: secrets[variable] for variable in variables if variable in secrets}


async def _stop_engines(engines: Sequence[Engine]) -> None:
    for engine in reversed(engines):
        await engine.stop()
