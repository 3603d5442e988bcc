"""What a Realtime session begins with: from the address, its headers, the configuration, and what a client secret carries."""

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, QueryParams

from antiphon.errors import ClientMistake, invalid_value
from antiphon.protocols.realtime.settings import Opening
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.registry import Model
from antiphon.runtime.service import Service
from antiphon.server.live.subprotocols import asks_for_beta
from antiphon.wire.realtime.dialects import DialectName
from antiphon.wire.realtime.server_events import RateLimit
from antiphon.wire.realtime.session import AnySession, Session, TranscriptionSession


def opening_for(
    service: Service,
    model: Model,
    caller: Caller,
    *,
    session: AnySession | None = None,
    is_transcription: bool = False,
    dialect: DialectName = "ga",
    has_output_buffer: bool = False,
) -> Opening:
    """What a session of that model begins with, as the server is configured."""
    settings = service.config.realtime
    return Opening(
        model=model.name,
        abilities=model.live.abilities,
        dialect=dialect,
        is_transcription=is_transcription,
        session=session,
        lasts_s=settings.session_minutes * 60,
        instructions=settings.instructions,
        limits=_limits(caller),
        has_model=service.registry.has,
        has_output_buffer=has_output_buffer,
    )


def asked(query: QueryParams, preset: AnySession | None, service: Service) -> tuple[Model, bool]:
    """
    The model of a session, and whether the session is one that only transcribes; what a client secret carries goes before the address.

    Raises:
        ClientMistake: the address asks for what there isn't.
    """
    _check(query)
    if preset is None and query.get("intent") == "transcription":
        if "model" in query or "deployment" in query:
            raise ClientMistake("You must not provide a model parameter for transcription sessions.", code="invalid_model", param="model")
        return transcriber(service), True
    if isinstance(preset, TranscriptionSession):
        return transcriber(service), True
    return answerer(service, preset, query.get("model") or query.get("deployment")), False


def answerer(service: Service, preset: Session | None, name: str | None = None) -> Model:
    """
    The model that answers: the preset's, else that of that name, else the first.

    Raises:
        ClientMistake: `model_not_found`.
    """
    own = preset.model if preset is not None else None
    return service.registry.find(own or name)


def transcriber(service: Service) -> Model:
    """
    The model that transcribes in sessions that do just that.

    Raises:
        ClientMistake: there is none.
    """
    if (name := service.config.realtime.transcription_model) is not None:
        return service.registry.find(name)
    for model in service.registry.all():
        if model.live.abilities.transcribes and not model.name.endswith("*"):
            return model
    raise ClientMistake(
        "This server has no model that transcribes, so that there can be no transcription sessions.",
        code="model_not_found",
        param="intent",
        status=404,
    )


def _check(query: QueryParams) -> None:
    """Refuse addresses of what there isn't."""
    if "mode" in query:
        raise ClientMistake(
            "The parameter 'mode' is of MiniCPM-o's protocol, which this server speaks at /v1/realtime.",
            code="unknown_parameter",
            param="mode",
        )
    if query.get("intent", "transcription") not in ("transcription", "conversation"):
        raise invalid_value("intent", query["intent"], ("transcription", "conversation"))


def dialect_of(query: QueryParams, headers: Headers, configured: str, otherwise: str) -> DialectName:
    """
    The dialect of a session: as the address says, else the configuration, else the client's header or subprotocol.

    Args:
        configured: a dialect, or `auto` for the client's choice.
        otherwise: the dialect with a client that asks for none.

    Raises:
        ClientMistake: the address names a dialect that there isn't.
    """
    named = query.get("dialect", configured)
    if named not in ("ga", "beta", "auto"):
        raise invalid_value("dialect", named, ("ga", "beta"))
    if named == "auto":
        named = "beta" if asks_for_beta(headers) else otherwise
    return "beta" if named == "beta" else "ga"


def _limits(caller: Caller) -> Callable[[], Sequence[RateLimit]]:
    """What is left to whoever asks, as far as is known at any moment."""
    allowance = caller.allowance
    if allowance is None:
        return lambda: ()

    def limits() -> Sequence[RateLimit]:
        return [
            RateLimit(name=kind, limit=state.limit, remaining=state.remaining, reset_seconds=round(state.full_in_s, 3))
            for kind, state in allowance.last_known().items()
        ]

    return limits
