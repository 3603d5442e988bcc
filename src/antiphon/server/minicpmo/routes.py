"""
`GET /v1/realtime?mode=`: opens and resumes MiniCPM-o sessions.

The key is checked before the WebSocket is accepted. Other errors are reported on it, as an `error` event and a close
code, because browsers show a page nothing of a failed handshake.
"""

from collections.abc import Sequence

from msgspec import Struct
from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope, Send

from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, ClientError, invalid_value, missing_parameter, shorten
from antiphon.protocols.minicpmo.session import MinicpmoSession, MinicpmoSessionConfig
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.sessions import LiveSession
from antiphon.runtime.recording.recorder import RecordingTap
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.scheduling.pool import no_worker_error
from antiphon.runtime.service import Service
from antiphon.server.http.auth import request_caller, track_response
from antiphon.server.http.errors import first_error
from antiphon.server.http.operation import Parameter
from antiphon.server.live import recording
from antiphon.server.live.client import session_failed
from antiphon.server.live.flags import FLAG_SCHEMA, parse_flag
from antiphon.server.live.session_log import log_minicpmo_session, minicpmo_taps
from antiphon.server.live.subprotocols import BETA_SUBPROTOCOL, SUBPROTOCOL, asks_for_beta, offered_subprotocols, select_subprotocol
from antiphon.server.minicpmo.client import Attachment, MinicpmoClient
from antiphon.server.minicpmo.resume import ResumableSessions, session_not_found
from antiphon.server.transport import connection
from antiphon.server.transport.limits import TokenBucket
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.server.transport.websocket_frames import MESSAGE_LIMIT_BYTES
from antiphon.wire.minicpmo.client_events import MODES, Mode

MINICPMO_SUBPROTOCOL = "map.realtime"
"""The subprotocol that MiniCPM-o's SDK offers."""

OPENAI_PARAMETERS = ("model", "deployment", "intent", "call_id", "dialect", "queue")
"""Parameters of the OpenAI Realtime API, which shares this path."""

SESSION_PARAMETERS = (
    Parameter("resumable", "`1` if a client of MiniCPM-o's protocol will resume its session after it loses its network.", FLAG_SCHEMA),
    Parameter("mode", "The kind of session of MiniCPM-o's protocol.", {"type": "string", "enum": ["chat", "audio", "video"]}),
    Parameter("resume", "The token of a session of MiniCPM-o's protocol whose connection was lost.", {"type": "string"}),
    Parameter("after", "With `resume`, the `seq` of the last event that the client has received.", {"type": "integer", "minimum": 0}),
)
"""The parameters of this protocol, for the OpenAPI document."""

EVENT_LIMIT_BYTES: dict[Mode, int] = {"audio": 12 << 20, "video": MESSAGE_LIMIT_BYTES, "chat": MESSAGE_LIMIT_BYTES}
"""The largest event. In audio sessions: two recordings of voices of a minute each."""

EVENTS_PER_S, BYTES_PER_S = 100, 4 << 20
"""How fast events are read: four times what a camera and a microphone produce."""


class MinicpmoSessionRequest(Struct, frozen=True, kw_only=True):
    """
    The parameters of the URL.

    Attributes:
        is_resumable: whether the client will resume after it loses its network.
        resume_token: the session to resume.
        after_seq: number of the last event that the client received.
    """

    mode: Mode
    model: str | None = None
    is_resumable: bool = False
    resume_token: str | None = None
    after_seq: int | None = None


def is_minicpmo_request(query: QueryParams, headers: Headers, *, has_secret: bool) -> bool:
    """
    Whether the client speaks this protocol, of the two at this path.

    Args:
        has_secret: whether it comes with a client secret, which only the Realtime API has.
    """
    if "mode" in query:
        return True
    is_realtime = has_secret or any(name in query for name in OPENAI_PARAMETERS)
    return not is_realtime and not asks_for_beta(headers) and not {SUBPROTOCOL, BETA_SUBPROTOCOL} & set(offered_subprotocols(headers))


def parse_session_request(query: QueryParams) -> MinicpmoSessionRequest:
    """
    The parameters of the URL.

    Raises:
        ClientError: one is invalid.
    """
    value = query.get("mode", "video")
    mode = next((mode for mode in MODES if mode == value), None)
    if mode is None:
        raise invalid_value("mode", value, MODES)
    after = query.get("after")
    if after is not None and not (after.isascii() and after.isdigit() and len(after) < 16):
        expectation = f"expected the number of an event, a whole number of at least 0, but got '{shorten(after)}'"
        raise ClientError(f"Invalid 'after': {expectation}.", code="invalid_value", param="after")
    parse_flag(query, recording.RECORD_PARAMETER.name)  # only to validate: `wants_recording` has its value
    return MinicpmoSessionRequest(
        mode=mode,
        model=query.get("model"),
        is_resumable=parse_flag(query, "resumable"),
        resume_token=query.get("resume"),
        after_seq=None if after is None else int(after),
    )


def select_model(service: Service, request: MinicpmoSessionRequest) -> ServedModel:
    """
    The model to use: the requested one if the server has it, else the configured one, else the first that supports the
    mode.

    An unknown name is no error, because clients name the model that they were written for. What a model can do is only
    known while it has a worker: without one it may be the model that the client needs, and comes back soon.

    Raises:
        ApiError: the model doesn't support the mode, or none does; or one that may has no worker now.
    """
    registry = service.registry
    name = request.model if request.model is not None and registry.has(request.model) else service.config.minicpmo.model
    if name is not None:
        model = registry.find(name)
        if supports_mode(model, request.mode):
            return model
        if not model.duplex_engine.has_worker:
            raise no_worker_error()
        raise _model_not_found(f"The model '{name}' can't do mode={request.mode}", request.mode)
    models = [model for model in registry.answering() if not model.name.endswith("*")]
    for model in models:
        if supports_mode(model, request.mode):
            return model
    # One whose name ends in `*` stands for many, and only the client knows which it means.
    if any(supports_mode(model, request.mode) for model in registry.answering()):
        raise missing_parameter("model")
    if not all(model.duplex_engine.has_worker for model in models):
        raise no_worker_error()
    raise _model_not_found(f"This server has no model for mode={request.mode}", request.mode)


def supports_mode(model: ServedModel, mode: Mode) -> bool:
    """Whether a model supports the mode: any model can chat, while audio and video need full duplex."""
    return mode == "chat" or model.duplex_engine.capabilities.full_duplex


def _model_not_found(message: str, mode: Mode) -> ClientError:
    needs = "" if mode == "chat" else ": it needs one that hears and speaks"
    return ClientError(f"{message}{needs}.", code="model_not_found", param="mode", status=404)


class MinicpmoEndpoint:
    """A bare ASGI endpoint that takes the connection over."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._resumable_sessions: ResumableSessions[MinicpmoClient] = ResumableSessions()

    async def __call__(self, scope: Scope, send: Send) -> None:
        """Serve one WebSocket, from its handshake to its end."""
        query, attachment = QueryParams(scope["query_string"]), Attachment()
        # Accepted before the request is even parsed, so that every error can be sent on it.
        # A wrong mode is one of them, so it needs a limit too.
        limit_bytes = next((EVENT_LIMIT_BYTES[mode] for mode in MODES if mode == query.get("mode")), MESSAGE_LIMIT_BYTES)
        await attachment.accept(lambda attachment: _upgrade(scope, send, attachment, limit_bytes))
        try:
            request = parse_session_request(query)
            if request.resume_token is not None:
                self._resume(attachment, request, request.resume_token, request_caller(scope))
            else:
                await self._open_session(scope, attachment, request)
        except* ApiError as errors:
            attachment.refuse(first_error(errors))
        await attachment.websocket.wait_closed()

    def _resume(self, attachment: Attachment, request: MinicpmoSessionRequest, token: str, caller: Caller) -> None:
        # A server that drains resumes sessions still: they are under way, and it waits for them.
        client = self._resumable_sessions.find(token, caller.tenant)
        outcome = client.reattach(attachment, request.after_seq) if client.mode == request.mode else False
        self._service.metrics.minicpmo_resumes["resumed" if outcome else "refused"] += 1
        if not outcome:
            raise session_not_found()
        attachment.websocket.resume_reading()

    async def _open_session(self, scope: Scope, attachment: Attachment, request: MinicpmoSessionRequest) -> None:
        """Run a new session, over all WebSockets of its client."""
        service, caller = self._service, request_caller(scope)
        service.live_sessions.check_admission()
        await service.speech.prepare()
        model = select_model(service, request)
        # Before the next `await`: if its only worker leaves meanwhile, what the model can do is no longer known.
        session_config = build_session_config(service, model, request)
        async with track_response(scope, lambda: 0):  # tokens are counted as each response ends
            is_requested = recording.wants_recording(scope)
            recordings = recording.recording_taps(
                service, caller, protocol="minicpmo", mode=request.mode, model=model.name, is_requested=is_requested
            )
            counts, tap = minicpmo_taps(service, model, caller, recordings)
            # A client that can't resume must not keep its place while others queue for it.
            resume_s = service.config.minicpmo.resume_s if request.is_resumable else 0
            client = MinicpmoClient(request.mode, caller.tenant, tap, self._resumable_sessions, resume_s)
            with log_minicpmo_session(service, caller, model, request.mode, client, counts, recordings) as live:
                await self._run_session(attachment, model, session_config, client, caller, recordings, live)

    async def _run_session(
        self,
        attachment: Attachment,
        model: ServedModel,
        session_config: MinicpmoSessionConfig,
        client: MinicpmoClient,
        caller: Caller,
        recordings: Sequence[RecordingTap],
        live: LiveSession,
    ) -> None:
        service, key, observe = self._service, caller.key, recording.observe_with(recordings)
        driver = Driver(MinicpmoSession(session_config, new_id), client, service.store, metrics=service.metrics, observe=observe)
        settings = ConversationSettings(model=model.name, tenant=caller.tenant, kind=session_config.mode, key_id=key.id if key else "")
        engine = service.rewriter.around(model.duplex_engine, (model.name,), settings.key_id)
        client.start(attachment, driver)
        live.stop = driver.shut_down

        # Called once the session has begun. Until then frames wait in the socket, as `upgrade` reads none.
        async def read() -> None:
            attachment.websocket.resume_reading()

        with service.live_sessions.track(driver, key):
            try:
                await driver.run(engine, settings, session_config, read)
            except* ApiError as errors:
                client.fail(first_error(errors))
            except* Exception as errors:  # where a session ends
                client.fail(session_failed(code="session_failed"))
                raise errors


def build_session_config(service: Service, model: ServedModel, request: MinicpmoSessionRequest) -> MinicpmoSessionConfig:
    """The configuration of a new session. It has a resume token only if the client asks for one and the server waits for clients."""
    settings, mode = service.config.minicpmo, request.mode
    max_duration_s = {"chat": settings.chat_s, "audio": settings.audio_s, "video": settings.video_s}[mode]
    return MinicpmoSessionConfig(
        model=model.name,
        capabilities=model.duplex_engine.capabilities,
        mode=mode,
        session_id=new_id("sess"),
        resume_token=new_id("resume") if settings.resume_s and request.is_resumable else None,
        resume_s=settings.resume_s,
        instructions=settings.instructions,
        max_duration_s=max_duration_s,
        warning_s=settings.warning_s,
        init_timeout_s=settings.init_s,
        idle_timeout_s=settings.chat_idle_s if mode == "chat" else settings.idle_s,
    )


async def _upgrade(scope: Scope, send: Send, attachment: Attachment, limit_bytes: int) -> ServerWebSocket:
    names = offered_subprotocols(Headers(scope=scope))
    subprotocol = MINICPMO_SUBPROTOCOL if MINICPMO_SUBPROTOCOL in names else select_subprotocol(Headers(scope=scope))
    return await connection.from_scope(scope).upgrade(
        send,
        attachment,
        subprotocol=subprotocol,
        on_binary=attachment.on_binary,
        bucket=TokenBucket(EVENTS_PER_S, bytes_per_s=BYTES_PER_S),
        limit_bytes=limit_bytes,
    )
