"""
One client's conversation with a MiniCPM-o worker: one session after the other, each on a connection of its own.

A task runs the jobs one at a time: a full-duplex session, or a question. Events are delivered from the socket's own
callback. The worker's protocol has no way to stop an answer: cancelling one costs its session, and the next question
begins another when the worker is idle.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import Deliver, EngineOverrun, Fetch
from antiphon.engines.omni.request import build_chat_input, build_session_payload
from antiphon.engines.omni.response import EventList, OmniDuplexReader, OmniResponseReader
from antiphon.engines.omni.session import BackendSession, SessionEnd
from antiphon.engines.upstream.http_exchange import OVERRUN_BYTES, ResponseLimits
from antiphon.errors import SHUTTING_DOWN_CODE, ApiError, UpstreamError, shutting_down
from antiphon.speech.dsp.resample import Resampler
from antiphon.wire.minicpmo.media import to_floats
from antiphon.wire.upstream.minicpmo_backend import INPUT_RATE_HZ, BackendEvent, DuplexInput, InputAppend, Mode, SessionPayload

MAX_BACKLOG_BYTES = 4 << 20
"""Bytes that may wait to be sent to a worker; more input is refused."""

MAX_PENDING_AUDIO_MS = 5_000
"""Audio that may wait for a session to begin."""

MAX_FRAMES_PER_UNIT = 4
"""Video frames that go with one unit of audio; of more, the latest."""

MAX_PENDING_REQUESTS = 64
"""Requests that may wait for their turn."""

RETRY_DELAYS_S = (0.5, 1.5, 3.0)
"""
Pauses before a session is tried again on a worker that closed without a message, as the C++ server does while it cleans
up.
"""


class WorkerAccess(Protocol):
    """What a conversation needs of its worker."""

    fetch: Fetch
    session_timeout_s: float
    is_native: bool
    response_limits: ResponseLimits

    async def acquire_session(self, mode: Mode) -> BackendSession:
        """
        A connection to the worker, once it is idle.

        Raises:
            UpstreamError: it is not idle in time.
        """

    async def release_session(self, session: BackendSession | None) -> bool:
        """End the session, if there is one; returns whether the worker became idle, or is gone."""

    def count_failure(self, reason: str) -> None:
        """Count a failure of the worker in the metrics; `reason` is one word."""

    def is_compatible(self, session: BackendSession, mode: Mode) -> bool:
        """Whether a session of that mode may begin on this connection."""


class OmniConversation:
    """
    One client's conversation.

    Args:
        session: a connection to the worker on which no session has begun.
    """

    def __init__(self, access: WorkerAccess, session: BackendSession, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._access = access
        self._session: BackendSession | None = session
        self._deliver_events: Deliver = deliver
        self._jobs: deque[commands.StartDuplex | commands.Respond] = deque()
        self._has_job = asyncio.Event()
        self._session_payload: SessionPayload | None = None  # of the session that has begun
        self._response: OmniResponseReader | None = None
        self._response_over = asyncio.Event()
        self._duplex_reader: OmniDuplexReader | None = None
        self._input_buffer: _InputBuffer | None = None
        self._fatal_error: ApiError | None = None
        self._is_paused = False
        self._counts_at_start = (0, 0)  # what the session had received when the answer or the turn began
        self._is_cut = False
        numbers = count(1)
        self._new_id = lambda: f"said_{next(numbers)}"
        self._task: asyncio.Task[None] | None = tasks.create_task(self._run_jobs())

    # Commands

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.Respond(id=id) if self._fatal_error is not None:
                self._deliver([engine_events.ResponseFailed.from_error(id, self._fatal_error)])
            case commands.Respond() | commands.StartDuplex():
                self._enqueue(command)
            case commands.Cancel(id):
                self._cancel(id)
            case commands.AppendAudio(pcm) if self._input_buffer is not None and self._fatal_error is None:
                self._append_audio(self._input_buffer, pcm)
            case commands.AppendImage() | commands.ForceListen() if self._input_buffer is not None:
                self._input_buffer.add(command)
            case _:
                pass  # by its capabilities it detects no turns and prepares no responses

    def pause(self) -> None:
        self._is_paused = True
        if self._session is not None:
            self._session.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._session is not None:
            self._session.resume()

    def abort(self) -> None:
        """Fail every response, because the server stops."""
        if self._task is not None:
            self._task.cancel()
        self._fail(shutting_down(), SHUTTING_DOWN_CODE)
        if self._session is not None:
            self._session.close()

    async def release(self) -> bool:
        """Deliver nothing more and end the session; returns whether the worker became idle."""
        self._deliver_events = lambda _events: None
        self._fatal_error = self._fatal_error or UpstreamError("The conversation is over.")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None  # the traceback of its cancellation leads back here
        return await self._access.release_session(self._session)

    # Jobs

    def _enqueue(self, command: commands.Respond | commands.StartDuplex) -> None:
        if len(self._jobs) >= MAX_PENDING_REQUESTS:
            raise EngineOverrun(f"{len(self._jobs)} requests are waiting already")
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
            except ApiError as error:
                if isinstance(job, commands.StartDuplex):
                    self._fail(error)

    async def _start_duplex(self, command: commands.StartDuplex) -> None:
        created_event = await self._begin_session(build_session_payload(command))
        self._duplex_reader = OmniDuplexReader(command.voice, self._new_id, created_event.usage)
        if self._input_buffer is not None:
            for unit in self._input_buffer.take_pending():
                self._send_unit(unit)
        self._deliver([engine_events.DuplexStarted(created_event.metrics or {})])

    async def _respond(self, request: commands.Respond) -> None:
        response = self._response = OmniResponseReader(request)
        self._response_over.clear()
        try:
            chat_input = await build_chat_input(request, self._access.fetch)
            await self._ensure_session(SessionPayload(mode="turn_based", use_tts=request.voice is not None))
            session = self._session
            if session is None or response.is_over:
                return
            session.is_answering = True
            self._start_counting()
            session.send(InputAppend(input=chat_input))
            await self._response_over.wait()
            is_complete, session.is_answering = not session.is_answering, False
            # The C++ server takes one question a session; and a worker can't be told to stop, so an incomplete answer
            # costs the session.
            if self._access.is_native or not is_complete:
                await self._end_session()
        except ApiError as error:
            self._deliver(response.end(engine_events.ResponseFailed.from_error(request.id, error)))
        finally:
            self._response = None

    async def _ensure_session(self, payload: SessionPayload) -> None:
        """Begin a session for questions, unless there is one with this payload."""
        if self._session is None or not self._session.is_open or self._session_payload != payload:
            await self._begin_session(payload)

    async def _begin_session(self, payload: SessionPayload) -> BackendEvent:
        """
        Begin a session; returns its `session.created`.

        Raises:
            ApiError: it can't begin; if the worker is lost, `EngineLost` was delivered.
        """
        self._end_duplex()
        delays_s = iter(RETRY_DELAYS_S)
        while True:
            session = await self._acquire_unused_session(payload.mode)
            outcome = await session.begin(payload, self._access.session_timeout_s, self)
            if isinstance(outcome, BackendEvent):
                self._session_payload = payload
                return outcome
            delay_s = next(delays_s, None)
            if outcome.is_from_worker:
                raise outcome.error
            if delay_s is None or not outcome.may_retry:
                self._fail(outcome.error)
                raise outcome.error
            await asyncio.sleep(delay_s)

    async def _acquire_unused_session(self, mode: Mode) -> BackendSession:
        """A connection on which no session has begun."""
        session = self._session
        if session is None or session.has_begun or not session.is_open or not self._access.is_compatible(session, mode):
            await self._end_session()
            try:
                session = self._session = await self._access.acquire_session(mode)
            except ApiError as error:
                self._fail(error)
                raise
        if self._is_paused:
            session.pause()
        return session

    async def _end_session(self) -> None:
        if self._session is not None:
            self._session_payload = None
            await self._access.release_session(self._session)
            self._session = None

    def _end_duplex(self) -> None:
        reader, self._duplex_reader = self._duplex_reader, None
        if reader is not None:
            self._deliver(reader.end_turn())

    def _cancel(self, id: str) -> None:
        job = next((job for job in self._jobs if isinstance(job, commands.Respond) and job.id == id), None)
        if job is not None:
            self._jobs.remove(job)
            self._deliver([engine_events.ResponseEnded(id, "cancelled")])
        elif self._response is not None and self._response.id == id:
            # What the worker sends from now on must not pass for the end of its answer, which would save its session.
            response, self._response = self._response, None
            self._response_over.set()
            self._deliver(response.end(engine_events.ResponseEnded(id, "cancelled")))
        elif self._duplex_reader is not None and (batch := self._duplex_reader.cancel(id)):
            if self._input_buffer is not None:
                self._input_buffer.add(commands.ForceListen())
            self._deliver(batch)

    # Audio and video input

    def _append_audio(self, input_buffer: "_InputBuffer", pcm: bytes) -> None:
        is_late = self._session is not None and self._session.websocket.backlog_bytes > MAX_BACKLOG_BYTES
        if is_late or input_buffer.pending_ms > MAX_PENDING_AUDIO_MS:
            raise EngineOverrun("the worker reads its input too slowly")
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

    # Events of the worker

    def on_events(self, events: Sequence[BackendEvent]) -> None:
        batch: EventList = []
        for event in events:
            if self._response is not None:
                batch += self._response.read(event)
            elif self._duplex_reader is not None:
                batch += self._duplex_reader.read(event)
        if self._response is not None and self._response.is_over and self._session is not None:
            self._session.is_answering = False
            self._response_over.set()
        if self._duplex_reader is not None and any(isinstance(event, engine_events.Listening) for event in batch):
            self._start_counting()
        if self._is_beyond_limits():
            batch += self._cut()
        self._deliver(batch)
        if self._is_cut and self._received_since_start()[0] > OVERRUN_BYTES:
            self._fail(UpstreamError("The worker goes on with a turn that was cut off.", code="upstream_malformed"))

    # How long an answer, or a turn in full duplex, may get

    def _start_counting(self) -> None:
        self._is_cut = False
        if self._session is not None:
            self._counts_at_start = self._session.received_bytes, self._session.received_count

    def _received_since_start(self) -> tuple[int, int]:
        """Bytes and messages of the answer or the turn; once it is cut, of what still comes."""
        if self._session is None:
            return 0, 0
        bytes_before, count_before = self._counts_at_start
        return self._session.received_bytes - bytes_before, self._session.received_count - count_before

    def _is_beyond_limits(self) -> bool:
        (size_bytes, count), limits = self._received_since_start(), self._access.response_limits
        return not self._is_cut and (size_bytes > limits.max_bytes or count > limits.max_events)

    def _cut(self) -> EventList:
        """End the answer, which costs its session, or tell the model in full duplex to listen."""
        batch: EventList = []
        if self._response is not None:
            response, self._response = self._response, None
            batch = response.end(engine_events.ResponseEnded(response.id, "length"))
            self._response_over.set()
        elif self._duplex_reader is not None:
            batch = self._duplex_reader.cut()
            if self._input_buffer is not None:
                self._input_buffer.add(commands.ForceListen())
        self._start_counting()
        self._is_cut = True
        self._access.count_failure("too_long")
        return batch

    def on_session_end(self, session: BackendSession, end: SessionEnd) -> None:
        if session is not self._session:
            return
        if self._duplex_reader is not None or not end.is_from_worker:
            self._fail(end.error)
        elif self._response is not None:
            self._response_over.set()
            self._deliver(self._response.end(engine_events.ResponseFailed.from_error(self._response.id, end.error)))

    def _fail(self, error: ApiError, code: str = "backend_error") -> None:
        """The worker is lost: fail everything, once."""
        if self._fatal_error is not None:
            return
        self._fatal_error = error
        batch: EventList = []
        if self._response is not None:
            batch += self._response.end(engine_events.ResponseFailed.from_error(self._response.id, error))
        batch += [engine_events.ResponseFailed.from_error(job.id, error) for job in self._jobs if isinstance(job, commands.Respond)]
        if self._duplex_reader is not None:
            batch += self._duplex_reader.end(error)
        self._jobs.clear()
        self._response_over.set()
        self._has_job.set()
        self._deliver([*batch, engine_events.EngineLost(code=code, message=error.message)])

    def _deliver(self, events: EventList) -> None:
        """Deliver the events; the client may send commands from within, so callers change their state before."""
        if events:
            self._deliver_events(events)


class _InputBuffer:
    """
    Audio and video on their way to the model, in units of its size.

    Attributes:
        pending_ms: audio that waits for the session to begin.
    """

    def __init__(self, command: commands.StartDuplex) -> None:
        self.pending_ms = 0.0
        self._chunker = AudioUnitChunker(command.rate_hz)
        self._has_video = command.has_video
        self._frames: deque[commands.AppendImage] = deque(maxlen=MAX_FRAMES_PER_UNIT)
        self._force_listen = False
        self._pending_units: list[DuplexInput] = []

    def add(self, command: commands.AppendImage | commands.ForceListen) -> None:
        """Add a frame or a wish to listen to the next unit."""
        if isinstance(command, commands.ForceListen):
            self._force_listen = True
        elif self._has_video:
            self._frames.append(command)

    def append_audio(self, pcm: bytes) -> list[DuplexInput]:
        """The units that are now complete; the first one has the frames, and `force_listen` holds for all of them."""
        chunks = self._chunker.process(pcm, is_urgent=self._force_listen)
        units = [DuplexInput(audio=to_floats(chunk), force_listen=self._force_listen) for chunk in chunks]
        if units:
            units[0].video_frames = [frame.jpeg for frame in self._frames]
            units[0].max_slice_nums = max((frame.max_slices for frame in self._frames), default=1)
            self._frames.clear()
            self._force_listen = False
        return units

    def enqueue(self, unit: DuplexInput) -> None:
        """Keep a unit until the session has begun."""
        self._pending_units.append(unit)
        self.pending_ms += duration_ms(len(unit.audio) // 2, INPUT_RATE_HZ)

    def take_pending(self) -> list[DuplexInput]:
        units, self._pending_units, self.pending_ms = self._pending_units, [], 0.0
        return units


UNIT_BYTES = size_bytes(1000, INPUT_RATE_HZ)
"""The second of audio that the model takes in one step."""

MIN_UNIT_BYTES = size_bytes(250, INPUT_RATE_HZ)
"""The shortest unit; a client's shorter chunks are gathered to a second."""


class AudioUnitChunker:
    """
    Cuts a client's audio into units for the model.

    Chunks of 250 ms to 1 s pass as they are, longer ones are cut into seconds, and shorter ones are gathered to a
    second: each unit is a step of the model, which takes as long for a short one.

    Args:
        rate_hz: the sample rate of the client's audio.
    """

    def __init__(self, rate_hz: int) -> None:
        self._resampler = Resampler(rate_hz, INPUT_RATE_HZ, live=True)
        self._min_input_bytes = size_bytes(250, rate_hz)
        self._buffer = bytearray()

    def process(self, pcm: bytes, *, is_urgent: bool = False) -> list[bytes]:
        """
        The units that are now complete: s16le at `INPUT_RATE_HZ`.

        Args:
            is_urgent: whether 250 ms are enough, so that the model hears a `ForceListen` soon.
        """
        self._buffer += self._resampler.process(pcm)
        min_bytes = MIN_UNIT_BYTES if is_urgent or len(pcm) >= self._min_input_bytes else UNIT_BYTES
        units = []
        while len(self._buffer) >= min_bytes:
            units.append(bytes(self._buffer[:UNIT_BYTES]))
            del self._buffer[:UNIT_BYTES]
        return units
