"""Model, dialect and initial settings of a Realtime session: from the URL, headers, configuration and client secret."""

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, QueryParams

from antiphon.errors import ClientError, invalid_value
from antiphon.protocols.realtime.queued_session import QueuedRealtimeSession
from antiphon.protocols.realtime.session import RealtimeSession
from antiphon.protocols.realtime.settings import SPOKEN_INSTRUCTIONS, RealtimeSessionConfig
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.routing.features import RouteFeatures, estimate_tokens, route_caller
from antiphon.runtime.scheduling.engine import QueuedEngine
from antiphon.runtime.server_tools import loop_limits, tool_check
from antiphon.runtime.service import Service
from antiphon.server.http.operation import Parameter
from antiphon.server.live.flags import FLAG_SCHEMA, parse_flag
from antiphon.server.live.recording import RECORD_PARAMETER
from antiphon.server.live.subprotocols import asks_for_beta
from antiphon.wire.codec.types import encode
from antiphon.wire.realtime.dialects import DialectName
from antiphon.wire.realtime.server_events import RateLimit
from antiphon.wire.realtime.session import AnySession, FunctionTool, Session, TranscriptionSession

SESSION_PARAMETERS = (
    Parameter("model", "The model that answers; unset: the first one.", {"type": "string"}),
    Parameter(
        "intent",
        "`transcription` for a session that only transcribes.",
        {"type": "string", "enum": ["conversation", "transcription"], "default": "conversation"},
    ),
    Parameter("dialect", "The dialect to speak; unset: the one that the client requests.", {"type": "string", "enum": ["ga", "beta"]}),
    Parameter("queue", "`1` to be told the place in the queue, with `antiphon.queued`, until the session begins.", FLAG_SCHEMA),
    RECORD_PARAMETER,
)
"""The parameters of an address that opens sessions."""


def build_session_config(
    service: Service,
    model: ServedModel,
    caller: Caller,
    *,
    session: AnySession | None = None,
    is_transcription: bool = False,
    dialect: DialectName = "ga",
    has_output_buffer: bool = False,
) -> RealtimeSessionConfig:
    """
    The configuration of a new session.

    Raises:
        ApiError: the model has no worker now.
    """
    model.require_worker()
    settings = service.config.realtime
    return RealtimeSessionConfig(
        model=model.name,
        capabilities=model.live_engine.capabilities,
        dialect=dialect,
        is_transcription=is_transcription,
        session=session,
        max_duration_s=settings.session_minutes * 60,
        instructions=settings.instructions if settings.instructions is not None else _default_instructions(model),
        rate_limits=_rate_limits(caller),
        has_model=service.registry.has,
        has_output_buffer=has_output_buffer,
        loop_limits=loop_limits(service.config.tools),
        check_tools=tool_check(service.toolbox, caller.tenant, model.name),
    )


def _default_instructions(model: ServedModel) -> str | None:
    # Realtime reference: the server sets default instructions, which `session.created` shows. A model that speaks by
    # itself, or another server that does, has its own.
    engine = model.live_engine
    is_read_aloud = engine is not model.engine and engine.capabilities.audio_out and not engine.capabilities.hears_speech
    return SPOKEN_INSTRUCTIONS if is_read_aloud else None


def select_model(query: QueryParams, preset: AnySession | None, service: Service, caller: Caller) -> tuple[ServedModel, bool]:
    """
    The model of a session, and whether it only transcribes. A client secret takes precedence over the URL.

    Raises:
        ClientError: there is no such model or intent, or another parameter is invalid.
    """
    _check_query(query)
    if preset is None and query.get("intent") == "transcription":
        # The original refuses any `model` here. LiveKit sends one to every other server, of a transcriber: that is taken for
        # what `session.update` will ask for, and only a model of conversations is refused.
        name = query.get("model") or query.get("deployment")
        if name and any(each.name == name and not each.live_engine.capabilities.transcribes for each in service.registry.all()):
            raise ClientError("You must not provide a model parameter for transcription sessions.", code="invalid_model", param="model")
        return transcription_model(service), True
    if isinstance(preset, TranscriptionSession):
        return transcription_model(service), True
    # Azure's clients name the model as `deployment`.
    return conversation_model(service, caller, preset, query.get("model") or query.get("deployment")), False


def conversation_model(service: Service, caller: Caller, preset: Session | None, name: str | None = None) -> ServedModel:
    """
    The model that answers: the preset's, else the named one, else the first. Where the name is that of a route, its
    rules choose by what the preset says, as nothing was said yet.

    Raises:
        ClientError: `model_not_found`.
    """
    preset_name = preset.model if preset is not None else None
    return service.router.resolve_session(preset_name or name, lambda: _session_features(preset), route_caller(caller)).model


def _session_features(preset: Session | None) -> RouteFeatures:
    instructions = (preset.instructions or "") if preset is not None else ""
    tools = (preset.tools or []) if preset is not None else []
    tool_tokens = estimate_tokens(encode(tools).decode()) if tools else 0
    return RouteFeatures(
        input_tokens=estimate_tokens(instructions) + tool_tokens,
        has_tools=bool(tools),
        has_function_tools=any(isinstance(tool, FunctionTool) for tool in tools),
        is_live=True,
    )


def transcription_model(service: Service) -> ServedModel:
    """
    The model for sessions that only transcribe.

    Raises:
        ApiError: there is none; or one that may be has no worker now.
    """
    if (name := service.config.realtime.transcription_model) is not None:
        return service.registry.find(name)
    # A name that ends in `*` stands for many models of an upstream, and is none that could be asked.
    for model in service.registry.answering():
        if model.live_engine.capabilities.transcribes and not model.name.endswith("*"):
            return model
    for model in service.registry.answering():
        model.require_worker()  # it may be one that transcribes
    raise ClientError(
        "This server has no model that transcribes, so it has no transcription sessions.",
        code="model_not_found",
        param="intent",
        status=404,
    )


def build_session(query: QueryParams, model: ServedModel, config: RealtimeSessionConfig) -> RealtimeSession | QueuedRealtimeSession:
    """The machine of a session; one that tells the place in the queue if the client asks for that and there is one."""
    wants_queue = parse_flag(query, "queue")
    is_queued = wants_queue and isinstance(model.live_engine, QueuedEngine)
    return (QueuedRealtimeSession if is_queued else RealtimeSession)(config, new_id)


def _check_query(query: QueryParams) -> None:
    if "mode" in query:
        raise ClientError(
            "The parameter 'mode' belongs to MiniCPM-o's protocol, which this server speaks at /v1/realtime.",
            code="unknown_parameter",
            param="mode",
        )
    if query.get("intent", "transcription") not in ("transcription", "conversation"):
        raise invalid_value("intent", query["intent"], ("transcription", "conversation"))
    for name in ("queue", RECORD_PARAMETER.name):
        parse_flag(query, name)  # only to validate, before anything is begun


def negotiate_dialect(query: QueryParams, headers: Headers, config_dialect: str, default: DialectName) -> DialectName:
    """
    The dialect of a session: from the URL, else the configuration, else the client's header or subprotocol.

    Args:
        config_dialect: the configured dialect; `auto` lets the client choose.
        default: the dialect for clients that don't choose.

    Raises:
        ClientError: the URL names an unknown dialect.
    """
    value = query.get("dialect", config_dialect)
    if value not in ("ga", "beta", "auto"):
        raise invalid_value("dialect", value, ("ga", "beta"))
    if value == "auto":
        value = "beta" if asks_for_beta(headers) else default
    return "beta" if value == "beta" else "ga"


def _rate_limits(caller: Caller) -> Callable[[], Sequence[RateLimit]]:
    """Returns the remaining limits of the caller, as last known."""
    allowance = caller.allowance
    if allowance is None:
        return lambda: ()

    def limits() -> Sequence[RateLimit]:
        # Without asking the process that counts: a session makes its events without waiting.
        return [
            RateLimit(name=kind, limit=state.limit, remaining=state.remaining, reset_seconds=round(state.full_in_s, 3))
            for kind, state in allowance.last_known_states().items()
        ]

    return limits
