"""
`GET /v1/realtime?mode=`: who may open which MiniCPM-o session, and who comes back to one.

Who may be here at all is decided before the WebSocket is accepted, as everywhere. All else is told on it: an `error` event, and then a
Close whose code says what kind of error it is, as a page in a browser learns nothing else.
"""

from msgspec import Struct
from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope, Send

from antiphon.engine_api.options import Settings
from antiphon.errors import ClientMistake, Fault, OurFault, invalid_value, shown
from antiphon.protocols.minicpmo.session import Minicpmo, Opening
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.ids import mint
from antiphon.runtime.registry import Model
from antiphon.runtime.scheduling.pool import nobody_could
from antiphon.runtime.service import Service
from antiphon.server.http.auth import answering, caller_of
from antiphon.server.live import recording
from antiphon.server.live.minicpmo_log import noted, taps_of
from antiphon.server.live.subprotocols import BETA_SUBPROTOCOL, SUBPROTOCOL, asks_for_beta, offered, subprotocol_of
from antiphon.server.minicpmo.client import Line, MinicpmoClient
from antiphon.server.minicpmo.resume import Resumable, no_session
from antiphon.server.transport import connection
from antiphon.server.transport.limits import Pace
from antiphon.server.transport.websocket import Socket
from antiphon.server.transport.websocket_frames import MESSAGE_LIMIT_BYTES
from antiphon.wire.minicpmo.client_events import MODES, Mode

OWN_SUBPROTOCOL = "map.realtime"
"""The subprotocol that MiniCPM-o's SDK offers."""

OTHERS_PARAMETERS = ("model", "deployment", "intent", "call_id", "dialect")
"""Parameters of the OpenAI Realtime API, which has the same address."""

LIMIT_BYTES: dict[Mode, int] = {"audio": 12 << 20, "video": MESSAGE_LIMIT_BYTES, "chat": MESSAGE_LIMIT_BYTES}
"""The most that an event may have; in audio, two recordings of voices of a minute each."""

EVENTS_PER_S, BYTES_PER_S = 100, 4 << 20
"""How fast events are read: four times what a camera and a microphone send."""


class Asked(Struct, frozen=True, kw_only=True):
    """
    What the address asks for.

    Attributes:
        is_resumable: whether the client means to come back where it loses its network.
        resume: the token of the session to come back to.
        after: the number of the last event that the client has seen of it.
    """

    mode: Mode
    model: str | None = None
    is_resumable: bool = False
    resume: str | None = None
    after: int | None = None


def is_meant(query: QueryParams, headers: Headers, *, has_secret: bool) -> bool:
    """
    Whether a client wants this protocol, of the two that are spoken at the address.

    Args:
        has_secret: whether it comes with a client secret, which only the other protocol has.
    """
    if "mode" in query:
        return True
    is_others = has_secret or any(name in query for name in OTHERS_PARAMETERS)
    return not is_others and not asks_for_beta(headers) and not {SUBPROTOCOL, BETA_SUBPROTOCOL} & set(offered(headers))


def asked(query: QueryParams) -> Asked:
    """
    What an address asks for.

    Raises:
        ClientMistake: there is no such thing.
    """
    named = query.get("mode", "video")
    mode = next((mode for mode in MODES if mode == named), None)
    if mode is None:
        raise invalid_value("mode", named, MODES)
    after = query.get("after")
    if after is not None and not (after.isascii() and after.isdigit() and len(after) < 16):
        raise ClientMistake(f"Invalid 'after': expected a number, but got '{shown(after)}'.", code="invalid_value", param="after")
    return Asked(
        mode=mode,
        model=query.get("model"),
        is_resumable=query.get("resumable") in ("1", "true"),
        resume=query.get("resume"),
        after=None if after is None else int(after),
    )


def model_for(service: Service, asked: Asked) -> Model:
    """
    The model that answers: the one that was asked for if there is such a one, else the configured one, else the first that can.

    Clients name the model that they were written for, whatever the server has.

    Raises:
        ClientMistake: it can't, or none can.
    """
    registry = service.registry
    own = asked.model if asked.model is not None and registry.has(asked.model) else service.config.minicpmo.model
    if own is not None:
        model = registry.find(own)
        if can(model, asked.mode):
            return model
        if not model.duplex.has_worker:
            raise nobody_could()
        raise _no_model(f"The model '{own}' can't do mode={asked.mode}", asked.mode)
    for model in registry.all():
        if not model.name.endswith("*") and can(model, asked.mode):
            return model
    raise _no_model(f"This server has no model for mode={asked.mode}", asked.mode)


def can(model: Model, mode: Mode) -> bool:
    """Whether a model answers in that mode."""
    return mode == "chat" or model.duplex.abilities.full_duplex


def _no_model(what: str, mode: Mode) -> ClientMistake:
    needs = "" if mode == "chat" else ": it takes one that hears and speaks"
    return ClientMistake(f"{what}{needs}.", code="model_not_found", param="mode", status=404)


class Open:
    """The side of the address that is MiniCPM-o's, as a bare ASGI endpoint: it takes the connection over."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._resumable: Resumable[MinicpmoClient] = Resumable()

    async def __call__(self, scope: Scope, send: Send) -> None:
        """One WebSocket, from its handshake to its end."""
        query, line = QueryParams(scope["query_string"]), Line()
        # What is to be told of a wrong mode is told on a WebSocket, too.
        limit_bytes = next((LIMIT_BYTES[mode] for mode in MODES if mode == query.get("mode")), MESSAGE_LIMIT_BYTES)
        await line.accept(lambda line: _upgrade(scope, send, line, limit_bytes))
        try:
            wanted = asked(query)
            if wanted.resume is not None:
                self._come_back(line, wanted, wanted.resume, caller_of(scope))
            else:
                await self._converse(scope, line, wanted)
        except* Fault as faults:
            line.refuse(_first(faults))
        await line.socket.wait_closed()

    def _come_back(self, line: Line, wanted: Asked, token: str, caller: Caller) -> None:
        client = self._resumable.find(token, caller.tenant)
        outcome = client.come_back(line, wanted.after) if client.mode == wanted.mode else False
        self._service.metrics.minicpmo_resumes["resumed" if outcome else "refused"] += 1
        if not outcome:
            raise no_session()
        line.socket.resume_reading()

    async def _converse(self, scope: Scope, line: Line, wanted: Asked) -> None:
        """The whole session, on whichever WebSockets its client comes."""
        service, caller = self._service, caller_of(scope)
        service.live.admit()
        model = model_for(service, wanted)
        async with answering(scope, lambda: 0):  # the tokens of its answers are counted as each of them ends
            wants_record = recording.asks(scope)
            recordings = recording.recording_taps(
                service, caller, protocol="minicpmo", mode=wanted.mode, model=model.name, wanted=wants_record
            )
            counted, tap = taps_of(service, model, caller, recordings)
            # A client that would not come back would hold a place that others wait for.
            resume_s = service.config.minicpmo.resume_s if wanted.is_resumable else 0
            client = MinicpmoClient(wanted.mode, caller.tenant, tap, self._resumable, resume_s)
            with noted(service, model, wanted.mode, client, counted, recordings):
                await self._hold(line, model, wanted, client, caller)

    async def _hold(self, line: Line, model: Model, wanted: Asked, client: MinicpmoClient, caller: Caller) -> None:
        service, key = self._service, caller.key
        opening = opening_for(service, model, wanted)
        driver = Driver(Minicpmo(opening, mint), client, service.store, metrics=service.metrics)
        settings = Settings(model=model.name, tenant=caller.tenant, kind=wanted.mode, key_id=key.id if key else "")
        client.meet(line, driver)

        async def read() -> None:
            line.socket.resume_reading()

        with service.live.during(driver, key):
            try:
                await driver.run(model.duplex, settings, opening, read)
            except* Fault as faults:
                client.fail(_first(faults))
            except* Exception as defects:  # where a session ends
                client.fail(OurFault("The server had an error, and the session can't go on.", code="session_failed"))
                raise defects


def opening_for(service: Service, model: Model, wanted: Asked) -> Opening:
    """What a session of that model begins with, as the server is configured."""
    settings, mode = service.config.minicpmo, wanted.mode
    lasts_s = {"chat": settings.chat_s, "audio": settings.audio_s, "video": settings.video_s}[mode]
    return Opening(
        model=model.name,
        abilities=model.duplex.abilities,
        mode=mode,
        session_id=mint("sess"),
        resume_token=mint("resume") if settings.resume_s and wanted.is_resumable else None,
        instructions=settings.instructions,
        lasts_s=lasts_s,
        warning_s=settings.warning_s,
        init_s=settings.init_s,
        idle_s=settings.chat_idle_s if mode == "chat" else settings.idle_s,
    )


async def _upgrade(scope: Scope, send: Send, line: Line, limit_bytes: int) -> Socket:
    names = offered(Headers(scope=scope))
    subprotocol = OWN_SUBPROTOCOL if OWN_SUBPROTOCOL in names else subprotocol_of(Headers(scope=scope))
    return await connection.of(scope).upgrade(
        send,
        line,
        subprotocol=subprotocol,
        on_binary=line.on_binary,
        pace=Pace(EVENTS_PER_S, bytes_per_s=BYTES_PER_S),
        limit_bytes=limit_bytes,
    )


def _first(faults: ExceptionGroup[Fault]) -> Fault:
    first: Exception = faults
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, Fault)
    return first
