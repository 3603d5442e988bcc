"""The line to a Realtime server: what is said on it, and what is heard, with the time of each."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple
from urllib.parse import urlencode

import aiohttp
from msgspec import UNSET, Struct

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice import recording
from antiphon.cli.voice.audio import RATE_HZ
from antiphon.cli.voice.socket import OPEN_TIMEOUT_S, EventSocket, connect_websocket
from antiphon.errors import ClientError, UpstreamError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.client_events import ClientEvent, SessionUpdate
from antiphon.wire.realtime.dialects import DIALECTS, DialectName
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError, ServerEvent, SessionUpdated
from antiphon.wire.realtime.session import Audio, AudioInput, AudioOutput, PcmFormat, Session, Transcription

AUDIO_UNSUPPORTED = "unsupported_content_type"
"""The code of a refusal of all sound."""


class RealtimeSessionOptions(Struct, frozen=True, kw_only=True):
    """
    What is asked of a session; what is None is as the server has it.

    Attributes:
        model: who is to answer.
        recording: takes the id of the session, which is to be recorded; None for one that isn't.
    """

    model: str
    dialect: DialectName = "ga"
    voice: str | None = None
    instructions: str | None = None
    on_session_id: Callable[[str], object] | None = None

    @property
    def session(self) -> Session:
        """The same as the protocol has it."""
        sound = PcmFormat(rate=RATE_HZ)
        heard = AudioInput(format=sound, transcription=Transcription(model=_TRANSCRIPTION_MODEL))
        spoken = AudioOutput(format=sound, voice=UNSET if self.voice is None else self.voice)
        told = UNSET if self.instructions is None else self.instructions
        return Session(instructions=told, audio=Audio(input=heard, output=spoken))


_TRANSCRIPTION_MODEL = "whisper-1"
"""The name of a transcriber that every server knows, or takes for its own."""


class TimedRealtimeEvent(NamedTuple):
    """
    An event of the server's.

    Attributes:
        at_s: when it came, on the clock of the loop.
    """

    event: ServerEvent | Unknown
    at_s: float


class RealtimeClientSession:
    """An open session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, dialect: DialectName) -> None:
        self._socket = EventSocket(socket)
        self._dialect = DIALECTS[dialect]

    @property
    def sent_counts(self) -> Counter[str]:
        """How many events were said, by type."""
        return self._socket.sent_counts

    @property
    def received_counts(self) -> Counter[str]:
        """How many events were heard, by type."""
        return self._socket.received_counts

    async def send(self, event: ClientEvent) -> None:
        """
        Send an event.

        Raises:
            UpstreamError: nobody is there any more.
        """
        await self._socket.send(self._dialect.encode_client(event).decode(), event.type)

    async def receive(self, timeout_s: float | None = None) -> TimedRealtimeEvent | None:
        """
        The next event; None when none came in time.

        Raises:
            UpstreamError: the server has hung up, or says what can't be read.
        """
        frame = await self._socket.receive(timeout_s)
        if frame is None:
            return None
        try:
            event = self._dialect.decode_server(frame.text)
        except ClientError as mistake:
            raise UpstreamError(f"The server says what is no event: {mistake.message}") from None
        self.received_counts[event.type] += 1
        return TimedRealtimeEvent(event, frame.at_s)

    async def configure(self, session: Session) -> str:
        """
        Set the session; its id.

        Raises:
            UpstreamError: the server refuses.
        """
        await self.send(SessionUpdate(session=session))
        while (heard := await self.receive(OPEN_TIMEOUT_S)) is not None:
            if isinstance(heard.event, ErrorEvent):
                raise refusal_error(heard.event.error)
            if isinstance(heard.event, SessionUpdated):
                return heard.event.session.id or ""
        raise UpstreamError(f"The server has begun no session within {OPEN_TIMEOUT_S} s.")


def refusal_error(error: RealtimeError) -> UpstreamError:
    """What the server refuses, in its words; where it has no ears, in ours, with what to do."""
    if error.code == AUDIO_UNSUPPORTED:
        return UpstreamError(
            "The model hears nothing, and the server has no ears for it. Where the server runs: `antiphon models pull --speech`, "
            "then start it again; `antiphon doctor` says what else is missing.",
            code=error.code,
        )
    return UpstreamError(error.message, code=error.code, param=error.param)


@contextlib.asynccontextmanager
async def connect_realtime(client: ApiClient, options: RealtimeSessionOptions) -> AsyncIterator[RealtimeClientSession]:
    """
    A session, set as asked.

    Raises:
        UpstreamError: the server is not there, or declines.
    """
    path = f"/v1/realtime?{urlencode({'model': options.model, 'dialect': options.dialect})}"
    headers = ({"OpenAI-Beta": "realtime=v1"} if options.dialect == "beta" else {}) | (
        recording.RECORD_HEADERS if options.on_session_id else {}
    )
    async with connect_websocket(client, path, headers) as socket:
        line = RealtimeClientSession(socket, options.dialect)
        session_id = await line.configure(options.session)
        if options.on_session_id is not None:
            options.on_session_id(session_id)
        yield line
