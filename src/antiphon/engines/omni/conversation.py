"""
One client's conversation with a MiniCPM-o worker: one session after the other, each on a line of its own.

A task asks the worker for what takes a while, one thing at a time: a session all the time, or one in which questions are answered. All that
is said comes from the socket's own callback. The worker's protocol has no way to stop an answer: one that is cancelled costs its session,
and the next question begins another as soon as the worker is idle.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from antiphon.audio import ms_of
from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Deliver, EngineOverrun, Fetch
from antiphon.engines.omni import request as omni_ask
from antiphon.engines.omni.audio import Units
from antiphon.engines.omni.response import Answer, Duplex, Words
from antiphon.engines.omni.session import Line, Parting
from antiphon.errors import Fault, UpstreamTrouble
from antiphon.wire.minicpmo.media import to_floats
from antiphon.wire.upstream.minicpmo_backend import TO_WORKER_HZ, InputAppend, Mode, Opening, Said, Unit

BACKLOG_BYTES = 4 << 20
"""How much may wait for a worker to take it in; what is told when there is more is not taken."""

BACKLOG_MS = 5_000
"""How much sound may wait for a session to begin."""

MOST_FRAMES = 4
"""Pictures that one piece of sound may have; of more, the last."""

MOST_WAITING = 64
"""Questions that may wait to be answered."""

AGAIN_S = (0.5, 1.5, 3.0)
"""How long to wait before a session is asked for again of a worker that closed without a word: one that is still clearing up does so."""


class Way(Protocol):
    """How a worker is reached."""

    fetch: Fetch
    session_s: float
    is_native: bool

    async def admit(self, mode: Mode) -> Line:
        """A line to the worker, once that has nothing else to do."""

    async def dismiss(self, line: Line | None) -> bool:
        """Let the worker end the session, if there is one; whether it came to have nothing to do, or there is no worker any more."""

    def fits(self, line: Line, mode: Mode) -> bool:
        """Whether a session of that mode may begin on the line."""


class OmniConversation:
    """
    A conversation.

    Args:
        line: to the worker, without a session yet.
    """

    def __init__(self, way: Way, line: Line, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._way = way
        self._line: Line | None = line
        self._deliver_to: Deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[commands.Converse | commands.Respond] = deque()
        self._has_job = asyncio.Event()
        self._opening: Opening | None = None  # of the session that has begun on the line
        self._answer: Answer | None = None
        self._answered = asyncio.Event()
        self._duplex: Duplex | None = None
        self._senses: _Senses | None = None
        self._outbox: Words = []
        self._lost: Fault | None = None
        self._is_paused = False
        numbers = count(1)
        self._mint = lambda: f"said_{next(numbers)}"
        self._task = tasks.create_task(self._work())

    # What the session says

    def tell(self, word: commands.ToEngine) -> None:
        """Take a word."""
        match word:
            case commands.Respond(id=id) if self._lost is not None:
                self._say([talk_events.Broke.by(id, self._lost)])
            case commands.Respond() | commands.Converse():
                self._ask(word)
            case commands.Cancel(id):
                self._cancel(id)
            case commands.Hear(pcm) if self._senses is not None and self._lost is None:
                self._hear(self._senses, pcm)
            case commands.See() | commands.Listen() if self._senses is not None:
                self._senses.take(word)
            case _:
                pass  # its abilities say that it detects no turns and foresees nothing

    def pause(self) -> None:
        """Read nothing, and let no time pass."""
        self._is_paused = True
        if self._line is not None:
            self._line.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._line is not None:
            self._line.resume()

    def shut(self) -> None:
        """Break every answer: the server stops."""
        fault = UpstreamTrouble("The server is shutting down.", status=503, code="server_is_overloaded")
        self._task.cancel()
        self._lose(fault, "shutdown")
        if self._line is not None:
            self._line.hang_up()

    async def leave(self) -> bool:
        """Say nothing more, and return when the worker has nothing more to do; whether it came to that."""
        self._deliver_to = lambda _words: None
        self._lost = self._lost or UpstreamTrouble("The conversation is over.")
        self._task.cancel()
        await asyncio.wait([self._task])
        return await self._way.dismiss(self._line)

    # What takes a while

    def _ask(self, word: commands.Respond | commands.Converse) -> None:
        if len(self._jobs) >= MOST_WAITING:
            raise EngineOverrun(f"{len(self._jobs)} questions are waiting already")
        if isinstance(word, commands.Converse):
            self._senses = _Senses(word)
        self._jobs.append(word)
        self._has_job.set()

    async def _work(self) -> None:
        while self._lost is None:
            if not self._jobs:
                self._has_job.clear()
                await self._has_job.wait()
                continue
            job = self._jobs.popleft()
            try:
                await (self._converse(job) if isinstance(job, commands.Converse) else self._respond(job))
            except Fault as fault:
                if isinstance(job, commands.Converse):
                    self._lose(fault)

    async def _converse(self, word: commands.Converse) -> None:
        created = await self._begin(omni_ask.opening(word))
        self._duplex = Duplex(word.voice, self._mint, created.usage)
        self._say([talk_events.Ready(created.metrics or {})])
        if self._senses is not None:
            for unit in self._senses.released():
                self._send(unit)

    async def _respond(self, ask: commands.Respond) -> None:
        answer = self._answer = Answer(ask)
        self._answered.clear()
        try:
            asked = await omni_ask.question(ask, self._way.fetch)
            await self._questions(Opening(mode="turn_based", use_tts=ask.voice is not None))
            line = self._line
            if line is None or answer.is_over:
                return
            line.is_answering = True
            line.say(InputAppend(input=asked))
            await self._answered.wait()
            is_whole, line.is_answering = not line.is_answering, False
            if self._way.is_native or not is_whole:
                await self._part()
        except Fault as fault:
            self._say(answer.end(talk_events.Broke.by(ask.id, fault)))
        finally:
            self._answer = None

    async def _questions(self, opening: Opening) -> None:
        """Have a session in which questions are answered."""
        if self._line is None or not self._line.is_open or self._opening != opening:
            await self._begin(opening)

    async def _begin(self, opening: Opening) -> Said:
        """
        A session.

        Raises:
            Fault: there is none; where the worker is gone, that was told.
        """
        self._hush()
        pauses_s = iter(AGAIN_S)
        while True:
            line = await self._fresh(opening.mode)
            said = await line.begin(opening, self._way.session_s, self)
            if isinstance(said, Said):
                self._opening = opening
                return said
            pause_s = next(pauses_s, None)
            if said.was_said:
                raise said.fault
            if pause_s is None or not said.may_retry:
                self._lose(said.fault)
                raise said.fault
            await asyncio.sleep(pause_s)

    async def _fresh(self, mode: Mode) -> Line:
        """A line on which no session has begun."""
        line = self._line
        if line is None or line.has_begun or not line.is_open or not self._way.fits(line, mode):
            await self._part()
            try:
                line = self._line = await self._way.admit(mode)
            except Fault as fault:
                self._lose(fault)
                raise
        if self._is_paused:
            line.pause()
        return line

    async def _part(self) -> None:
        """End the session that there is."""
        if self._line is not None:
            self._opening = None
            await self._way.dismiss(self._line)
            self._line = None

    def _hush(self) -> None:
        """What the model was saying all the time ends, as another session begins."""
        duplex, self._duplex = self._duplex, None
        if duplex is not None:
            self._say(duplex.end_turn())

    def _cancel(self, id: str) -> None:
        waiting = next((job for job in self._jobs if isinstance(job, commands.Respond) and job.id == id), None)
        if waiting is not None:
            self._jobs.remove(waiting)
            self._say([talk_events.Ended(id, "cancelled")])
        elif self._answer is not None and self._answer.id == id:
            self._say(self._answer.end(talk_events.Ended(id, "cancelled")))
            self._answered.set()
        elif self._duplex is not None and (words := self._duplex.cancel(id)):
            self._say(words)
            if self._senses is not None:
                self._senses.take(commands.Listen())

    # What is heard and seen

    def _hear(self, senses: "_Senses", pcm: bytes) -> None:
        is_late = self._line is not None and self._line.link.backlog_bytes > BACKLOG_BYTES
        if is_late or senses.held_ms > BACKLOG_MS:
            raise EngineOverrun("the worker takes in what it hears too slowly")
        for unit in senses.hear(pcm):
            if self._duplex is None:
                senses.hold(unit)
            else:
                self._send(unit)

    def _send(self, unit: Unit) -> None:
        if self._line is not None and self._duplex is not None:
            if unit.force_listen:
                self._duplex.hush()
            self._line.say(InputAppend(input=unit))

    # What the worker says

    def heard(self, said: Sequence[Said]) -> None:
        """The worker said this, all of it together."""
        for each in said:
            if self._answer is not None:
                self._outbox += self._answer.hear(each)
            elif self._duplex is not None:
                self._outbox += self._duplex.hear(each)
        if self._answer is not None and self._answer.is_over and self._line is not None:
            self._line.is_answering = False
            self._answered.set()
        self._deliver()

    def parted(self, line: Line, parting: Parting) -> None:
        """There is no session any more; whether there is a worker, is seen when the next is to begin."""
        if line is not self._line:
            return
        if self._answer is not None:
            self._say(self._answer.end(talk_events.Broke.by(self._answer.id, parting.fault)))
            self._answered.set()
        if self._duplex is not None or not parting.was_said:
            self._lose(parting.fault)
        self._deliver()

    def _lose(self, fault: Fault, code: str = "backend_error") -> None:
        """The worker is gone: so is all that was asked of it."""
        if self._lost is not None:
            return
        self._lost = fault
        words: Words = []
        if self._answer is not None:
            words += self._answer.end(talk_events.Broke.by(self._answer.id, fault))
        words += [talk_events.Broke.by(job.id, fault) for job in self._jobs if isinstance(job, commands.Respond)]
        if self._duplex is not None:
            words += self._duplex.end(fault)
        self._jobs.clear()
        self._answered.set()
        self._has_job.set()
        self._say([*words, talk_events.Lost(code=code, message=fault.message)])

    # When it is said

    def _say(self, words: Sequence[talk_events.FromEngine]) -> None:
        """Say so as soon as whoever tells something has finished."""
        if words and not self._outbox:
            self._loop.call_soon(self._deliver)
        self._outbox += words

    def _deliver(self) -> None:
        words, self._outbox = self._outbox, []
        if words:
            self._deliver_to(words)


class _Senses:
    """
    What the model hears and sees, in the pieces that it takes.

    Attributes:
        held_ms: how much sound waits for the session to begin.
    """

    def __init__(self, word: commands.Converse) -> None:
        self.held_ms = 0.0
        self._units = Units(word.rate_hz)
        self._sees = word.sees
        self._frames: deque[commands.See] = deque(maxlen=MOST_FRAMES)
        self._listens = False
        self._held: list[Unit] = []

    def take(self, word: commands.See | commands.Listen) -> None:
        """Goes with the next sound."""
        if isinstance(word, commands.Listen):
            self._listens = True
        elif self._sees:
            self._frames.append(word)

    def hear(self, pcm: bytes) -> list[Unit]:
        """The pieces that are whole now: the first has the pictures, and all are listened to where that was asked."""
        sounds = self._units.take(pcm, at_once=self._listens)
        units = [Unit(audio=to_floats(sound), force_listen=self._listens) for sound in sounds]
        if units:
            units[0].video_frames = [frame.jpeg for frame in self._frames]
            units[0].max_slice_nums = max((frame.slices for frame in self._frames), default=1)
            self._frames.clear()
            self._listens = False
        return units

    def hold(self, unit: Unit) -> None:
        """Keep a piece until the session has begun."""
        self._held.append(unit)
        self.held_ms += ms_of(len(unit.audio) // 2, TO_WORKER_HZ)

    def released(self) -> list[Unit]:
        """What was kept."""
        held, self._held, self.held_ms = self._held, [], 0.0
        return held
