"""A session with a Realtime server: connecting, configuring, and exchanging events."""

import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlencode

import aiohttp
from msgspec import UNSET, Struct

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice.audio import RATE_HZ
from antiphon.cli.voice.recording import RECORD_HEADERS
from antiphon.cli.voice.socket import OPEN_TIMEOUT_S, ClientSession, connect_websocket
from antiphon.errors import UpstreamError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.client_events import ClientEvent, SessionUpdate
from antiphon.wire.realtime.dialects import DIALECTS, DialectName
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError, ServerEvent, SessionUpdated
from antiphon.wire.realtime.session import Audio, AudioInput, AudioOutput, PcmFormat, Session, Transcription

RealtimeEvent = ServerEvent | Unknown

AUDIO_UNSUPPORTED = "unsupported_content_type"
"""The error code for a model that takes no audio."""

_TRANSCRIPTION_MODEL = "whisper-1"
"""Every server knows this name, or uses its own transcriber for it."""


class RealtimeSessionOptions(Struct, frozen=True, kw_only=True):
    """
    How a session is opened; None keeps the server's default.

    Attributes:
        on_session_id: asks the server to record the session, and gets its id; None asks for no recording.
    """

    model: str
    dialect: DialectName = "ga"
    voice: str | None = None
    instructions: str | None = None
    on_session_id: Callable[[str], object] | None = None

    @property
    def session(self) -> Session:
        """The configuration to send in `session.update`."""
        pcm = PcmFormat(rate=RATE_HZ)
        return Session(
            instructions=UNSET if self.instructions is None else self.instructions,
            audio=Audio(
                input=AudioInput(format=pcm, transcription=Transcription(model=_TRANSCRIPTION_MODEL)),
                output=AudioOutput(format=pcm, voice=UNSET if self.voice is None else self.voice),
            ),
        )


class RealtimeClientSession(ClientSession[RealtimeEvent]):
    """An open session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, dialect: DialectName) -> None:
        super().__init__(socket)
        self._dialect = DIALECTS[dialect]

    def decode(self, text: bytes) -> RealtimeEvent:
        return self._dialect.decode_server(text)

    async def send(self, event: ClientEvent) -> None:
        """
        Send an event.

        Raises:
            UpstreamError: the connection is closed.
        """
        await self.send_text(self._dialect.encode_client(event).decode(), event.type)

    async def configure(self, session: Session) -> str:
        """
        Configure the session.

        Returns:
            Its id.

        Raises:
            UpstreamError: the server refuses.
        """
        await self.send(SessionUpdate(session=session))
        while (timed_event := await self.receive(OPEN_TIMEOUT_S)) is not None:
            if isinstance(timed_event.event, ErrorEvent):
                raise refusal_error(timed_event.event.error)
            if isinstance(timed_event.event, SessionUpdated):
                return timed_event.event.session.id or ""
        raise UpstreamError(f"The server started no session within {OPEN_TIMEOUT_S} s.")


def refusal_error(error: RealtimeError) -> UpstreamError:
    """The server's error; for a server without speech, a message that says what to do."""
    if error.code == AUDIO_UNSUPPORTED:
        return UpstreamError(
            "The model takes no audio, and the server has no speech recognition for it. Where the server runs: "
            "`antiphon models pull --speech`, then start it again; `antiphon doctor` says what else is missing.",
            code=error.code,
        )
    return UpstreamError(error.message, code=error.code, param=error.param)


@contextlib.asynccontextmanager
async def connect_realtime(client: ApiClient, options: RealtimeSessionOptions) -> AsyncIterator[RealtimeClientSession]:
    """
    Connect, and configure the session.

    Raises:
        UpstreamError: the server can't be reached, or refuses.
    """
    path = f"/v1/realtime?{urlencode({'model': options.model, 'dialect': options.dialect})}"
    # The beta of the Realtime API is chosen by this header; the query is antiphon's own.
    headers = ({"OpenAI-Beta": "realtime=v1"} if options.dialect == "beta" else {}) | (RECORD_HEADERS if options.on_session_id else {})
    async with connect_websocket(client, path, headers) as socket:
        session = RealtimeClientSession(socket, options.dialect)
        session_id = await session.configure(options.session)
        if options.on_session_id is not None:
            options.on_session_id(session_id)
        yield session
