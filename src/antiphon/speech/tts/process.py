"""
The server's end of a voice in a process of its own. The process is replaced when it dies and killed when it hangs.

When a process dies, its pending requests fail; requests that come while there is no process wait for the next, which
starts at once.
"""

import asyncio
import contextlib
import itertools
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import structlog
from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES
from antiphon.errors import ApiError, ServerError, invalid_value, overloaded_error
from antiphon.framing import FRAME_LIMIT_BYTES
from antiphon.link import LinkEndpoint, StreamLinkTransport
from antiphon.speech.base import WHOLE_SENTENCE, AudioChunk, SentenceContext
from antiphon.speech.text.clauses import split_sentences
from antiphon.speech.tts.messages import (
    StartVoice,
    StopSynthesis,
    SynthesisDone,
    SynthesisFailed,
    Synthesize,
    SynthesizedAudio,
    VoiceCommand,
    VoiceEvent,
    VoiceFailed,
    VoiceReady,
    event_decoder,
)
from antiphon.subprocesses import SupervisedProcess, reap, resolve, spawn

MAX_IN_FLIGHT = 2
"""
Sentences of one answer that the process has at a time: one is synthesized while the one before it plays. With more, one
answer would keep the others waiting.
"""


class VoiceLimits(Struct, frozen=True, kw_only=True):
    """
    Timeouts and limits of a voice's process.

    Attributes:
        start_timeout_s: until a process is ready; loading takes long on a busy machine.
        response_timeout_s: that a process with pending requests may be silent before it is killed.
        max_pending: requests that may be pending; more are refused.
    """

    start_timeout_s: float = 60.0
    response_timeout_s: float = 20.0
    max_pending: int = 256


class _Synthesis:
    """
    One request to the process, and what came of it.

    Attributes:
        size_bytes: of its speech so far.
    """

    def __init__(self, request: Synthesize) -> None:
        self.request = request
        self.size_bytes = 0
        self._results: asyncio.Queue[SynthesizedAudio | ApiError | None] = asyncio.Queue()  # bounded by `size_bytes`

    def add(self, audio: SynthesizedAudio) -> None:
        self.size_bytes += len(audio.pcm)
        self._results.put_nowait(audio)

    def end(self, error: ApiError | None = None) -> None:
        self._results.put_nowait(error)

    async def next_audio(self) -> SynthesizedAudio | None:
        """
        The speech that comes next; None at its end.

        Raises:
            ApiError: it failed.
        """
        result = await self._results.get()
        if isinstance(result, ApiError):
            raise result
        return result


class _VoiceChild:
    """
    One process and its pending requests.

    Args:
        command: the command line of the process.
        start_command: the first message to it.
        on_lost: called once the link is closed.

    Attributes:
        ready: done when it can speak; fails with an `ApiError` when it never will.
        exit_event: set once the link is closed.
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
        self._link: LinkEndpoint[VoiceEvent, VoiceCommand] = LinkEndpoint(event_decoder, self._handle_event, self._on_link_lost)
        self._pending: dict[int, _Synthesis] = {}
        self._watchdog: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self.process = await spawn(self._command, lambda: StreamLinkTransport(self._link))
        self._link.send(self._start_command)
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                await self.ready
        # `SupervisedProcess` then stops the process, which may still be loading.
        except TimeoutError:
            raise ServerError(f"The voice process was not ready in {self._limits.start_timeout_s:g} seconds.") from None

    async def stop(self, grace_s: float) -> None:
        self._link.abort("the voice is stopping")  # the process then ends by itself
        if self.process is not None:
            await reap(self.process, grace_s)

    # Requests

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def submit(self, request: Synthesize) -> _Synthesis:
        """Request a synthesis; a caller that no longer wants it calls `cancel`."""
        synthesis = _Synthesis(request)
        if self._link.is_over:
            synthesis.end(_process_died_error())
            return synthesis
        self._link.send(request)
        if not self._pending:
            self._restart_watchdog()
        self._pending[request.id] = synthesis
        return synthesis

    def cancel(self, synthesis: _Synthesis) -> None:
        # A synthesis that has ended needs no stop.
        if self._pending.pop(synthesis.request.id, None) is not None:
            self._link.send(StopSynthesis(synthesis.request.id))
            if not self._pending:
                self._cancel_watchdog()

    def kill(self) -> None:
        # Killed, as a process that hangs does not notice that its link is closed.
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        self._link.abort("the voice did not answer")

    # Events from the process

    def _handle_event(self, event: VoiceEvent) -> None:
        match event:
            case VoiceReady():
                resolve(self.ready, None)
            case VoiceFailed():
                resolve(self.ready, ServerError(event.message))
            case SynthesizedAudio():
                self._take_audio(event)
            case SynthesisDone():
                self._end(event.id)
            case SynthesisFailed():
                structlog.get_logger().error("synthesis_failed", message=event.message)  # for clients, it says too much
                self._end(event.id, ServerError("Speech synthesis failed.", code="server_error"))
        # Any event is a sign of life.
        if self._pending:
            self._restart_watchdog()
        else:
            self._cancel_watchdog()

    def _take_audio(self, audio: SynthesizedAudio) -> None:
        if (synthesis := self._pending.get(audio.id)) is None:
            return  # it was cancelled meanwhile
        synthesis.add(audio)
        if synthesis.size_bytes > FRAME_LIMIT_BYTES:
            synthesis.end(ServerError("Speech synthesis failed: the speech is too long.", code="server_error"))
            self.cancel(synthesis)

    def _end(self, id: int, error: ApiError | None = None) -> None:
        if (synthesis := self._pending.pop(id, None)) is not None:
            synthesis.end(error)

    def _on_link_lost(self, _reason: str) -> None:
        self._cancel_watchdog()
        resolve(self.ready, ServerError("The voice process ended before it was ready."))
        for synthesis in self._pending.values():
            synthesis.end(_process_died_error())
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
    A voice whose process is replaced when it dies.

    Args:
        program: what Python runs: a file, or `-m` and a module.
        start_command: the first message to each process.
        notice: takes lines for the operator.
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
            "voice process", lambda on_lost: _VoiceChild(command, start_command, self._limits, on_lost), notice
        )

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return self._process.pid

    async def start(self) -> None:
        """
        Start the process and keep one running; returns when it can speak.

        Raises:
            ApiError: it can't speak; the message says why.
        """
        await self._process.start()

    async def stop(self) -> None:
        """End the process; idempotent."""
        await self._process.stop()

    async def synthesize(
        self, texts: Sequence[str], voice: str, speed: float, context: SentenceContext = WHOLE_SENTENCE
    ) -> AsyncGenerator[SynthesizedAudio]:
        """
        The speech of clauses or sentences, one after the other; closing the iterator stops the work.

        Args:
            context: what comes before the first of them and after the last.

        Raises:
            ApiError: a text can't be said, or too many requests are pending.
        """
        child = await self._live_child()
        in_flight: deque[_Synthesis] = deque()
        try:
            for number, text in enumerate(texts, 1):
                if child.pending_count >= self._limits.max_pending:
                    raise overloaded_error("The voice is overloaded. Please try again later.")
                before = context.before if number == 1 else ""
                continues = context.continues and number == len(texts)
                request = Synthesize(next(self._ids), text, voice, speed, bool(in_flight), before, continues)
                in_flight.append(child.submit(request))
                while in_flight and (len(in_flight) == MAX_IN_FLIGHT or number == len(texts)):
                    while (audio := await in_flight[0].next_audio()) is not None:
                        yield audio
                    in_flight.popleft()
        # Also where the listener leaves: the process must not go on for nobody.
        finally:
            for synthesis in in_flight:
                child.cancel(synthesis)

    async def _live_child(self) -> _VoiceChild:
        if not self._process.is_started:
            raise ServerError("The voice has not been started.")
        child = await self._process.wait_ready(self._limits.start_timeout_s)
        if child is None:
            raise _process_died_error()
        return child


def _process_died_error() -> ServerError:
    return ServerError(
        "Speech synthesis was interrupted. Please try again.",
        status=503,
        type="service_unavailable_error",
        code="server_error",
        retry_after_s=1,
    )


def resolve_voice(voices: Sequence[str], voice: str | None, aliases: Mapping[str, str]) -> str:
    """
    The name of the voice with this name or alias; the first voice for None.

    Raises:
        ClientError: there is no such voice.
    """
    if voice is None:
        return voices[0]
    name = aliases.get(voice, voice)
    if name not in voices:
        raise invalid_value("voice", voice, [*voices, *aliases])
    return name


class ProcessSynthesizer:
    """
    A `Synthesizer` whose voices run in a process of their own.

    Args:
        program: what Python runs in the process: a file, or `-m` and a module.
        paths: the weights, in the order that the program expects.
        aliases: other names for the voices.
        joins_parts: whether the program takes account of `Synthesize.before` and `continues`.
        notice: takes lines for the operator.

    Attributes:
        process: the supervised process.
    """

    def __init__(
        self,
        program: Sequence[str],
        paths: Sequence[Path],
        *,
        voices: Sequence[str],
        rate_hz: int,
        aliases: Mapping[str, str] | None = None,
        joins_parts: bool = False,
        limits: VoiceLimits | None = None,
        notice: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.voices = tuple(voices)
        self.rate_hz = rate_hz
        self.joins_parts = joins_parts
        self.process = VoiceProcess(program, StartVoice(tuple(map(str, paths)), rate_hz), limits, notice)
        self._aliases = aliases or {}

    async def start(self) -> None:
        await self.process.start()

    async def stop(self) -> None:
        await self.process.stop()

    async def synthesize(
        self, text: str, voice: str | None = None, speed: float = 1.0, context: SentenceContext = WHOLE_SENTENCE
    ) -> AsyncGenerator[AudioChunk]:
        name = resolve_voice(self.voices, voice, self._aliases)
        async with aclosing(self.process.synthesize(split_sentences(text), name, speed, context)) as results:
            async for result in results:
                for chunk in _audio_chunks(result):
                    yield chunk


def _audio_chunks(result: SynthesizedAudio) -> Iterator[AudioChunk]:
    offset = 0
    for word in result.words:
        end = offset + word.samples * SAMPLE_BYTES
        yield AudioChunk(result.pcm[offset:end], word.text)
        offset = end
