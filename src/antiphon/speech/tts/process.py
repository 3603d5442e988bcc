"""
The server's end of a voice in a process of its own: it is started, asked, replaced when it dies, and killed when it hangs.

What is asked of a process that dies fails; what is asked while there is none waits for the next, which is started at once.
"""

import asyncio
import contextlib
import itertools
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from msgspec import Struct

from antiphon.errors import ServerError
from antiphon.speech.tts.link import (
    StartVoice,
    StopSynthesis,
    SynthesisDone,
    SynthesisFailed,
    Synthesize,
    VoiceCommand,
    VoiceEvent,
    VoiceFailed,
    VoiceFrameReader,
    VoiceReady,
    encode_frame,
    event_decoder,
)
from antiphon.subprocesses import SupervisedProcess, reap, resolve, spawn

MAX_IN_FLIGHT = 2
"""Of what one answer says, so much is asked for at once."""


class VoiceLimits(Struct, frozen=True, kw_only=True):
    """
    How long is waited for what.

    Attributes:
        start_s: for a process to be ready; loading takes long on a busy machine.
        answer_s: for a process that has something to say and says nothing; then it is killed.
        waiting: how much may be asked and not yet be said; more is refused.
    """

    start_timeout_s: float = 60.0
    response_timeout_s: float = 20.0
    max_pending: int = 256


class _VoiceChild(asyncio.Protocol):
    """
    One process, and what it was asked.

    Args:
        command: of the process.
        begin: what it is told first.
        lost: called once it is gone.

    Attributes:
        ready: whether it can speak; the fault, where it never will.
        gone: set once it is.
    """

    def __init__(self, command: Sequence[str], start_command: StartVoice, limits: VoiceLimits, on_lost: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.exit_event = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._command = command
        self._start_command = start_command
        self._limits = limits
        self._on_lost = on_lost
        self._loop = loop
        self._frames = VoiceFrameReader()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[SynthesisDone]] = {}
        self._watchdog: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """
        Start the process; returns when it can speak.

        Raises:
            ApiError: it can't.
        """
        self.process = await spawn(self._command, lambda: self)
        self.send(self._start_command)
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                await self.ready
        except TimeoutError:
            raise ServerError(f"The process of the voice was not ready in {self._limits.start_timeout_s:g} seconds.") from None

    async def stop(self, grace_s: float) -> None:
        """See the process end: of itself when the link is closed, or by force."""
        self.close()
        if self.process is not None:
            await reap(self.process, grace_s)

    # What is asked of it

    @property
    def pending_count(self) -> int:
        """How much it has been asked and has not answered."""
        return len(self._pending)

    def submit(self, request: Synthesize) -> asyncio.Future[SynthesisDone]:
        """Have something said; whoever stops wanting it calls `drop`."""
        answer: asyncio.Future[SynthesisDone] = self._loop.create_future()
        if self._transport is None:
            resolve(answer, _process_died_error())
            return answer
        if not self._pending:
            self._restart_watchdog()
        self._pending[request.id] = answer
        self.send(request)
        return answer

    def cancel(self, id: int, future: "asyncio.Future[SynthesisDone]") -> None:
        """Let it stop what is not done."""
        future.cancel()
        if self._pending.pop(id, None) is not None:
            self.send(StopSynthesis(id))
            if not self._pending:
                self._cancel_watchdog()

    def send(self, message: VoiceCommand) -> None:
        """Send a message; to nobody where it is gone."""
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        """Close the link, at which it ends."""
        if self._transport is not None:
            self._transport.close()

    def kill(self) -> None:
        """End it whatever it does."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
        self.close()

    # What comes from it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that is what a socket has
        """The link is there."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Some messages, or parts of them."""
        for packed in self._frames.feed(data):
            self._handle_event(event_decoder.decode(packed))
        if self._pending:
            self._restart_watchdog()
        else:
            self._cancel_watchdog()

    def _handle_event(self, event: VoiceEvent) -> None:
        match event:
            case VoiceReady():
                resolve(self.ready, None)
            case VoiceFailed():
                resolve(self.ready, ServerError(event.message))
            case SynthesisDone():
                if (waiting := self._pending.pop(event.id, None)) is not None:
                    resolve(waiting, event)
            case SynthesisFailed():
                if (waiting := self._pending.pop(event.id, None)) is not None:
                    resolve(waiting, ServerError(f"The voice can't say that: {event.message}.", code="server_error"))

    def connection_lost(self, _error: Exception | None) -> None:
        """It has ended, or its end of the link has."""
        self._transport = None
        self._cancel_watchdog()
        resolve(self.ready, ServerError("The process of the voice ended before it could speak."))
        for waiting in self._pending.values():
            resolve(waiting, _process_died_error())
        self._pending.clear()
        self.exit_event.set()
        self._on_lost()

    def _restart_watchdog(self) -> None:
        self._cancel_watchdog()
        self._watchdog = self._loop.call_later(self._limits.response_timeout_s, self.kill)

    def _cancel_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None


class VoiceProcess:
    """
    A voice that is always there, whatever becomes of its process.

    Args:
        program: what Python runs: a file, or `-m` and a module.
        begin: what it is told first.
        notice: takes a line for the operator.
    """

    def __init__(
        self,
        program: Sequence[str],
        start_command: StartVoice,
        limits: VoiceLimits | None = None,
        notice: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._limits = limits or VoiceLimits()
        self._ids = itertools.count(1)
        command = (sys.executable, "-P", *program)
        self._process = SupervisedProcess(
            "process of the voice", lambda lost: _VoiceChild(command, start_command, self._limits, lost), notice
        )

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._process.pid

    async def start(self) -> None:
        """
        Start the process, and see that there is one from here on; returns when it can speak.

        Raises:
            ApiError: it can't.
        """
        await self._process.start()

    async def stop(self) -> None:
        """End the process; idempotent."""
        await self._process.stop()

    async def synthesize(self, texts: Iterable[str], voice: str, speed: float) -> AsyncGenerator[SynthesisDone]:
        """
        Have clauses or sentences said, one after the other; closing this stops the work.

        While one is being taken the next is being made, and none behind it: so all who speak have their turns.

        Raises:
            ApiError: one could not be said, or more is being asked than can be said.
        """
        child = await self._live_child()
        asked: deque[tuple[int, asyncio.Future[SynthesisDone]]] = deque()
        try:
            for text in texts:
                if child.pending_count >= self._limits.max_pending:
                    raise _overloaded_error()
                id = next(self._ids)
                asked.append((id, child.submit(Synthesize(id, text, voice, speed, ahead=bool(asked)))))
                if len(asked) == MAX_IN_FLIGHT:
                    yield await _next_result(asked)
            while asked:
                yield await _next_result(asked)
        finally:
            for id, answer in asked:
                child.cancel(id, answer)

    async def _live_child(self) -> _VoiceChild:
        if not self._process.is_started:
            raise ServerError("The voice has not been started.")
        child = await self._process.wait_ready(self._limits.start_timeout_s)
        if child is None:
            raise _process_died_error()
        return child


async def _next_result(pending: "deque[tuple[int, asyncio.Future[SynthesisDone]]]") -> SynthesisDone:
    said = await pending[0][1]
    pending.popleft()
    return said


def _process_died_error() -> ServerError:
    return ServerError(
        "The voice broke off. Please try again.", status=503, type="service_unavailable_error", code="server_error", retry_after_s=1
    )


def _overloaded_error() -> ServerError:
    return ServerError(
        "The voice has more to say than it can. Please try again later.",
        status=503,
        type="service_unavailable_error",
        code="server_is_overloaded",
        retry_after_s=1,
    )
