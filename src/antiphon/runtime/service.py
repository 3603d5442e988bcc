"""Everything a running server needs, opened and closed in order: models, store, keys, recordings."""

import asyncio
import contextlib
import ipaddress
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

import structlog
from msgspec import structs

from antiphon.config.changes import compare
from antiphon.config.listing import hide_folders
from antiphon.config.load import Config
from antiphon.config.names import name_problems
from antiphon.config.routing import EMBEDDING_MODEL, is_configured
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import Fetch
from antiphon.errors import ApiError, ServerError
from antiphon.runtime.access.body_budget import BodyBudget
from antiphon.runtime.access.client_secrets import ClientSecretIssuer
from antiphon.runtime.access.console_keys import ConsoleKeyIssuer
from antiphon.runtime.access.keys import LAST_USED_INTERVAL_S, REFRESH_S, Keyring
from antiphon.runtime.background.runner import BackgroundRunner
from antiphon.runtime.balancing.build import fallback_problems
from antiphon.runtime.core import lazy
from antiphon.runtime.core.calls import ActiveCalls
from antiphon.runtime.core.home_lock import home_lock
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.core.sessions import LiveSessions
from antiphon.runtime.files.library import FileLibrary
from antiphon.runtime.files.reading import FileUploads
from antiphon.runtime.multiprocess.peer import PeerProcesses
from antiphon.runtime.prompts import PromptLibrary, prompt_problems
from antiphon.runtime.recording.library import DAY_S, RecordingLibrary
from antiphon.runtime.recording.recorder import Recorder
from antiphon.runtime.recording.spool import SpoolLimits
from antiphon.runtime.registry import ModelRegistry, ServedModel
from antiphon.runtime.reload import LoadConfig, invalid_configuration, load_again, log_report
from antiphon.runtime.response_search import ResponseSearch
from antiphon.runtime.rewriting.rewriter import Rewriter
from antiphon.runtime.routing.features import RouteFeatures
from antiphon.runtime.routing.router import Abilities, Route, Router
from antiphon.runtime.scheduling.engine import QueuedEngine
from antiphon.runtime.scheduling.eta import time_limits_s
from antiphon.runtime.scheduling.local import LocalCoordinator
from antiphon.runtime.server_tools import ConfiguredTools, container_limits
from antiphon.runtime.speech.service import SpeechService
from antiphon.runtime.statistics.responses import RecentResponses
from antiphon.runtime.statistics.usage import UsageCounter
from antiphon.runtime.upkeep import one_round
from antiphon.runtime.vector_stores.service import VectorStoreService
from antiphon.runtime.webhooks.dispatcher import WebhookDispatcher
from antiphon.runtime.webhooks.endpoint import build_endpoints
from antiphon.stores.availability import Availability
from antiphon.stores.base import Store
from antiphon.stores.blobs import BlobStore
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sql.store import SqlStore
from antiphon.wire.http.reload import ModelProblem, ReloadReport

HEARTBEAT_S = 2.0
"""How often the store gets a sign of life of this server, and it is seen whether the store can be reached."""

STORE_AWAY_S = 8.0
"""A server that has not reached its store for so long is not ready."""

SWEEP_S = 10.0
"""
How often the store is searched for responses whose server died. Several heartbeats: a server that lives is known to do
so again before the second look.
"""


EXPIRY_S = 60.0
"""How often events of background responses are deleted that are old, or too many."""

FILE_SWEEP_S = 30.0
"""How often expired files are deleted, which clients don't see any more."""

MAX_INTEGER = 2**63 - 1


class Service:
    """
    The parts of a running server, as all routes use them.

    Attributes:
        answers: responses under way and the last that ended, for operators.
        background: makes background responses.
        calls: the calls under way.
        console_keys: of the page.
        containers: in which models run code.
        fetch: fetches what requests name by URL.
        files: the uploaded files.
        coordinator: leases the workers of models.
        is_ready: whether everything has started.
        live_sessions: the sessions under way.
        memory_budget: what WebSockets of the Responses API remember; it has the limits of `body_budget`.
        metrics: of this process.
        prompts: finds stored prompts.
        config: in use; another one once it was read again.
        peers: the other processes of the server; None for a single one.
        recorder: records sessions; None with a store in memory, as after a restart no record would lead to the recordings.
        recordings: the finished recordings.
        rewriter: rewrites answers.
        router: chooses the model of requests that name a route.
        search: finds responses by their words.
        speech: speech recognition and voices for models that only handle text.
        vector_stores: indexes files and searches them.
        toolbox: the tools that the server runs.
        usage: counts who uses what.
        webhooks: sends events of background responses.

    Raises:
        ApiError: the configuration names an unknown engine, option or model, or a webhook has no secret.
    """

    def __init__(
        self,
        config: Config,
        notice: Callable[[str], None],
        peers: PeerProcesses | None = None,
        load: LoadConfig | None = None,
    ) -> None:
        self.config = config
        self._load = load
        self._reload_lock = asyncio.Lock()
        self._notice = notice
        self.peers = peers
        self.is_ready = False
        self.live_sessions = LiveSessions()
        self.calls = ActiveCalls()
        self.metrics = Metrics()
        self.body_budget = BodyBudget(config.server)
        self.memory_budget = BodyBudget(config.server)
        self._exit_stack = ExitStack()
        self.started_at = int(time.time())
        self.store = build_store(config, peers)
        self.usage = UsageCounter(self.store.usage)
        self.answers = RecentResponses()
        self.fetch = _lazy_fetch(config.server.fetch_networks)
        self.speech = SpeechService(
            config.speech, config.models_dir, config.secrets, notice, count_speculation=self.metrics.count_speculation
        )
        self.coordinator = LocalCoordinator(config.queue, config.workers, self.metrics, limits_s=time_limits_s(config))
        check_references(config)
        self.registry = self._build_registry()
        self.router = build_router(config, self.registry, self.metrics, notice, self._can_do)
        self.rewriter = self._build_rewriter(config, self.registry.has)
        self.keyring = Keyring(self.store.keys, requires_keys(config), new_allowance=peers.allowance if peers else None)
        self.client_secrets = ClientSecretIssuer(self.store.client_secrets, self.keyring)
        self.console_keys = ConsoleKeyIssuer(self.store.client_secrets, self.keyring)
        self.search = ResponseSearch(self.store)
        self.prompts = PromptLibrary(self.store.prompts, config.prompts)
        blobs = BlobStore(config.recordings_location, notice)
        location = config.files_location
        self._files_folder = None if location is not None else Path(tempfile.gettempdir()) / new_id("antiphon_files")
        file_blobs = BlobStore(location or str(self._files_folder), notice, error_code="files_unavailable")
        self.files = FileLibrary(self.store.files, file_blobs, config.files)
        self._containers: lazy.Containers | None = None
        self._walls_task: asyncio.Task[None] | None = None
        self._sweep_kernels: Callable[[], Awaitable[None]] | None = None
        self.vector_stores = self._build_vector_stores()
        self._tools = ConfiguredTools(config, self.files, self.vector_stores, self.fetch)
        self.toolbox = self._tools.toolbox
        self._content_cipher: lazy.ContentCipher | None = None
        self.recordings = RecordingLibrary(self.store.sessions, blobs, config.recording)
        self.recorder = self._build_recorder(blobs)
        self.background = BackgroundRunner(
            config.background,
            self.store,
            self.keyring,
            self.live_sessions,
            self.metrics,
            peers,
            can_restart=config.database_url is not None,
        )
        self.webhooks = WebhookDispatcher(build_endpoints(config.webhooks, config.secrets), self.store, self.metrics)
        self._tasks: list[asyncio.Task[None]] = []

    def _build_vector_stores(self) -> VectorStoreService:
        config = self.config
        return VectorStoreService(
            self.store,
            self.files,
            config.tools.vector_stores,
            config.tools.file_search,
            lambda: lazy.Embedder(config.models_dir / EMBEDDING_MODEL),
            EMBEDDING_MODEL,
            index_folder=None if config.database_url is None else config.home / "vector_indexes",
        )

    def _build_registry(self) -> ModelRegistry:
        config = self.config
        return ModelRegistry(
            config.models,
            config.models_dir,
            self.started_at,
            self._notice,
            config.secrets,
            self.metrics,
            self.fetch,
            self.speech.with_speech,
            config.workers.embedded,
            self.coordinator,
            self.metrics,
            [route.name for route in config.routing],
            locate=config.locate_model,
        )

    def _can_do(self, model: ServedModel, features: RouteFeatures) -> Capabilities | None:
        return route_capabilities(model, features, transcribes=self.speech.missing_reason is None)

    def _build_recorder(self, blobs: BlobStore) -> Recorder | None:
        config, recording = self.config, self.config.recording
        if config.database_url is None:
            return None
        limits = SpoolLimits(-(-recording.spool_bytes // config.server.processes), recording.free_bytes, recording.days * DAY_S)
        folder = config.home / "recording"
        recorder = Recorder(folder, blobs, self.store.sessions, self.metrics, self.recordings.expire, limits, self._notice)
        self.recordings.live_records = recorder.live_records
        return recorder

    @property
    def is_store_away(self) -> bool:
        """Whether the store has not been reached for a while."""
        return self.store.availability.unreached_s > STORE_AWAY_S

    @property
    def containers(self) -> "lazy.Containers":
        """The containers of all tenants; their folder is made when they are first needed."""
        if self._containers is None:
            limits = container_limits(self.config.tools.code_interpreter)
            self._containers = lazy.Containers(self._containers_folder, limits)
        return self._containers

    @property
    def _containers_folder(self) -> Path:
        """Beside the files where these are in memory, as containers name them."""
        return (self.config.home if self._files_folder is None else self._files_folder) / "code_interpreter" / "containers"

    async def content_cipher(self) -> "lazy.ContentCipher":
        """
        Encrypts what clients keep for this server. Its keys are read, or made, when it is first needed.

        Raises:
            ServerError: they can't be.
        """
        if self._content_cipher is None:
            config = self.config
            explicit_keys = config.secrets.get(config.responses.encryption_keys_env)
            # In a thread: loading the library takes longer than the event loop may be held.
            self._content_cipher = await asyncio.to_thread(lambda: lazy.ContentCipher(config.home, explicit_keys))
        return self._content_cipher

    async def open(self) -> None:
        """
        Start everything.

        Raises:
            ApiError: the store can't be used or is in use by another server, or an engine can't start.
        """
        # Of several processes the supervisor holds the lock; servers that share a store know each other by it.
        if self.peers is None and self.config.database_url is not None and not self.config.has_shared_store:
            self._exit_stack.enter_context(home_lock(self.config.home))
        await self.store.open()
        await self.keyring.open()
        check_exposure(self.config, has_live_key=self.keyring.has_live_key)
        await self.webhooks.start()  # before the first response ends
        suspects = await self._look_for_orphans()
        await self._open_files()
        if self.recorder is not None:
            await self.recorder.open()
        await self.registry.start()
        await self.coordinator.start()
        await self.router.start()
        self.background.start()
        self.usage.start()
        self.vector_stores.start()
        # They live from `open` to `close`, longer than any one request's task group.
        for name, work in (
            ("heartbeat", self._watch_store()),
            ("keys", self._watch_keys()),
            ("key uses", self._write_key_uses()),
            ("sweeper", self._sweep(suspects)),
            ("event sweeper", self._expire_events()),
            ("file sweeper", self._expire_files()),
            ("response index", self.search.run()),
        ):
            self._tasks.append(asyncio.create_task(work, name=name))  # noqa: TID251
        if self.config.tools.code_interpreter.sandbox != "off":
            # Never cancelled: a process would be left that is just being started.
            self._walls_task = asyncio.create_task(self._start_code_interpreter(), name="code interpreter")  # noqa: TID251
            self.toolbox.add_trial("code_interpreter", self._walls_task)
        if self.config.speech.warm_up and self.speech.missing_reason is None:
            self.speech.warm_up_state = "running"  # at once, as the first question may come before the task begins
            self._tasks.append(asyncio.create_task(self._warm_up(), name="warm-up"))  # noqa: TID251
        # Without the speech models: an optional part that hangs must not take the server out of service (docs/decisions/0046).
        self.is_ready = True

    async def close(self) -> None:
        """Stop everything; idempotent."""
        self.is_ready = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if self._walls_task is not None:
            tasks.append(self._walls_task)
        if tasks:
            await asyncio.wait(tasks)
        await self.background.close()
        await self.vector_stores.close()
        await self.webhooks.close()
        await self.calls.close()
        await self.toolbox.close()
        await self.coordinator.close()
        await self.router.stop()
        await self.rewriter.stop()
        await self.registry.stop()
        await self.speech.stop()
        if self.recorder is not None:
            await self.recorder.close()
        if self._containers is not None:
            await self._containers.close()
        await self.keyring.close()
        await self.usage.close()
        # Last of all: everything before writes its end to it.
        await self.store.close()
        self._exit_stack.close()

    @property
    def can_reload(self) -> bool:
        """Whether there is a configuration to read again."""
        return self._load is not None

    async def reload(self) -> ReloadReport:
        """
        Read the configuration again, in all processes of this server.

        Raises:
            ClientError: there is a mistake in it, and the one in use stays; or there is none to be read.
        """
        if self.peers is not None:
            return await self.peers.reload()
        async with self._reload_lock:
            return await self._configure(await load_again(self._load))

    async def configure(self, config: Config) -> ReloadReport:
        """
        Take over what can be changed of a configuration.

        Raises:
            ClientError: as `reload`.
        """
        async with self._reload_lock:
            return await self._configure(config)

    async def _configure(self, new: Config) -> ReloadReport:
        changes = compare(self.config, new)
        names = [entry.name for entry in new.models]
        try:
            check_references(new)
            rewriter = self._build_rewriter(changes.config, lambda name: is_configured(name, names))
            routes = await self._prepare_routes(new)
            tools = await asyncio.to_thread(self._tools.prepare, changes.config)  # it may load libraries
            prompts = PromptLibrary(self.store.prompts, new.prompts)
        except ApiError as error:
            raise invalid_configuration(error) from None
        models = await self.registry.replace(
            new.models, new.secrets, int(time.time()), self.config.server.drain_s, [route.name for route in new.routing]
        )
        # There is no `await` after the exchange of the models: no request finds the new ones with the old routes.
        self.router.configure(routes)
        self._tools.take(tools, self.config.server.drain_s)
        self.prompts, self.config = prompts, changes.config
        self.metrics.keep_upstreams(
            {*(model.name for model in self.registry.all()), *(f"{view.model}/{view.name}" for view in self.registry.upstreams())}
        )
        if "rewrites" in changes.settings:
            former_rewriter, self.rewriter = self.rewriter, rewriter
            await former_rewriter.stop()
        problems = {name: new.locate_model(name, message) for name, message in models.problems.items()}
        report = ReloadReport(
            added=[*models.added],
            changed=[*models.changed],
            removed=[*models.removed],
            problems=[ModelProblem(name=name, message=hide_folders(message)) for name, message in problems.items()],
            settings=[*changes.settings, *(key for key in tools.settings if key not in changes.settings)],
            restart=[*changes.restart],
        )
        log_report(report, problems)
        return report

    async def _prepare_routes(self, config: Config) -> Mapping[str, Route]:
        try:
            return await self.router.prepare(config.routing)
        except ApiError as error:
            raise ServerError(f"routing: {error.message}") from None

    def _build_rewriter(self, config: Config, has_model: Callable[[str], bool]) -> Rewriter:
        return Rewriter(config.rewrites, self.registry.find, has_model, self.metrics.count_rewrite)

    async def fail_orphans(self, suspects: Collection[str]) -> Collection[str]:
        """
        Fail the responses that another server left unfinished.

        Args:
            suspects: ids without an owner at the last call. One look is not enough: a server that lost its connection
                to the store is not registered there for a moment.

        Returns:
            The suspects for the next call.
        """
        orphans = await self.store.orphans()
        for record in orphans:
            if record.id in suspects:
                await self.background.settle_orphan(record)
        return {record.id for record in orphans}

    async def _open_files(self) -> None:
        if self._files_folder is not None:  # they go with the store, which is in memory
            self._exit_stack.callback(shutil.rmtree, self._files_folder, ignore_errors=True)
        try:
            await self.files.open(is_shared=self.peers is not None or self.config.has_shared_store)
        except ApiError as error:  # the sweep tries again
            self._notice(f"Unfinished uploads could not be deleted: {error.operator_message}")

    async def _look_for_orphans(self) -> Collection[str]:
        """The first look, at the start: no other server can work on what is in a store that is not shared."""
        suspects = {record.id for record in await self.store.orphans()}
        return suspects if self.config.has_shared_store else await self.fail_orphans(suspects)

    async def _watch_store(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with one_round("store watch"):
                await self.store.check()

    async def _warm_up(self) -> None:
        with contextlib.suppress(ApiError):  # the first conversation that needs them tries again, and gets the reason if it fails
            await self.speech.warm_up()

    async def _sweep(self, suspects: Collection[str]) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            with one_round("sweeper"):
                suspects = await self.fail_orphans(suspects)

    async def _expire_events(self) -> None:
        settings = self.config.background
        limit_bytes = int(settings.events_gb * 1e9) or MAX_INTEGER
        while True:
            ended_before = int(time.time() - 3600 * settings.events_hours) if settings.events_hours else 0
            with one_round("event sweeper"):
                if await self.store.background.expire(ended_before, limit_bytes):
                    continue  # there may be more
            await asyncio.sleep(EXPIRY_S)

    async def _start_code_interpreter(self) -> None:
        """Try the sandbox for code, and offer the tool if it works; if not, the operator gets a notice."""
        settings, folder = self.config.tools.code_interpreter, self._containers_folder.parent
        kind, report = await lazy.start_code_interpreter(settings, folder, FileUploads(self.files))
        if kind is None:
            self._notice(report)
            return
        structlog.get_logger().info("code_interpreter_ready", message=report)
        self._containers = kind.containers
        self._sweep_kernels = kind.sweep
        self.toolbox.add(kind)

    async def _expire_files(self) -> None:
        while True:
            await asyncio.sleep(FILE_SWEEP_S)
            with one_round("file sweeper"):
                await self.files.sweep()
            with one_round("container sweeper"):
                if self._containers is not None or self._containers_folder.is_dir():
                    await self.containers.sweep()
            with one_round("kernel sweeper"):
                if self._sweep_kernels is not None:
                    await self._sweep_kernels()

    async def _write_key_uses(self) -> None:
        while True:
            await asyncio.sleep(LAST_USED_INTERVAL_S)
            with one_round("key uses"):
                await self.keyring.write_last_used()

    async def _watch_keys(self) -> None:
        """End sessions whose key was revoked: they may last for an hour."""
        while True:
            await asyncio.sleep(REFRESH_S)
            if key_ids := self.live_sessions.key_ids:
                with one_round("key watch"):
                    self.live_sessions.revoke(await self.keyring.inactive_keys(key_ids))


def requires_keys(config: Config) -> bool | None:
    """Whether requests need a key; None: once there is one."""
    # Who is not on this machine always needs a key.
    return config.server.require_keys if is_loopback(config.server.host) else True


def check_exposure(config: Config, *, has_live_key: bool) -> None:
    """
    Check that a server which other machines can reach needs a key, and that there is a valid one.

    Raises:
        ServerError: it needs none, or there is none.
    """
    server = config.server
    if not is_loopback(server.host) and (server.require_keys is False or not has_live_key):
        raise ServerError(
            f"Refusing to listen on {server.host}: without API keys, anyone who can reach that address could use this server. "
            "Create a key with `antiphon keys create`, or listen on 127.0.0.1."
        )
    check_key_store(config)


def check_references(config: Config) -> None:
    """
    Check that routes, rewrites and fallbacks name models that there are, and that prompts are valid.

    Raises:
        ServerError: one line for each mistake, with its place.
    """
    problems = [config.locate_model(name, problem) for name, problem in fallback_problems(config.models)]
    problems += [*name_problems(config, [entry.name for entry in config.models]), *prompt_problems(config)]
    if problems:
        raise ServerError("\n".join(problems))


def build_router(
    config: Config, registry: ModelRegistry, metrics: Metrics, notice: Callable[[str], None], abilities: Abilities[ServedModel]
) -> Router[ServedModel]:
    """The router of the configured routes, which name models that there are."""
    vectors_file = config.home / "routing" / "examples.npz"
    return Router(config.routing, registry, abilities, metrics, config.models_dir, vectors_file, notice)


def route_capabilities(model: ServedModel, features: RouteFeatures, *, transcribes: bool) -> Capabilities | None:
    """
    What a model can do for a request, with the speech that it is given; None while it has no worker.

    Args:
        transcribes: whether the server has speech recognition.
    """
    if isinstance(model.engine, QueuedEngine) and not model.engine.has_worker:
        return None
    if features.is_spoken or features.is_live:
        return model.live_engine.capabilities
    capabilities = model.engine.capabilities
    return structs.replace(capabilities, audio_in=True) if features.has_audio and transcribes else capabilities


def build_store(config: Config, peers: PeerProcesses | None) -> Store:
    """The configured store."""
    if config.database_url is None:
        return MemoryStore()
    log = structlog.get_logger()

    def log_outage(details: str | None) -> None:
        if details is None:
            log.info("store_available", message="The store can be used again.")
        else:
            log.error("store_unavailable", message=details)

    availability = Availability(log_outage, lambda details: log.error("store_failed", message=details))
    return SqlStore(config.database_url, peers.numbers if peers else (), availability, config.store.timeout_s)


def check_key_store(config: Config) -> None:
    """
    Check that the store can hold keys if they are required.

    Raises:
        ServerError: it can't.
    """
    if config.server.require_keys and config.database_url is None:
        raise ServerError("`server.require_keys` needs a store that lasts, as it holds the keys, but `store.url` is `memory`.")


def _lazy_fetch(networks: Collection[str]) -> Fetch:
    async def fetch(url: str, param: str, content_types: tuple[str, ...]) -> tuple[bytes, str]:
        return await lazy.fetcher(networks)(url, param, content_types)

    return fetch


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
