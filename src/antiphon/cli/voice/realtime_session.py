"""The line to a Realtime server: what is said on it, and what is heard, with the time of each."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple
from urllib.parse import urlencode

import aiohttp
from msgspec import UNSET, Struct

from antiphon.cli.common.client import Client
from antiphon.cli.voice import recording as recorded
from antiphon.cli.voice.audio import RATE_HZ
from antiphon.cli.voice.socket import OPENING_S, Frames, opened
from antiphon.errors import ClientMistake, UpstreamTrouble
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.client_events import ClientEvent, SessionUpdate
from antiphon.wire.realtime.dialects import DIALECTS, DialectName
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError, ServerEvent, SessionUpdated
from antiphon.wire.realtime.session import Audio, AudioInput, AudioOutput, PcmFormat, Session, Transcription

HEARS_NOTHING = "unsupported_content_type"
"""The code of a refusal of all sound."""


class Asked(Struct, frozen=True, kw_only=True):
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
    recording: Callable[[str], object] | None = None

    @property
    def session(self) -> Session:
        """The same as the protocol has it."""
        sound = PcmFormat(rate=RATE_HZ)
        heard = AudioInput(format=sound, transcription=Transcription(model=_TRANSCRIPTION))
        spoken = AudioOutput(format=sound, voice=UNSET if self.voice is None else self.voice)
        told = UNSET if self.instructions is None else self.instructions
        return Session(instructions=told, audio=Audio(input=heard, output=spoken))


_TRANSCRIPTION = "whisper-1"
"""The name of a transcriber that every server knows, or takes for its own."""


class Heard(NamedTuple):
    """
    An event of the server's.

    Attributes:
        at_s: when it came, on the clock of the loop.
    """

    event: ServerEvent | Unknown
    at_s: float


class Line:
    """An open session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, dialect: DialectName) -> None:
        self._frames = Frames(socket)
        self._dialect = DIALECTS[dialect]

    @property
    def sent(self) -> Counter[str]:
        """How many events were said, by type."""
        return self._frames.sent

    @property
    def received(self) -> Counter[str]:
        """How many events were heard, by type."""
        return self._frames.received

    async def say(self, event: ClientEvent) -> None:
        """
        Send an event.

        Raises:
            UpstreamTrouble: nobody is there any more.
        """
        await self._frames.write(self._dialect.encode_client(event).decode(), event.type)

    async def hear(self, within_s: float | None = None) -> Heard | None:
        """
        The next event; None when none came in time.

        Raises:
            UpstreamTrouble: the server has hung up, or says what can't be read.
        """
        frame = await self._frames.read(within_s)
        if frame is None:
            return None
        try:
            event = self._dialect.decode_server(frame.text)
        except ClientMistake as mistake:
            raise UpstreamTrouble(f"The server says what is no event: {mistake.message}") from None
        self.received[event.type] += 1
        return Heard(event, frame.at_s)

    async def begin(self, wanted: Session) -> str:
        """
        Set the session; its id.

        Raises:
            UpstreamTrouble: the server refuses.
        """
        await self.say(SessionUpdate(session=wanted))
        while (heard := await self.hear(OPENING_S)) is not None:
            if isinstance(heard.event, ErrorEvent):
                raise refusal(heard.event.error)
            if isinstance(heard.event, SessionUpdated):
                return heard.event.session.id or ""
        raise UpstreamTrouble(f"The server has begun no session within {OPENING_S} s.")


def refusal(error: RealtimeError) -> UpstreamTrouble:
    """What the server refuses, in its words; where it has no ears, in ours, with what to do."""
    if error.code == HEARS_NOTHING:
        return UpstreamTrouble(
            "The model hears nothing, and the server has no ears for it. Where the server runs: `antiphon models pull --speech`, "
            "then start it again; `antiphon doctor` says what else is missing.",
            code=error.code,
        )
    return UpstreamTrouble(error.message, code=error.code, param=error.param)


@contextlib.asynccontextmanager
async def connected(client: Client, asked: Asked) -> AsyncIterator[Line]:
    """
    A session, set as asked.

    Raises:
        UpstreamTrouble: the server is not there, or declines.
    """
    path = f"/v1/realtime?{urlencode({'model': asked.model, 'dialect': asked.dialect})}"
    headers = ({"OpenAI-Beta": "realtime=v1"} if asked.dialect == "beta" else {}) | (recorded.HEADERS if asked.recording else {})
    async with opened(client, path, headers) as socket:
        line = Line(socket, asked.dialect)
        session_id = await line.begin(asked.session)
        if asked.recording is not None:
            asked.recording(session_id)
        yield line
