"""
One client's conversation with a Realtime server: a connection when there is something to say, another when it is lost.

What the client's session was told stays here and in the session, so that a lost connection costs the answers that were under way and
nothing else. A task for each connection sees to its turn, its dialling and its retries, then sleeps until it is over; all that is said
comes from the socket's own callbacks.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Deliver, EngineOverrun
from antiphon.engines.realtime.faults import error_in, farewell, fault_of
from antiphon.engines.realtime.session import Channel, Intake, Patience
from antiphon.engines.upstream.client import Upstream
from antiphon.engines.upstream.http_exchange import Failure
from antiphon.engines.upstream.websocket import Link, dial
from antiphon.errors import ClientMistake, Fault, UpstreamTrouble
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.client_events import ClientEvent
from antiphon.wire.realtime.dialects import Dialect
from antiphon.wire.realtime.response import StatusError
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError, SessionCreated

BACKLOG_BYTES = 16 << 20
"""How much may wait to be sent; what is told when there is more is not taken."""

MOST_WAITING = 64
"""Answers that may be asked for before there is a connection."""

GARBLED_LIMIT = 16
"""So many messages that are none, and the upstream is not one to listen to."""

REST_S = (1.0, 30.0)
"""How long sound alone does not dial after dialling has failed: at first, doubled each time, and at most."""


class Way(Protocol):
    """How a server is reached."""

    upstream: Upstream
    dialect: Dialect
    patience: Patience
    connect_s: float

    def address(self, model: str) -> tuple[str, dict[str, str]]:
        """The URL and the headers that a connection for `model` is opened with."""


class RealtimeConversation:
    """
    A conversation.

    Attributes:
        deliver: takes the words.
        is_paused: whether the client is behind.
    """

    def __init__(self, way: Way, model: str, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self.deliver: Deliver = deliver
        self.is_paused = False
        self.intake = Intake()
        self.way = way
        self._address = way.address(model)
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._line: _Line | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[commands.ToEngine] = deque()
        self._waiting_bytes = 0
        self._outbox: list[talk_events.FromEngine] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._rest_s = 0.0
        self._rests_until = 0.0
        self._is_shut = False
        numbers = count(1)
        self._mint_turn = lambda: f"heard_{next(numbers)}"

    # What the session does

    def tell(self, word: commands.ToEngine) -> None:
        """Take a word."""
        if self._line is not None:
            if isinstance(word, commands.Hear | commands.Respond) and self._line.link.backlog_bytes > BACKLOG_BYTES:
                raise EngineOverrun("the model server takes in what it is sent too slowly")
            self._say(self._line.channel.take(word, self._loop.time()))
            self._arm()
        elif isinstance(word, commands.Cancel):
            self._take_back(word.id)
        elif self._needs_none(word):
            self._say(self._note(word, _shutting_down()))
        else:
            self._wait(word)

    def pause(self) -> None:
        """Read nothing, and let no time pass."""
        self.is_paused = True
        if self._line is not None:
            self._line.link.pause()

    def resume(self) -> None:
        """Read on."""
        self.is_paused = False
        if self._line is not None:
            self._line.channel.touch(self._loop.time())
            self._line.link.resume()

    def shut(self) -> None:
        """Break every answer: the server stops."""
        self._is_shut = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._lose(_shutting_down())
        if self._task is not None:
            self._task.cancel()

    def hush(self) -> None:
        """Say nothing more."""
        self.deliver = lambda _words: None
        self.shut()

    # Before there is a connection

    def _needs_none(self, word: commands.ToEngine) -> bool:
        """Whether a word is only to be noted, and no connection made for it."""
        if self._is_shut:
            return True
        if self._task is not None:
            return False
        is_resting = self._loop.time() < self._rests_until
        return isinstance(word, commands.Configure | commands.Forget) or (isinstance(word, commands.Hear) and is_resting)

    def _wait(self, word: commands.ToEngine) -> None:
        if self._waiting_bytes > BACKLOG_BYTES or sum(isinstance(waiting, commands.Respond) for waiting in self._waiting) >= MOST_WAITING:
            raise EngineOverrun("the connection to the model server is not there yet")
        if self._task is None:
            self._start()
        self._waiting.append(word)
        self._waiting_bytes += len(word.pcm) if isinstance(word, commands.Hear) else 0

    def _start(self) -> None:
        self.way.upstream.slots.reserve()
        self._task = self._tasks.create_task(self._connect())
        # Not the task's own last act: one that is cancelled before its first step does nothing at all.
        self._task.add_done_callback(self._disconnected)

    def _take_back(self, id: str) -> None:
        asked = next((word for word in self._waiting if isinstance(word, commands.Respond) and word.id == id), None)
        if asked is not None:
            self._waiting.remove(asked)
            self._say([talk_events.Ended(id, "cancelled")])

    def _note(self, word: commands.ToEngine, fault: Fault) -> list[talk_events.FromEngine]:
        """What a word comes to without a connection, which there is none of by `fault`."""
        intake = self.intake
        match word:
            case commands.Configure():
                intake.set(word)
            case commands.Hear(pcm):
                intake.take(pcm)
            case commands.Forget():
                intake.held.clear()
            case commands.Commit(id):
                intake.held.clear()
                if intake.configure is not None and intake.configure.transcription is not None:
                    return [talk_events.NotHeard(id=id, message=fault.message)]
            case commands.Respond(id=id):
                return [talk_events.Broke.by(id, fault)]
            case commands.Cancel() | commands.Foresee() | commands.Converse() | commands.See() | commands.Listen():
                pass
        return []

    async def _connect(self) -> None:
        upstream = self.way.upstream
        try:
            async with upstream.slots.held():
                line = await upstream.link(self._dial)
                await line.over
        except Fault as fault:
            self._rest_s = min(max(self._rest_s * 2, REST_S[0]), REST_S[1])
            self._rests_until = self._loop.time() + self._rest_s
            self._lose(fault)

    async def _dial(self) -> "_Line | Failure":
        line = _Line(self)
        url, headers = self._address
        try:
            failure = await dial(line.link, url, headers, self.way.upstream.tls, self.way.connect_s)
            if failure is not None:
                return failure
            async with asyncio.timeout(self.way.connect_s):
                fault = await line.greeted
        except TimeoutError:
            message = f"The model server did not begin its session in {self.way.connect_s:g} seconds."
            fault = UpstreamTrouble(message, status=504, code="upstream_timeout")
        finally:
            if self._line is not line:
                line.link.close()
        return line if fault is None else Failure(fault, "refused", counts=fault.status >= 500 and fault.code != "upstream_credentials")

    def _disconnected(self, _task: asyncio.Task[None]) -> None:
        self.way.upstream.slots.release()
        self._task = None
        if self._waiting and not self._is_shut:  # told since the connection was lost
            try:
                self._start()
            except EngineOverrun as overrun:
                self._say(self._given_up(UpstreamTrouble(f"The model is overloaded: {overrun}.", status=503, code="server_is_overloaded")))

    # While there is one

    def begin(self, line: "_Line") -> Channel:
        """The upstream has said that its session has begun."""
        self._line = line
        self._rest_s = 0.0
        way = self.way
        channel = Channel(line.send, self.intake, self._mint_turn, secrets.token_hex(4), way.patience, self._judge, way.dialect.name)
        if self.is_paused:
            line.link.pause()
        now = self._loop.time()
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for word in waiting:
            self._say(channel.take(word, now))
        return channel

    def _judge(self, error: RealtimeError | StatusError | None) -> Fault:
        return self.way.upstream.hushed(fault_of(error))

    def heard(self, words: list[talk_events.FromEngine]) -> None:
        """The upstream said so, all of it together."""
        self._outbox += words
        self._deliver()
        self._arm()

    def parted(self, line: "_Line", fault: Fault) -> None:
        """The connection is gone; the next word makes another."""
        if self._line is line:
            self.way.upstream.note("broke_off")
            self._lose(fault)

    def _lose(self, fault: Fault) -> None:
        line, self._line = self._line, None
        words = self._given_up(fault)
        if line is not None:
            words = line.channel.end(fault) + words
            line.link.close()
            line.end()
        self._say(words)

    def _given_up(self, fault: Fault) -> list[talk_events.FromEngine]:
        """What comes of the words that wait for a connection that will not be."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        words = [said for word in waiting for said in self._note(word, fault)]
        if waiting and not words and not self._is_shut:
            words.append(talk_events.Trouble(message=fault.message, code=fault.code, type=fault.type))
        return words

    # When it is said

    def _say(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Say so as soon as whoever tells something has finished."""
        if words and not self._outbox:
            self._loop.call_soon(self._deliver)
        self._outbox += words

    def _deliver(self) -> None:
        words, self._outbox = self._outbox, []
        if words:
            self.deliver(words)

    def _arm(self) -> None:
        due_at = self._line.channel.due_at() if self._line is not None else None
        if due_at is not None and (self._alarm is None or due_at < self._alarm.when()):
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(due_at, self._look_at_clock)

    def _look_at_clock(self) -> None:
        self._alarm = None
        if self._line is None:
            return
        now = self._loop.time()
        if self.is_paused:
            self._line.channel.touch(now)
        self.heard(self._line.channel.look_at_clock(now))


def _shutting_down() -> Fault:
    return UpstreamTrouble("The server is shutting down.", status=503, code="server_is_overloaded")


class _Line:
    """
    A connection, from dialling on.

    Attributes:
        link: the socket.
        channel: set once the upstream has begun its session.
        greeted: None when it has, else why not.
        over: done when the connection is gone.
    """

    channel: Channel

    def __init__(self, conversation: RealtimeConversation) -> None:
        loop = asyncio.get_running_loop()
        self.link = Link(self)
        self.greeted: asyncio.Future[Fault | None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self._conversation = conversation
        self._dialect = conversation.way.dialect
        self._garbled = 0
        self._time = loop.time

    def send(self, event: ClientEvent) -> None:
        """Send an event upstream."""
        self.link.send(self._dialect.encode_client(event))

    def end(self) -> None:
        """It is over."""
        if not self.over.done():
            self.over.set_result(None)

    def came(self, messages: Sequence[bytes]) -> None:
        """Take messages that came together."""
        words: list[talk_events.FromEngine] = []
        now = self._time()
        for message in messages:
            try:
                event = self._dialect.decode_server(message)
            except ClientMistake:
                self._garbled += 1
                continue
            if self.greeted.done():
                words += self.channel.hear(event, now)
            elif isinstance(event, SessionCreated):
                self.channel = self._conversation.begin(self)
                self.greeted.set_result(None)
            elif isinstance(event, ErrorEvent) or (isinstance(event, Unknown) and event.type == "error"):
                self.greeted.set_result(fault_of(error_in(event)))
                return
        self._conversation.heard(words)
        if self._garbled > GARBLED_LIMIT:
            fault = UpstreamTrouble("The model server sends what is no message of the Realtime API.", code="upstream_malformed")
            self._conversation.parted(self, fault)

    def parted(self, code: int, reason: str) -> None:
        """The upstream closed the connection, or it broke."""
        fault = farewell(code, reason)
        if self.greeted.done():
            self._conversation.parted(self, fault)
        else:
            self.greeted.set_result(fault)
