"""
A full-duplex conversation with a turn-taking engine: who speaks, who listens, and what is sent when.

The person has priority. Speech during an answer, or while one is made, cuts it short, and so does `ForceListen`; the
part that was not played is not remembered. A finished turn is answered. For every chunk of input during which nothing
is said, `Listening` is delivered, after everything that was said.

The clock is the input audio; of the chunk in which an answer begins, only what came after that. While no audio arrives,
because a microphone is off or the network stalls, the loop's clock counts.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import structs

from antiphon.audio import duration_ms
from antiphon.engine_api import commands, events as engine_events, history as engine_history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import Deliver, EngineOverrun
from antiphon.engine_api.options import TurnDetection, Voice
from antiphon.engines.duplex.echo_canceller import new_echo_canceller
from antiphon.engines.duplex.history import RecentAudio, append_message
from antiphon.engines.duplex.options import parse_options
from antiphon.engines.duplex.playback import PacedAnswer
from antiphon.engines.duplex.vision import Vision

LEAD_MARGIN_MS = 500
"""How much audio is sent ahead beyond one input chunk: chunks arrive late, and the player must not run dry."""

MAX_CHUNK_MS = 1_000
"""The longest input chunk counted; longer ones come from clients that send all they have at once."""

LONGEST_CHUNK_DECAY = 0.1
"""
How fast the longest chunk length decays, per length of each chunk: lengths vary, and a long one may follow short ones.
"""

TICK_S = 0.1
"""How often the loop's clock counts while no audio arrives, and how long before the player runs dry it starts."""

MAX_PENDING_TRANSCRIPTS = 64
"""How many turns back a transcript may still arrive."""

RESPONSE_ID_PREFIX = "duplex_"


class DuplexConversation:
    """
    One conversation.

    Args:
        send: sends a command to the engine; events that come meanwhile are handled on the loop's next iteration.
        deliver: takes events; never called from within a command.
    """

    def __init__(
        self,
        start_command: commands.StartDuplex,
        capabilities: Capabilities,
        vision: Vision,
        send: Callable[[commands.EngineCommand], None],
        deliver: Deliver,
    ) -> None:
        self._start_command = start_command
        self._capabilities = capabilities
        self._options = parse_options(start_command.options, capabilities)
        self._voice = _supported_voice(start_command.voice, capabilities) if not self._options.is_text_only else None
        self._vision = vision
        self._send_inner = send
        self._is_sending = False
        self._deferred_events: list[engine_events.EngineEvent] = []
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._recent_audio = RecentAudio(start_command.rate_hz)
        self._echo_canceller = new_echo_canceller(start_command.rate_hz, self._voice.rate_hz) if self._voice is not None else None
        self._history: tuple[engine_history.HistoryItem, ...] = ()
        self._open_turn_id: str | None = None
        self._turn_times_ms: dict[str, tuple[int, int | None]] = {}  # where turns start and end that may get a transcript
        self._input_transcripts: list[engine_events.EngineEvent] = []
        self._answer: PacedAnswer | None = None
        self._answer_count = 0
        self._image_count = 0
        self._history_before_interruption: tuple[engine_history.HistoryItem, ...] = ()  # when the person began to speak
        self._has_interrupted = False  # whether that cut an answer short
        self._owes_answer = False  # to be given once it need not listen
        self._must_listen_next = False
        self._must_listen = False
        self._pending_chunks: deque[tuple[float, bool]] = deque()  # milliseconds, and whether it must listen
        self._chunk_count = 0
        self._longest_chunk_ms = 0.0
        self._lead_ms = float(LEAD_MARGIN_MS + MAX_CHUNK_MS)
        self._input_ms = 0.0
        self._last_input_at = self._time_counted_at = self._loop.time()
        self._time_counted_until: float | None = None  # up to where the loop's time was counted since the last chunk
        self._room_ms = 0.0  # how much of the next chunks lies after that
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = self._is_closed = False
        self._outbox: list[engine_events.EngineEvent] = []
        self._send(commands.Configure(rate_hz=start_command.rate_hz, turn_detection=_turn_detection(capabilities)))
        self._loop.call_soon(self._deliver_ready)

    # Commands of the client

    def append_image(self, command: commands.AppendImage) -> None:
        if self._start_command.has_video:
            self._vision.append_image(command)
            self.prepare()

    def force_listen(self) -> None:
        """Listen to the next chunk."""
        self._must_listen_next = True

    def append_audio(self, command: commands.AppendAudio) -> None:
        chunk_ms = duration_ms(len(command.pcm), self._start_command.rate_hz)
        self._must_listen = self._must_listen_next or self._chunk_count < self._options.force_listen_count
        self._must_listen_next = False
        self._chunk_count += 1
        self._longest_chunk_ms = max(min(chunk_ms, MAX_CHUNK_MS), self._longest_chunk_ms - LONGEST_CHUNK_DECAY * chunk_ms)
        self._lead_ms = LEAD_MARGIN_MS + self._longest_chunk_ms
        self._input_ms += chunk_ms
        self._last_input_at = self._time_counted_at = self._loop.time()
        if self._time_counted_until is not None:
            self._room_ms = (self._last_input_at - self._time_counted_until) * 1000
        self._stop_timer()
        self._cancel_echo(command)
        if not self._pending_chunks:
            self._loop.call_soon(self._process_chunks)
        self._pending_chunks.append((chunk_ms, self._must_listen))

    def _cancel_echo(self, command: commands.AppendAudio) -> None:
        """Send the audio on without the echo of the answer that is playing."""
        if self._echo_canceller is None:
            self._recent_audio.append(command.pcm)
            self._send(command)
            return
        if pcm := self._echo_canceller.process(command.pcm):
            self._recent_audio.append(pcm)
            self._send(commands.AppendAudio(pcm))
        if self._echo_canceller.was_mistaken and self._open_turn_id is not None:
            self._undo_interruption()

    def pause(self) -> None:
        """Emit nothing until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._catch_up)

    def close(self) -> None:
        """Deliver nothing more."""
        self._is_closed = True
        self._stop_timer()

    # Time

    def _process_chunks(self) -> None:
        """Emit what is due for the chunks that arrived."""
        while self._pending_chunks:
            chunk_ms, must_listen = self._pending_chunks.popleft()
            before = len(self._outbox)
            if must_listen:
                self._interrupt()
            self._advance(self._played_ms(chunk_ms))
            if self._owes_answer and not must_listen and self._open_turn_id is None:
                self._begin_answer()
            if len(self._outbox) == before and not (self._answer is not None and self._answer.has_begun):
                self._outbox.append(engine_events.Listening())
        if self._time_counted_until is not None and self._time_counted_until < self._last_input_at:
            self._time_counted_until = None
        self._flush()

    def _played_ms(self, chunk_ms: float) -> float:
        """How much of an answer can have been played during a chunk."""
        if self._time_counted_until is None:
            return chunk_ms
        ms = min(chunk_ms, self._room_ms)
        self._room_ms -= ms
        return ms

    def _advance(self, ms: float) -> None:
        if self._answer is not None:
            self._answer.advance(ms)
            self._queue_due_events()

    def _catch_up(self) -> None:
        self._queue_due_events()
        self._flush()

    def _start_timer(self) -> None:
        if self._timer is None and self._answer is not None and self._answer.has_pending_events and not self._is_paused:
            dry_at = self._last_input_at + self._lead_ms / 1000
            self._timer = self._loop.call_at(max(dry_at, self._time_counted_at + 2 * TICK_S) - TICK_S, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        passed_s, self._time_counted_at = self._loop.time() - self._time_counted_at, self._loop.time()
        self._time_counted_until = self._time_counted_at
        self._advance(passed_s * 1000)
        self._flush()

    # Events of the engine

    def _send(self, command: commands.EngineCommand) -> None:
        self._is_sending = True
        try:
            self._send_inner(command)
        finally:
            self._is_sending = False

    def receive(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Take events of the engine, at any time."""
        if not self._is_sending and not self._deferred_events:
            self._handle(events)
            return
        # Delivered by a command in whose middle this object is: handled when it is done.
        if not self._deferred_events:
            self._loop.call_soon(self._handle_deferred)
        self._deferred_events += events

    def _handle_deferred(self) -> None:
        events, self._deferred_events = self._deferred_events, []
        if not self._is_closed:
            self._handle(events)

    def _handle(self, events: Sequence[engine_events.EngineEvent]) -> None:
        for event in events:
            match event:
                case engine_events.SpeechStarted(id, at_ms):
                    self._on_speech_started(id, at_ms)
                case engine_events.SpeechStopped(id, at_ms):
                    self._on_speech_stopped(id, at_ms)
                case engine_events.InputTranscriptDone():
                    self._on_input_transcript(event)
                case engine_events.InputTranscriptDelta() | engine_events.InputTranscriptSegment() | engine_events.InputTranscriptFailed():
                    pass  # MiniCPM-o has no event for input transcripts: only a recorder takes the whole of one
                case _:
                    self._on_answer_event(event)
        self._queue_due_events()
        self._flush()

    def _on_answer_event(self, event: engine_events.EngineEvent) -> None:
        answer = self._answer
        if answer is not None and event.id == answer.id:
            if self._image_count and not isinstance(event, engine_events.TerminalEvent):
                answer.append([engine_events.EngineMetrics(answer.id, {"vision_slices": self._image_count})])
                self._image_count = 0
            if not answer.append([event]) and not isinstance(event, engine_events.TerminalEvent):
                self._send(commands.Cancel(answer.id))
        elif not event.id.startswith(RESPONSE_ID_PREFIX):  # else it is an answer that was cut short
            self._outbox.append(event)

    def _on_speech_started(self, turn_id: str, at_ms: int) -> None:
        if self._echo_canceller is not None and self._echo_canceller.is_echo(at_ms):
            self._send(commands.ClearAudio())
            return
        self._open_turn_id = turn_id
        self._turn_times_ms[turn_id] = at_ms, None
        self._recent_audio.start_turn(at_ms)
        self._vision.set_speaking(is_speaking=True)
        before = len(self._outbox)
        self._history_before_interruption, self._has_interrupted = self._history, self._answer is not None
        if self._answer is not None:
            self._answer.advance(sum(self._played_ms(chunk_ms) for chunk_ms, _ in self._pending_chunks))
        self._interrupt()
        if len(self._outbox) > before and self._pending_chunks:
            self._pending_chunks.popleft()  # its `Listening` is in the outbox already
        self.prepare()

    def _on_input_transcript(self, event: engine_events.InputTranscriptDone) -> None:
        start_ms, end_ms = self._turn_times_ms.pop(event.id, (None, None))
        if end_ms is not None:  # else it was only an echo
            self._input_transcripts.append(structs.replace(event, start_ms=start_ms, end_ms=end_ms))

    def _undo_interruption(self) -> None:
        """The speech was only the echo: answer again what it cut short."""
        self._send(commands.ClearAudio())
        self._recent_audio.end_turn(0)
        self._vision.set_speaking(is_speaking=False)
        self._turn_times_ms.pop(self._open_turn_id or "", None)
        self._open_turn_id = None
        self._history, self._owes_answer = self._history_before_interruption, self._owes_answer or self._has_interrupted

    def _on_speech_stopped(self, turn_id: str, at_ms: int) -> None:
        if turn_id != self._open_turn_id:  # it was dropped as an echo
            return
        self._turn_times_ms[turn_id] = self._turn_times_ms.pop(turn_id, (at_ms, None))[0], at_ms
        while len(self._turn_times_ms) > MAX_PENDING_TRANSCRIPTS:
            del self._turn_times_ms[next(iter(self._turn_times_ms))]
        message = self._user_message(turn_id, self._recent_audio.end_turn(at_ms))
        self._image_count = sum(isinstance(part, engine_history.ImagePart) for part in message.parts)
        self._history = append_message(self._history, message)
        self._vision.mark_sent()
        self._vision.set_speaking(is_speaking=False)
        self._open_turn_id = None
        self._owes_answer = True
        if not self._must_listen:
            self._begin_answer()

    def _user_message(self, turn_id: str, pcm: bytes) -> engine_history.Message:
        return engine_history.Message("user", (*self._vision.parts(), engine_history.SpeechPart(pcm, self._start_command.rate_hz, turn_id)))

    # Answers

    def prepare(self) -> None:
        """Send the engine the request to expect when the open turn ends."""
        if self._capabilities.foresees and self._open_turn_id is not None and not self._must_listen:
            self._send(commands.Prepare(self._new_request(append_message(self._history, self._user_message(self._open_turn_id, b"")))))

    def _new_request(self, history: tuple[engine_history.HistoryItem, ...]) -> commands.Respond:
        return commands.Respond(
            id=f"{RESPONSE_ID_PREFIX}{self._answer_count + 1}",
            history=history,
            instructions=self._start_command.instructions,
            sampling=self._options.sampling,
            truncate=self._capabilities.truncation,
            voice=self._voice,
        )

    def _begin_answer(self) -> None:
        request = self._new_request(self._history)
        self._owes_answer = False
        self._answer_count += 1
        self._answer = PacedAnswer(request.id, (self._voice or Voice()).rate_hz)
        try:
            self._send(request)
        except EngineOverrun as error:
            self._answer.append(
                [engine_events.ResponseFailed(id=request.id, message=f"The model is overloaded: {error}.", status=503, retry_after_s=1)]
            )

    def _queue_due_events(self) -> None:
        answer = self._answer
        if answer is None or self._must_listen or self._is_paused:
            return
        had_begun, before = answer.has_begun, len(self._outbox)
        self._outbox += answer.pop_due(self._lead_ms)
        self._track_playback(self._outbox[before:])
        if answer.has_begun and not had_begun:
            self._time_counted_until = self._time_counted_at = self._loop.time()
            self._room_ms = 0.0
        if answer.is_over:
            self._end_answer(answer)
            if len(self._outbox) > before:
                self._outbox.append(engine_events.Listening())

    @property
    def _now_ms(self) -> float:
        """The client's clock now: the audio it has not sent yet is one chunk at most."""
        return self._input_ms + min((self._loop.time() - self._last_input_at) * 1000, MAX_CHUNK_MS)

    def _track_playback(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Show the echo canceller what the client will play."""
        if self._echo_canceller is not None:
            for event in events:
                if isinstance(event, engine_events.AudioDelta):
                    self._echo_canceller.play(event.pcm, self._now_ms)

    def _interrupt(self) -> None:
        """Cut the answer short."""
        answer = self._answer
        if answer is None:
            return
        self._send(commands.Cancel(answer.id))
        self._end_answer(answer)
        if answer.has_begun:
            if self._echo_canceller is not None:
                self._echo_canceller.stop(self._now_ms)
            usage = answer.pending_usage
            self._outbox += (
                *((usage,) if usage is not None else ()),
                engine_events.ResponseEnded(answer.id, "cancelled"),
                engine_events.Listening(),
            )

    def _end_answer(self, answer: PacedAnswer) -> None:
        self._answer = None
        self._image_count = 0
        if (message := answer.message()) is not None:
            self._history = append_message(self._history, message)

    # Delivery

    def _deliver_ready(self) -> None:
        self._outbox.append(engine_events.DuplexStarted(self._ready_metrics()))
        self._flush()

    def _ready_metrics(self) -> dict[str, object]:
        """What the client gets of what it asked for."""
        command, notes = self._start_command, dict[str, object]()
        if command.has_video:
            notes["video"] = self._vision.note
        if command.voice is not None and not self._options.is_text_only and self._voice is None:
            notes["audio"] = "not made"
        if command.reference_audio is not None or (command.voice is not None and command.voice.reference is not None):
            is_used = self._voice is not None and self._voice.reference is not None
            notes["voice_reference"] = "used" if is_used else "not used"
        if self._options.unknown:
            notes["ignored"] = list(self._options.unknown)
        return notes

    def _flush(self) -> None:
        batch, self._outbox, self._input_transcripts = [*self._input_transcripts, *self._outbox], [], []
        if batch and not self._is_closed:
            self._deliver(batch)
        if not self._is_closed:
            self._start_timer()


def _turn_detection(capabilities: Capabilities) -> TurnDetection:
    # `server_vad` takes every pause of 0.6 s for the end of a turn, `semantic_vad` none
    # (docs/reference/full-duplex.md).
    return TurnDetection("semantic_vad" if "semantic_vad" in capabilities.turn_detection else "server_vad")


def _supported_voice(voice: Voice | None, capabilities: Capabilities) -> Voice | None:
    """The voice to answer with, as far as the engine supports it; None for a text answer."""
    if voice is None or not capabilities.audio_out:
        return None
    name = voice.name if not capabilities.voices or voice.name in capabilities.voices else None
    return structs.replace(voice, name=name, reference=voice.reference if capabilities.clones else None)
