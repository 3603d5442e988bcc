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

from antiphon.audio import duration_ms
from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import Deliver, EngineOverrun, Fetch
from antiphon.engines.omni import request as omni_ask
from antiphon.engines.omni.audio import AudioUnitChunker
from antiphon.engines.omni.response import EventList, OmniDuplexReader, OmniResponseReader
from antiphon.engines.omni.session import BackendSession, SessionEnd
from antiphon.errors import ApiError, UpstreamError
from antiphon.wire.minicpmo.media import to_floats
from antiphon.wire.upstream.minicpmo_backend import INPUT_RATE_HZ, BackendEvent, DuplexInput, InputAppend, Mode, SessionPayload

MAX_BACKLOG_BYTES = 4 << 20
"""How much may wait for a worker to take it in; what is told when there is more is not taken."""

MAX_PENDING_AUDIO_MS = 5_000
"""How much sound may wait for a session to begin."""

MAX_FRAMES_PER_UNIT = 4
"""Pictures that one piece of sound may have; of more, the last."""

MAX_PENDING_REQUESTS = 64
"""Questions that may wait to be answered."""

RETRY_DELAYS_S = (0.5, 1.5, 3.0)
"""How long to wait before a session is asked for again of a worker that closed without a word: one that is still clearing up does so."""


class WorkerAccess(Protocol):
    """How a worker is reached."""

    fetch: Fetch
    session_timeout_s: float
    is_native: bool

    async def acquire_session(self, mode: Mode) -> BackendSession:
        """A line to the worker, once that has nothing else to do."""

    async def release_session(self, session: BackendSession | None) -> bool:
        """Let the worker end the session, if there is one; whether it came to have nothing to do, or there is no worker any more."""

    def is_compatible(self, session: BackendSession, mode: Mode) -> bool:
        """Whether a session of that mode may begin on the line."""


class OmniConversation:
    """
    A conversation.

    Args:
        line: to the worker, without a session yet.
    """

    def __init__(self, access: WorkerAccess, session: BackendSession, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._access = access
        self._session: BackendSession | None = session
        self._deliver_events: Deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[commands.StartDuplex | commands.Respond] = deque()
        self._has_job = asyncio.Event()
        self._session_payload: SessionPayload | None = None  # of the session that has begun on the line
        self._response: OmniResponseReader | None = None
        self._response_over = asyncio.Event()
        self._duplex_reader: OmniDuplexReader | None = None
        self._input_buffer: _InputBuffer | None = None
        self._outbox: EventList = []
        self._fatal_error: ApiError | None = None
        self._is_paused = False
        numbers = count(1)
        self._new_id = lambda: f"said_{next(numbers)}"
        self._task = tasks.create_task(self._run_jobs())

    # What the session says

    def send(self, command: commands.EngineCommand) -> None:
        """Take a word."""
        match command:
            case commands.Respond(id=id) if self._fatal_error is not None:
                self._deliver_soon([engine_events.ResponseFailed.from_error(id, self._fatal_error)])
            case commands.Respond() | commands.StartDuplex():
                self._enqueue(command)
            case commands.Cancel(id):
                self._cancel(id)
            case commands.AppendAudio(pcm) if self._input_buffer is not None and self._fatal_error is None:
                self._append_audio(self._input_buffer, pcm)
            case commands.AppendImage() | commands.ForceListen() if self._input_buffer is not None:
                self._input_buffer.add(command)
            case _:
                pass  # its abilities say that it detects no turns and foresees nothing

    def pause(self) -> None:
        """Read nothing, and let no time pass."""
        self._is_paused = True
        if self._session is not None:
            self._session.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._session is not None:
            self._session.resume()

    def abort(self) -> None:
        """Break every answer: the server stops."""
        fault = UpstreamError("The server is shutting down.", status=503, code="server_is_overloaded")
        self._task.cancel()
        self._fail(fault, "shutdown")
        if self._session is not None:
            self._session.close()

    async def release(self) -> bool:
        """Say nothing more, and return when the worker has nothing more to do; whether it came to that."""
        self._deliver_events = lambda _words: None
        self._fatal_error = self._fatal_error or UpstreamError("The conversation is over.")
        self._task.cancel()
        await asyncio.wait([self._task])
        return await self._access.release_session(self._session)

    # What takes a while

    def _enqueue(self, command: commands.Respond | commands.StartDuplex) -> None:
        if len(self._jobs) >= MAX_PENDING_REQUESTS:
            raise EngineOverrun(f"{len(self._jobs)} questions are waiting already")
        if isinstance(command, commands.StartDuplex):
            self._input_buffer = _InputBuffer(command)
        self._jobs.append(command)
        self._has_job.set()

    async def _run_jobs(self) -> None:
        while self._fatal_error is None:
            if not self._jobs:
                self._has_job.clear()
                await self._has_job.wait()
                continue
            job = self._jobs.popleft()
            try:
                await (self._start_duplex(job) if isinstance(job, commands.StartDuplex) else self._respond(job))
            except ApiError as fault:
                if isinstance(job, commands.StartDuplex):
                    self._fail(fault)

    async def _start_duplex(self, command: commands.StartDuplex) -> None:
        created = await self._begin_session(omni_ask.build_session_payload(command))
        self._duplex_reader = OmniDuplexReader(command.voice, self._new_id, created.usage)
        self._deliver_soon([engine_events.DuplexStarted(created.metrics or {})])
        if self._input_buffer is not None:
            for unit in self._input_buffer.take_pending():
                self._send_unit(unit)

    async def _respond(self, request: commands.Respond) -> None:
        answer = self._response = OmniResponseReader(request)
        self._response_over.clear()
        try:
            asked = await omni_ask.build_chat_input(request, self._access.fetch)
            await self._ensure_session(SessionPayload(mode="turn_based", use_tts=request.voice is not None))
            line = self._session
            if line is None or answer.is_over:
                return
            line.is_answering = True
            line.send(InputAppend(input=asked))
            await self._response_over.wait()
            is_whole, line.is_answering = not line.is_answering, False
            if self._access.is_native or not is_whole:
                await self._end_session()
        except ApiError as fault:
            self._deliver_soon(answer.end(engine_events.ResponseFailed.from_error(request.id, fault)))
        finally:
            self._response = None

    async def _ensure_session(self, payload: SessionPayload) -> None:
        """Have a session in which questions are answered."""
        if self._session is None or not self._session.is_open or self._session_payload != payload:
            await self._begin_session(payload)

    async def _begin_session(self, payload: SessionPayload) -> BackendEvent:
        """
        A session.

        Raises:
            ApiError: there is none; where the worker is gone, that was told.
        """
        self._end_duplex()
        pauses_s = iter(RETRY_DELAYS_S)
        while True:
            line = await self._acquire_unused_session(payload.mode)
            said = await line.begin(payload, self._access.session_timeout_s, self)
            if isinstance(said, BackendEvent):
                self._session_payload = payload
                return said
            pause_s = next(pauses_s, None)
            if said.is_from_worker:
                raise said.error
            if pause_s is None or not said.may_retry:
                self._fail(said.error)
                raise said.error
            await asyncio.sleep(pause_s)

    async def _acquire_unused_session(self, mode: Mode) -> BackendSession:
        """A line on which no session has begun."""
        line = self._session
        if line is None or line.has_begun or not line.is_open or not self._access.is_compatible(line, mode):
            await self._end_session()
            try:
                line = self._session = await self._access.acquire_session(mode)
            except ApiError as fault:
                self._fail(fault)
                raise
        if self._is_paused:
            line.pause()
        return line

    async def _end_session(self) -> None:
        """End the session that there is."""
        if self._session is not None:
            self._session_payload = None
            await self._access.release_session(self._session)
            self._session = None

    def _end_duplex(self) -> None:
        """What the model was saying all the time ends, as another session begins."""
        duplex, self._duplex_reader = self._duplex_reader, None
        if duplex is not None:
            self._deliver_soon(duplex.end_turn())

    def _cancel(self, id: str) -> None:
        waiting = next((job for job in self._jobs if isinstance(job, commands.Respond) and job.id == id), None)
        if waiting is not None:
            self._jobs.remove(waiting)
            self._deliver_soon([engine_events.ResponseEnded(id, "cancelled")])
        elif self._response is not None and self._response.id == id:
            self._deliver_soon(self._response.end(engine_events.ResponseEnded(id, "cancelled")))
            self._response_over.set()
        elif self._duplex_reader is not None and (words := self._duplex_reader.cancel(id)):
            self._deliver_soon(words)
            if self._input_buffer is not None:
                self._input_buffer.add(commands.ForceListen())

    # What is heard and seen

    def _append_audio(self, input_buffer: "_InputBuffer", pcm: bytes) -> None:
        is_late = self._session is not None and self._session.websocket.backlog_bytes > MAX_BACKLOG_BYTES
        if is_late or input_buffer.pending_ms > MAX_PENDING_AUDIO_MS:
            raise EngineOverrun("the worker takes in what it hears too slowly")
        for unit in input_buffer.append_audio(pcm):
            if self._duplex_reader is None:
                input_buffer.enqueue(unit)
            else:
                self._send_unit(unit)

    def _send_unit(self, unit: DuplexInput) -> None:
        if self._session is not None and self._duplex_reader is not None:
            if unit.force_listen:
                self._duplex_reader.mute()
            self._session.send(InputAppend(input=unit))

    # What the worker says

    def on_events(self, events: Sequence[BackendEvent]) -> None:
        """The worker said this, all of it together."""
        for each in events:
            if self._response is not None:
                self._outbox += self._response.read(each)
            elif self._duplex_reader is not None:
                self._outbox += self._duplex_reader.read(each)
        if self._response is not None and self._response.is_over and self._session is not None:
            self._session.is_answering = False
            self._response_over.set()
        self._flush_outbox()

    def on_session_end(self, session: BackendSession, end: SessionEnd) -> None:
        """There is no session any more; whether there is a worker, is seen when the next is to begin."""
        if session is not self._session:
            return
        if self._response is not None:
            self._deliver_soon(self._response.end(engine_events.ResponseFailed.from_error(self._response.id, end.error)))
            self._response_over.set()
        if self._duplex_reader is not None or not end.is_from_worker:
            self._fail(end.error)
        self._flush_outbox()

    def _fail(self, error: ApiError, code: str = "backend_error") -> None:
        """The worker is gone: so is all that was asked of it."""
        if self._fatal_error is not None:
            return
        self._fatal_error = error
        words: EventList = []
        if self._response is not None:
            words += self._response.end(engine_events.ResponseFailed.from_error(self._response.id, error))
        words += [engine_events.ResponseFailed.from_error(job.id, error) for job in self._jobs if isinstance(job, commands.Respond)]
        if self._duplex_reader is not None:
            words += self._duplex_reader.end(error)
        self._jobs.clear()
        self._response_over.set()
        self._has_job.set()
        self._deliver_soon([*words, engine_events.EngineLost(code=code, message=error.message)])

    # When it is said

    def _deliver_soon(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Say so as soon as whoever tells something has finished."""
        if events and not self._outbox:
            self._loop.call_soon(self._flush_outbox)
        self._outbox += events

    def _flush_outbox(self) -> None:
        words, self._outbox = self._outbox, []
        if words:
            self._deliver_events(words)


class _InputBuffer:
    """
    What the model hears and sees, in the pieces that it takes.

    Attributes:
        held_ms: how much sound waits for the session to begin.
    """

    def __init__(self, command: commands.StartDuplex) -> None:
        self.pending_ms = 0.0
        self._chunker = AudioUnitChunker(command.rate_hz)
        self._has_video = command.has_video
        self._frames: deque[commands.AppendImage] = deque(maxlen=MAX_FRAMES_PER_UNIT)
        self._force_listen = False
        self._pending_units: list[DuplexInput] = []

    def add(self, command: commands.AppendImage | commands.ForceListen) -> None:
        """Goes with the next sound."""
        if isinstance(command, commands.ForceListen):
            self._force_listen = True
        elif self._has_video:
            self._frames.append(command)

    def append_audio(self, pcm: bytes) -> list[DuplexInput]:
        """The pieces that are whole now: the first has the pictures, and all are listened to where that was asked."""
        sounds = self._chunker.process(pcm, is_urgent=self._force_listen)
        units = [DuplexInput(audio=to_floats(sound), force_listen=self._force_listen) for sound in sounds]
        if units:
            units[0].video_frames = [frame.jpeg for frame in self._frames]
            units[0].max_slice_nums = max((frame.max_slices for frame in self._frames), default=1)
            self._frames.clear()
            self._force_listen = False
        return units

    def enqueue(self, unit: DuplexInput) -> None:
        """Keep a piece until the session has begun."""
        self._pending_units.append(unit)
        self.pending_ms += duration_ms(len(unit.audio) // 2, INPUT_RATE_HZ)

    def take_pending(self) -> list[DuplexInput]:
        """What was kept."""
        held, self._pending_units, self.pending_ms = self._pending_units, [], 0.0
        return held
