"""
MiniCPM-o workers: models that hear, see and speak at the same time. Each worker has one conversation at a time.

`docs/reference/engine-omni.md` describes every option.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import structs

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.omni.worker import OmniWorker
from antiphon.engines.upstream.client import UpstreamClient, UpstreamOptions, parse_capabilities, parse_options
from antiphon.engines.upstream.http_exchange import DEFAULT_MAX_RESPONSE_BYTES, DEFAULT_MAX_RESPONSE_EVENTS
from antiphon.errors import ApiError, ServerError, UpstreamError

DEFAULT_CAPABILITIES = Capabilities(
    images=True,
    audio_in=True,
    hears_speech=True,
    audio_out=True,
    videos=True,
    full_duplex=True,
    sees=True,
    clones=True,
    temperature=False,
    top_p=False,
)
"""The capabilities of MiniCPM-o 4.5."""


class OmniOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A model's table in the configuration.

    Attributes:
        workers: the addresses of the workers.
        protocol: `backend` is the model's own server, Python or C++; `worker` is the gateway's worker in front of one.
        abilities: fields of `Capabilities` that differ from the default.
        timeout_connect_s: until a worker is idle and connected.
        timeout_session_s: until a session begins; some servers rebuild the model's context for each.
        timeout_idle_s: that a worker may be silent while an answer is due.
        timeout_hang_s: that a worker may leave a ping unanswered, with the silence before.
        timeout_release_s: until a worker is idle again after a conversation.
        max_response_bytes: an answer, or a turn in full duplex, that comes to more is cut off.
        max_response_events: the same in messages.
    """

    workers: tuple[str, ...]
    protocol: Literal["backend", "worker", "stream"] = "backend"
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    ca_file: str | None = None
    abilities: dict[str, Any] = msgspec.field(default_factory=dict)
    timeout_connect_s: float = 5.0
    timeout_session_s: float = 90.0
    timeout_idle_s: float = 60.0
    timeout_hang_s: float = 10.0
    timeout_release_s: float = 30.0
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES
    max_response_events: int = DEFAULT_MAX_RESPONSE_EVENTS


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> "OmniEngine":
    """
    An engine for the model's table in the configuration.

    Raises:
        ServerError: an option is unknown, missing or wrong.
    """
    omni_options = _parse_options(model, options)
    capabilities = parse_capabilities(
        structs.replace(DEFAULT_CAPABILITIES, sessions=len(omni_options.workers)), omni_options.abilities, model
    )
    workers = {}
    for address in omni_options.workers:
        upstream = UpstreamClient(model, _upstream_options(address, omni_options), build_context)
        workers[urlsplit(address).netloc] = OmniWorker(
            address, upstream, omni_options, capabilities, build_context.fetch, build_context.notice
        )
    return OmniEngine(workers, capabilities)


def _parse_options(model: str, options: Mapping[str, Any]) -> OmniOptions:
    omni_options = parse_options(OmniOptions, model, options)
    if problems := [*_problems(omni_options)]:
        raise ServerError(f"The options of model '{model}' are wrong: {' '.join(problems)}")
    return omni_options


def _problems(options: OmniOptions) -> Iterator[str]:
    if options.protocol == "stream":
        yield (
            "`protocol` 'stream' (`/v1/stream/…`) is not supported: its audio goes through files on a shared disk. "
            "Start a `llama-omni-server` that has `/backend`, and leave `protocol` out."
        )
    if not options.workers:
        yield "`workers` must name at least one."
    if len({urlsplit(address).netloc for address in options.workers}) < len(options.workers):
        yield "`workers` has the same address twice."
    if options.max_response_bytes < 1 or options.max_response_events < 1:
        yield "`max_response_bytes` and `max_response_events` must be at least 1."
    for name in ("timeout_connect_s", "timeout_session_s", "timeout_idle_s", "timeout_hang_s", "timeout_release_s"):
        if not 0 < getattr(options, name) < float("inf"):
            yield f"`{name}` must be a finite number above 0."


def _upstream_options(address: str, options: OmniOptions) -> UpstreamOptions:
    # No retries and no circuit breaker: the pool that leases the workers decides which one to leave alone.
    return UpstreamOptions(
        base_url=address.replace("ws", "http", 1) if address[:2] == "ws" else address,
        api_key_env=options.api_key_env,
        headers=options.headers,
        ca_file=options.ca_file,
        timeout_connect_s=options.timeout_connect_s,
        timeout_first_byte_s=options.timeout_release_s,
        timeout_idle_s=options.timeout_idle_s,
        retries=0,
        failures=1 << 30,
        max_response_bytes=options.max_response_bytes,
        max_response_events=options.max_response_events,
    )


class OmniEngine:
    """
    Several workers with the same model.

    Attributes:
        workers: by address, each an engine for one conversation at a time.
    """

    def __init__(self, workers: Mapping[str, OmniWorker], capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.workers = workers

    async def start(self) -> None:
        pass  # a worker that is down must not keep this server down

    async def stop(self) -> None:
        for worker in self.workers.values():
            await worker.stop()

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """
        A conversation with the first free worker, without waiting for one.

        Raises:
            UpstreamError: no worker is free.
        """
        free_workers = (worker for worker in self.workers.values() if not worker.is_taken)
        async with contextlib.AsyncExitStack() as stack:
            error: ApiError = UpstreamError("Every worker is busy.", status=503, code="worker_busy", retry_after_s=1)
            for worker in free_workers:
                try:
                    conversation = await stack.enter_async_context(worker.open(settings, deliver))
                    break
                except ApiError as open_error:
                    error = open_error
            else:
                raise error
            yield conversation
