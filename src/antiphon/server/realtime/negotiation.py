"""What a Realtime session begins with: from the address, its headers, the configuration, and what a client secret carries."""

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, QueryParams

from antiphon.errors import ClientError, invalid_value
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.live.subprotocols import asks_for_beta
from antiphon.wire.realtime.dialects import DialectName
from antiphon.wire.realtime.server_events import RateLimit
from antiphon.wire.realtime.session import AnySession, Session, TranscriptionSession


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
    """What a session of that model begins with, as the server is configured."""
    settings = service.config.realtime
    return RealtimeSessionConfig(
        model=model.name,
        capabilities=model.live_engine.capabilities,
        dialect=dialect,
        is_transcription=is_transcription,
        session=session,
        max_duration_s=settings.session_minutes * 60,
        instructions=settings.instructions,
        rate_limits=_rate_limits(caller),
        has_model=service.registry.has,
        has_output_buffer=has_output_buffer,
    )


def select_model(query: QueryParams, preset: AnySession | None, service: Service) -> tuple[ServedModel, bool]:
    """
    The model of a session, and whether the session is one that only transcribes; what a client secret carries goes before the address.

    Raises:
        ClientError: the address asks for what there isn't.
    """
    _check_query(query)
    if preset is None and query.get("intent") == "transcription":
        if "model" in query or "deployment" in query:
            raise ClientError("You must not provide a model parameter for transcription sessions.", code="invalid_model", param="model")
        return transcription_model(service), True
    if isinstance(preset, TranscriptionSession):
        return transcription_model(service), True
    return conversation_model(service, preset, query.get("model") or query.get("deployment")), False


def conversation_model(service: Service, preset: Session | None, name: str | None = None) -> ServedModel:
    """
    The model that answers: the preset's, else that of that name, else the first.

    Raises:
        ClientError: `model_not_found`.
    """
    own = preset.model if preset is not None else None
    return service.registry.find(own or name)


def transcription_model(service: Service) -> ServedModel:
    """
    The model that transcribes in sessions that do just that.

    Raises:
        ClientError: there is none.
    """
    if (name := service.config.realtime.transcription_model) is not None:
        return service.registry.find(name)
    for model in service.registry.all():
        if model.live_engine.capabilities.transcribes and not model.name.endswith("*"):
            return model
    raise ClientError(
        "This server has no model that transcribes, so that there can be no transcription sessions.",
        code="model_not_found",
        param="intent",
        status=404,
    )


def _check_query(query: QueryParams) -> None:
    """Refuse addresses of what there isn't."""
    if "mode" in query:
        raise ClientError(
            "The parameter 'mode' is of MiniCPM-o's protocol, which this server speaks at /v1/realtime.",
            code="unknown_parameter",
            param="mode",
        )
    if query.get("intent", "transcription") not in ("transcription", "conversation"):
        raise invalid_value("intent", query["intent"], ("transcription", "conversation"))


def negotiate_dialect(query: QueryParams, headers: Headers, config_dialect: str, default: str) -> DialectName:
    """
    The dialect of a session: as the address says, else the configuration, else the client's header or subprotocol.

    Args:
        configured: a dialect, or `auto` for the client's choice.
        otherwise: the dialect with a client that asks for none.

    Raises:
        ClientError: the address names a dialect that there isn't.
    """
    named = query.get("dialect", config_dialect)
    if named not in ("ga", "beta", "auto"):
        raise invalid_value("dialect", named, ("ga", "beta"))
    if named == "auto":
        named = "beta" if asks_for_beta(headers) else default
    return "beta" if named == "beta" else "ga"


def _rate_limits(caller: Caller) -> Callable[[], Sequence[RateLimit]]:
    """What is left to whoever asks, as far as is known at any moment."""
    allowance = caller.allowance
    if allowance is None:
        return lambda: ()

    def limits() -> Sequence[RateLimit]:
        return [
            RateLimit(name=kind, limit=state.limit, remaining=state.remaining, reset_seconds=round(state.full_in_s, 3))
            for kind, state in allowance.last_known_states().items()
        ]

    return limits
