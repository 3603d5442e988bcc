"""
Full duplex of a scripted engine: every piece of sound is answered in its turn, so that a script tells what comes when
to the piece.

What is said aloud takes as long as it sounds, and a pause as long as it lasts, of the time that the pieces are: a piece
of a second gives the next second of an answer. What is written takes none, and the end comes when all that time has
passed.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import commands, events as engine_events, history
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import TurnDetection
from antiphon.engines.scripted.answers import response_steps
from antiphon.engines.scripted.listening import PlaySteps, ScriptedSpeechInput
from antiphon.engines.scripted.script import Script, ScriptAnswer
from antiphon.engines.scripted.voice import ScriptedRecordings

_FINAL_EVENTS = (engine_events.Usage, engine_events.ResponseEnded, engine_events.ResponseFailed)


_EPSILON_MS = 0.01
"""Less than a sample, and more than what is lost by reckoning."""


class _InputChunk(Struct, frozen=True):
    """
    What came at once.

    Attributes:
        must_listen: whether nothing may be said to it.
        pictures: how many were seen with it.
    """

    audio: commands.AppendAudio
    force_listen: bool
    image_count: int


class _ResponsePlayback(Struct):
    """
    An answer that is being given.

    Attributes:
        steps: its words, and pauses in seconds, that are yet to come; `next` is the first of them.
        owes_ms: how much longer what was said lasts than the time there was.
    """

    id: str
    rate_hz: int
    steps: Iterator[engine_events.EngineEvent | float]
    next_step: engine_events.EngineEvent | float | None = None
    backlog_ms: float = 0.0
    has_begun: bool = False

    def play(self, ms: float) -> Iterator[engine_events.EngineEvent]:
        """What is said in so much time."""
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
    """
    One conversation in full duplex.

    Args:
        recite: where the ears say what nobody reads.
    """

    def __init__(
        self, script: Script, recordings: ScriptedRecordings, settings: commands.StartDuplex, deliver: Deliver, play_steps: PlaySteps
    ) -> None:
        self._script = script
        self._recordings = recordings
        self._settings = settings
        self._deliver = deliver
        self._speech_input = ScriptedSpeechInput(script, self._on_speech_events, play_steps)
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
        self._pending_turn: history.SpeechPart | None = None  # that is over, and was not answered

    # What the client says

    def send(self, command: commands.AppendImage | commands.ForceListen | commands.AppendAudio) -> None:
        """The client's side of it."""
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
        """The client is behind."""
        self._is_paused = True

    def resume(self) -> None:
        """The client has caught up."""
        self._is_paused = False
        self._schedule_next()

    def close(self) -> None:
        """Say nothing more."""
        self._is_closed = True
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
        """Work on the next piece, if nothing else is being worked on."""
        if self._work_handle is None and self._chunks and not self._is_paused and not self._is_closed:
            self._work_handle = self._loop.call_later(self._script.duplex.piece_ms / 1000, self._process_chunk)

    def _process_chunk(self) -> None:
        piece = self._chunks.popleft()
        self._speech_input.send(piece.audio)
        self._work_handle = self._loop.call_soon(self._respond, piece)  # once the ears have found what is in it

    def _on_speech_events(self, events: Sequence[engine_events.EngineEvent]) -> None:
        for word in events:
            if isinstance(word, engine_events.SpeechStarted):
                self._is_user_speaking, self._speech_start_ms = True, word.at_ms
                self._emit(self._interrupt())
            elif isinstance(word, engine_events.SpeechStopped):
                self._is_user_speaking = False
                length = size_bytes(word.at_ms - self._speech_start_ms, self._settings.rate_hz)
                self._pending_turn = history.SpeechPart(bytes(length), self._settings.rate_hz, word.id)

    def _respond(self, chunk: _InputChunk) -> None:
        self._work_handle = None
        self._chunk_count += 1
        self._unreported_images += chunk.image_count
        loss = self._script.duplex.lost
        if loss is not None and self._chunk_count == loss.at:
            self._fail()
            return
        words = self._interrupt() if chunk.force_listen else []
        if not chunk.force_listen:
            self._begin_response()
        saying = self._playback
        if saying is not None:
            words += saying.play(duration_ms(len(chunk.audio.pcm), self._settings.rate_hz))
        if words and isinstance(words[-1], engine_events.ResponseEnded | engine_events.ResponseFailed):
            self._playback = None
        if self._playback is None or not self._playback.has_begun:
            words.append(engine_events.Listening())
        self._emit(words)
        self._schedule_next()

    # Answers

    def _begin_response(self) -> None:
        """Say what the script says is to be said now."""
        unasked = next((said for said in self._script.duplex.says if said.at == self._chunk_count), None)
        if self._playback is not None or self._is_user_speaking or (unasked is None and self._pending_turn is None):
            return
        self._response_count += 1
        part, self._pending_turn = self._pending_turn, None
        said = (history.Message("user", (part,)),) if part is not None else ()
        ask = commands.Respond(id=f"duplex_{self._response_count}", history=said, voice=self._settings.voice)
        answer = ScriptAnswer(lines=unasked.lines) if unasked is not None else None
        rate_hz = ask.voice.rate_hz if ask.voice is not None else self._settings.rate_hz
        steps = response_steps(self._script, self._recordings, ask, self._speech_input.transcripts, answer)
        first = engine_events.EngineMetrics(ask.id, {"vision_slices": self._unreported_images}) if self._unreported_images else None
        self._playback, self._unreported_images = _ResponsePlayback(ask.id, rate_hz, steps, first), 0

    def _interrupt(self) -> list[engine_events.EngineEvent]:
        """Fall silent."""
        saying, self._playback = self._playback, None
        return [engine_events.ResponseEnded(saying.id, "cancelled")] if saying is not None and saying.has_begun else []

    def _fail(self) -> None:
        loss, saying = self._script.duplex.lost, self._playback
        assert loss is not None
        broke = [engine_events.ResponseFailed(id=saying.id, message=loss.message)] if saying is not None and saying.has_begun else []
        self._emit([*broke, engine_events.EngineLost(code=loss.code, message=loss.message)])
        self.close()

    def _emit(self, events: Sequence[engine_events.EngineEvent]) -> None:
        if events and not self._is_closed:
            self._deliver(events)
