"""
MiniCPM-o workers: models that hear, see and speak at the same time, each with one conversation at a time.

`docs/reference/engine-omni.md` describes every option.
"""

import contextlib
import importlib.util
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import structs

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.upstream.client import UpstreamClient, UpstreamOptions, parse_capabilities
from antiphon.errors import ApiError, ServerError, UpstreamError, quote_list

if TYPE_CHECKING:
    from antiphon.engines.omni.worker import OmniWorker

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
"""What MiniCPM-o 4.5 can do."""

_REQUIRED_LIBRARIES = ("numpy", "soundfile", "soxr")


class OmniOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What the configuration says of MiniCPM-o workers.

    Attributes:
        workers: where they are; each has one conversation at a time.
        protocol: what they speak: `backend` is the model's own server, Python or C++, `worker` the gateway's worker before one.
        abilities: what they can do otherwise than is usual; fields of `Capabilities`.
        timeout_connect_s: the longest until a worker is found idle and connected.
        timeout_session_s: the longest that a session may take to begin; some build the model's context anew for it.
        timeout_idle_s: the longest that a worker may say nothing when it has something to do.
        timeout_release_s: the longest that is waited for a worker to be idle again after it was left.
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
    timeout_release_s: float = 30.0


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> "OmniEngine":
    """
    An engine for the model's table in the configuration.

    Raises:
        ServerError: an option is unknown, missing or wrong.
    """
    chosen = _parse_options(model, options)
    if absent := [name for name in _REQUIRED_LIBRARIES if importlib.util.find_spec(name) is None]:
        raise ServerError(f"Model '{model}' needs {quote_list(absent)}, which are not installed. Run `pip install 'antiphon[speech]'`.")
    from antiphon.engines.omni.worker import OmniWorker  # noqa: PLC0415 - its libraries are an extra

    abilities = parse_capabilities(structs.replace(DEFAULT_CAPABILITIES, sessions=len(chosen.workers)), chosen.abilities, model)
    places = {}
    for address in chosen.workers:
        upstream = UpstreamClient(model, _upstream_options(address, chosen), build_context)
        places[urlsplit(address).netloc] = OmniWorker(address, upstream, chosen, abilities, build_context.fetch, build_context.notice)
    return OmniEngine(places, abilities)


def _parse_options(model: str, options: Mapping[str, Any]) -> OmniOptions:
    wrong = f"The options of model '{model}' are wrong: "
    if "api_key" in options:
        raise ServerError(f"Model '{model}': put the key into an environment variable, and that variable's name into `api_key_env`.")
    try:
        chosen = msgspec.convert(dict(options), OmniOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ServerError(f"{wrong}{error}.") from None
    if chosen.protocol == "stream":
        raise ServerError(
            f"{wrong}`protocol` 'stream' (`/v1/stream/…`) is not spoken: its sound goes through files on a disk that both sides share. "
            "Start a `llama-omni-server` that has `/backend`, and leave `protocol` out."
        )
    if not chosen.workers:
        raise ServerError(f"{wrong}`workers` must name at least one.")
    if len({urlsplit(address).netloc for address in chosen.workers}) < len(chosen.workers):
        raise ServerError(f"{wrong}`workers` names the same one twice.")
    for name in ("timeout_connect_s", "timeout_session_s", "timeout_idle_s", "timeout_release_s"):
        if not 0 < getattr(chosen, name) < float("inf"):
            raise ServerError(f"{wrong}`{name}` must be more than 0, and a number.")
    return chosen


def _upstream_options(address: str, options: OmniOptions) -> UpstreamOptions:
    """How a worker is reached; whether it is left alone for a while is for whoever gives out places to say."""
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
    )


class OmniEngine:
    """
    Several workers with the same model.

    Attributes:
        places: each an engine with room for one conversation, by its address.
    """

    def __init__(self, workers: "Mapping[str, OmniWorker]", capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.workers = workers

    async def start(self) -> None:
        """Nothing yet: a worker that is down must not keep this server down."""

    async def stop(self) -> None:
        """Let go of everything; what is being said breaks."""
        for place in self.workers.values():
            await place.stop()

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """
        A conversation with the first worker that has nothing else to do, for who does not want to wait for one.

        Raises:
            UpstreamError: there is none.
        """
        free = (place for place in self.workers.values() if not place.is_taken)
        async with contextlib.AsyncExitStack() as stack:
            fault: ApiError = UpstreamError("Every worker is busy.", status=503, code="worker_busy", retry_after_s=1)
            for place in free:
                try:
                    conversation = await stack.enter_async_context(place.open(settings, deliver))
                    break
                except ApiError as refusal:
                    fault = refusal
            else:
                raise fault
            yield conversation
