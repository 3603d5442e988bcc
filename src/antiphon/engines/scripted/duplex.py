"""
Full duplex of a scripted engine: every chunk of input gets its part of the answer, so a script determines the output
chunk by chunk.

Spoken output takes as long as it sounds, and a pause as long as it lasts, of the time of the input: a chunk of a
second gets the next second of an answer. Text takes no time, and the end comes when all that time has passed.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import commands, events as engine_events, history
from antiphon.engine_api.engine import Deliver, deliver_nowhere
from antiphon.engine_api.options import TurnDetection
from antiphon.engines.scripted.answers import response_steps
from antiphon.engines.scripted.listening import ScriptedSpeechInput
from antiphon.engines.scripted.script import Script, ScriptAnswer
from antiphon.engines.scripted.voice import ScriptedRecordings

_FINAL_EVENTS = (engine_events.Usage, engine_events.ResponseEnded, engine_events.ResponseFailed)


_EPSILON_MS = 0.01
"""Less than a sample, and more than rounding errors."""


class _InputChunk(Struct, frozen=True):
    """
    A chunk of input.

    Attributes:
        force_listen: whether to say nothing to it.
        image_count: how many images came with it.
    """

    audio: commands.AppendAudio
    force_listen: bool
    image_count: int


class _ResponsePlayback(Struct):
    """
    An answer under way.

    Attributes:
        steps: its remaining events, and pauses in seconds, after `next_step`.
        backlog_ms: how much longer its output lasts than the input so far.
    """

    id: str
    rate_hz: int
    steps: Iterator[engine_events.EngineEvent | float]
    next_step: engine_events.EngineEvent | float | None = None
    backlog_ms: float = 0.0
    has_begun: bool = False

    def play(self, ms: float) -> Iterator[engine_events.EngineEvent]:
        """The events that are due while so many milliseconds of input pass."""
        self.backlog_ms -= ms
        self.next_step = next(self.steps) if self.next_step is None else self.next_step
        while self.next_step is not None and self._can_play(self.next_step):
            step, self.next_step = self.next_step, next(self.steps, None)
            if isinstance(step, float):
                self.backlog_ms += step * 1000
                continue
            if isinstance(step, engine_events.AudioDelta):
                self.backlog_ms += duration_ms(len(step.pcm), self.rate_hz)
            self.has_begun = True
            yield step

    def _can_play(self, step: engine_events.EngineEvent | float) -> bool:
        return self.backlog_ms < -_EPSILON_MS or (self.backlog_ms <= _EPSILON_MS and isinstance(step, _FINAL_EVENTS))


class ScriptedDuplex:
    """One conversation in full duplex."""

    def __init__(self, script: Script, recordings: ScriptedRecordings, settings: commands.StartDuplex, deliver: Deliver) -> None:
        self._script = script
        self._recordings = recordings
        self._settings = settings
        self._deliver = deliver
        self._speech_input = ScriptedSpeechInput(script, self._on_speech_events, self._on_transcript)
        self._speech_input.send(commands.Configure(rate_hz=settings.rate_hz, turn_detection=TurnDetection()))
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[_InputChunk] = deque()
        self._work_handle: asyncio.Handle | None = self._loop.call_later(script.duplex.ready_ms / 1000, self._on_ready)
        self._is_paused = self._is_closed = False
        self._force_listen = False
        self._image_count = self._unreported_images = 0
        self._chunk_count = 0
        self._playback: _ResponsePlayback | None = None
        self._response_count = 0
        self._is_user_speaking = False
        self._speech_start_ms = 0
        self._input_transcripts: dict[str, engine_events.InputTranscriptDone] = {}  # of turns whose end is not delivered yet
        self._pending_turn: history.SpeechPart | None = None  # that is over and unanswered

    # Commands of the client

    def send(self, command: commands.AppendImage | commands.ForceListen | commands.AppendAudio) -> None:
        match command:
            case commands.AppendImage():
                self._image_count += 1
            case commands.ForceListen():
                self._force_listen = True
            case commands.AppendAudio():
                self._chunks.append(_InputChunk(command, self._force_listen, self._image_count))
                self._force_listen, self._image_count = False, 0
                self._schedule_next()

    def pause(self) -> None:
        """Emit nothing until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._schedule_next()

    def close(self) -> None:
        """Deliver nothing more."""
        self._is_closed = True
        self._deliver = deliver_nowhere  # its owner refers to this
        self._speech_input.close()
        if self._work_handle is not None:
            self._work_handle.cancel()

    # Work

    def _on_ready(self) -> None:
        self._work_handle = None
        loss = self._script.duplex.lost
        if loss is not None and loss.at == 0:
            self._fail()
            return
        self._emit([engine_events.DuplexStarted(self._script.duplex.metrics)])
        self._schedule_next()

    def _schedule_next(self) -> None:
        """Work on the next chunk, unless another is under way."""
        if self._work_handle is None and self._chunks and not self._is_paused and not self._is_closed:
            self._work_handle = self._loop.call_later(self._script.duplex.piece_ms / 1000, self._process_chunk)

    def _process_chunk(self) -> None:
        chunk = self._chunks.popleft()
        self._speech_input.send(chunk.audio)
        self._work_handle = self._loop.call_soon(self._respond, chunk)  # after the speech input has found the turns in it

    def _on_transcript(self, steps: Iterable[engine_events.EngineEvent | float]) -> None:
        self._input_transcripts.update((step.id, step) for step in steps if isinstance(step, engine_events.InputTranscriptDone))

    def _on_speech_events(self, events: Sequence[engine_events.EngineEvent]) -> None:
        for event in events:
            if isinstance(event, engine_events.SpeechStarted):
                self._is_user_speaking, self._speech_start_ms = True, event.at_ms
                self._emit(self._interrupt())
            elif isinstance(event, engine_events.SpeechStopped):
                self._is_user_speaking = False
                length = size_bytes(event.at_ms - self._speech_start_ms, self._settings.rate_hz)
                self._pending_turn = history.SpeechPart(bytes(length), self._settings.rate_hz, event.id)
                if (transcript := self._input_transcripts.pop(event.id, None)) is not None:
                    self._emit([structs.replace(transcript, start_ms=self._speech_start_ms, end_ms=event.at_ms)])

    def _respond(self, chunk: _InputChunk) -> None:
        self._work_handle = None
        self._chunk_count += 1
        self._unreported_images += chunk.image_count
        loss = self._script.duplex.lost
        if loss is not None and self._chunk_count == loss.at:
            self._fail()
            return
        batch = self._interrupt() if chunk.force_listen else []
        if not chunk.force_listen:
            self._begin_response()
        if self._playback is not None:
            batch += self._playback.play(duration_ms(len(chunk.audio.pcm), self._settings.rate_hz))
        if batch and isinstance(batch[-1], engine_events.TerminalEvent):
            self._playback = None
        if self._playback is None or not self._playback.has_begun:
            batch.append(engine_events.Listening())
        self._emit(batch)
        self._schedule_next()

    # Answers

    def _begin_response(self) -> None:
        """Begin the answer that the script has for this chunk, or for a finished turn."""
        if self._playback is not None or self._is_user_speaking:
            return
        utterance = next((utterance for utterance in self._script.duplex.says if utterance.at == self._chunk_count), None)
        if utterance is None and self._pending_turn is None:
            return
        self._response_count += 1
        part, self._pending_turn = self._pending_turn, None
        items = (history.Message("user", (part,)),) if part is not None else ()
        request = commands.Respond(id=f"duplex_{self._response_count}", history=items, voice=self._settings.voice)
        answer = ScriptAnswer(lines=utterance.lines) if utterance is not None else None
        rate_hz = request.voice.rate_hz if request.voice is not None else self._settings.rate_hz
        steps = response_steps(self._script, self._recordings, request, self._speech_input.transcripts, answer)
        first = engine_events.EngineMetrics(request.id, {"vision_slices": self._unreported_images}) if self._unreported_images else None
        self._playback, self._unreported_images = _ResponsePlayback(request.id, rate_hz, steps, first), 0

    def _interrupt(self) -> list[engine_events.EngineEvent]:
        """Cut the answer short."""
        playback, self._playback = self._playback, None
        return [engine_events.ResponseEnded(playback.id, "cancelled")] if playback is not None and playback.has_begun else []

    def _fail(self) -> None:
        loss, playback = self._script.duplex.lost, self._playback
        assert loss is not None
        has_begun = playback is not None and playback.has_begun
        failures = [engine_events.ResponseFailed(id=playback.id, message=loss.message)] if playback is not None and has_begun else []
        self._emit([*failures, engine_events.EngineLost(code=loss.code, message=loss.message)])
        self.close()

    def _emit(self, events: Sequence[engine_events.EngineEvent]) -> None:
        if events and not self._is_closed:
            self._deliver(events)
