"""The line to a Realtime server: what is said on it, and what is heard, with the time of each."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import urlencode

import aiohttp
from msgspec import UNSET, Struct

from antiphon.cli.client import Client, Unreachable
from antiphon.cli.talk_sound import RATE_HZ
from antiphon.errors import ClientMistake, UpstreamTrouble
from antiphon.wire.base import Unknown
from antiphon.wire.realtime_client import ClientEvent, SessionUpdate
from antiphon.wire.realtime_dialects import DIALECTS, DialectName
from antiphon.wire.realtime_server import ErrorEvent, RealtimeError, ServerEvent, SessionUpdated
from antiphon.wire.realtime_session import Audio, AudioInput, AudioOutput, PcmFormat, Session, Transcription

OPENING_S = 60
"""How long a server may take to open a session: it may have ears and a voice to load first."""

HEARS_NOTHING = "unsupported_content_type"
"""The code of a refusal of all sound."""

_FAREWELL_S = 1.0
_PING_S = 30.0
_MESSAGE_BYTES = 16 << 20


class Asked(Struct, frozen=True, kw_only=True):
    """
    What is asked of a session; what is None is as the server has it.

    Attributes:
        model: who is to answer.
    """

    model: str
    dialect: DialectName = "ga"
    voice: str | None = None
    instructions: str | None = None

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
    """
    An open session.

    Attributes:
        sent: how many events were said, by type; `received` likewise.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, dialect: DialectName) -> None:
        self._socket = socket
        self._dialect = DIALECTS[dialect]
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    async def say(self, event: ClientEvent) -> None:
        """
        Send an event.

        Raises:
            UpstreamTrouble: nobody is there any more.
        """
        try:
            await self._socket.send_str(self._dialect.encode_client(event).decode())
        except (aiohttp.ClientError, ConnectionError):
            raise self._broken() from None
        self.sent[event.type] += 1

    async def hear(self, within_s: float | None = None) -> Heard | None:
        """
        The next event; None when none came in time.

        Raises:
            UpstreamTrouble: the server has hung up, or says what can't be read.
        """
        try:
            async with asyncio.timeout(within_s):
                message = await self._socket.receive()
        except TimeoutError:
            return None
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise self._broken(message)
        try:
            event = self._dialect.decode_server(message.data.encode())
        except ClientMistake as mistake:
            raise UpstreamTrouble(f"The server says what is no event: {mistake.message}") from None
        self.received[event.type] += 1
        return Heard(event, asyncio.get_running_loop().time())

    async def begin(self, wanted: Session) -> None:
        """
        Set the session.

        Raises:
            UpstreamTrouble: the server refuses.
        """
        await self.say(SessionUpdate(session=wanted))
        while (heard := await self.hear(OPENING_S)) is not None:
            if isinstance(heard.event, ErrorEvent):
                raise refusal(heard.event.error)
            if isinstance(heard.event, SessionUpdated):
                return
        raise UpstreamTrouble(f"The server has begun no session within {OPENING_S} s.")

    def _broken(self, message: aiohttp.WSMessage | None = None) -> UpstreamTrouble:
        reason = f": {message.extra}" if message is not None and message.type is aiohttp.WSMsgType.CLOSE and message.extra else ""
        return UpstreamTrouble(f"The server has ended the conversation ({self._socket.close_code or 'the connection broke'}{reason}).")


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
    headers = {"OpenAI-Beta": "realtime=v1"} if asked.dialect == "beta" else {}
    if client.key is not None:
        headers["Authorization"] = f"Bearer {client.key}"
    patience = aiohttp.ClientWSTimeout(ws_close=_FAREWELL_S)
    async with aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as held:
        opening = http.ws_connect(client.base_url + path, headers=headers, timeout=patience, heartbeat=_PING_S, max_msg_size=_MESSAGE_BYTES)
        try:
            async with asyncio.timeout(OPENING_S):
                socket = await held.enter_async_context(opening)
        except aiohttp.WSServerHandshakeError as refusal:
            raise await asyncio.to_thread(_declined, client, path, refusal.status) from None
        except TimeoutError:
            raise Unreachable(f"The server at {client.base_url} opened no session within {OPENING_S} s.") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise Unreachable(f"No answer from {client.base_url}: {getattr(error, 'strerror', None) or error}.") from None
        line = Line(socket, asked.dialect)
        await line.begin(asked.session)
        yield line


def _declined(client: Client, path: str, status: int) -> UpstreamTrouble:
    """Why there is no session: in the server's words, which a plain request is told where a handshake is not."""
    try:
        client.get(path)
    except UpstreamTrouble as trouble:
        if trouble.status == status:
            return trouble
    return UpstreamTrouble(f"The server at {client.base_url} opened no session, but answered {status}.", status=status)
