"""
What a cascade hears of one conversation: a client's sound as turns, and turns as words.

What is found in the sound is told a moment later, as some of it is found while the session is in the middle of saying something. What the
session says in that moment, it says without knowing: turns that were found and not told are then taken back.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import Transcription
from antiphon.engines.cascade.input_audio import ConversationAudio
from antiphon.engines.cascade.parts import SpeechStack
from antiphon.engines.cascade.turn import MAX_TURN_MS, TranscriptTask, UserTurn
from antiphon.errors import ApiError
from antiphon.speech.base import Ear, Transcript
from antiphon.speech.turn_detection import endpoint
from antiphon.speech.turn_detection.smart_turn import CONTEXT_S
from antiphon.speech.turn_detection.vad import FRAME_MS, VadStream

LOOKBACK_MS = 4_000
"""How much sound is kept while nobody speaks: a turn is told a little after it began, and begins with its padding."""

MAX_VAD_BACKLOG_MS = 15 * 60_000
"""The most sound in which it waits to be found where someone speaks; of more, nothing is found."""

MAX_KNOWN_TURNS = 512
"""How many turns back the words are known."""

TRANSCRIBED_TAIL_MS = 160
"""How much of the silence after speech is transcribed with it; less cuts off soft endings."""


class _NullTranscriber:
    """An ear that hears nothing, for turns that nobody reads."""

    languages: tuple[str, ...] = ()
    takes_prompt = False
    has_times = False

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to let go of."""

    def check_options(self, options: Transcription) -> None:
        """Nothing is wished of it."""

    async def transcribe(self, pcm: bytes, options: Transcription) -> Transcript:
        """Nothing."""
        return Transcript(text="")


NULL_TRANSCRIBER = _NullTranscriber()


class TurnObserver(Protocol):
    """Who wants to know that a turn may be over before it is."""

    def on_turn_paused(self, turn_id: str, transcript_task: TranscriptTask) -> None:
        """Nobody speaks any more, though the turn is still open; `words` are being made of it."""

    def on_turn_resumed(self, turn_id: str) -> None:
        """The turn goes on: what was made of it so far is not all."""

    def on_turn_stopped(self, turn_id: str) -> None:
        """The session was told that the turn is over, and has done about it what it does at once."""


class SpeechInput:
    """
    One conversation's ears.

    Args:
        deliver: takes words; never called from within what a client's word calls here.
        tasks: owns the work; it outlives this.
        is_read: whether the words of turns are needed also where the client doesn't want them.
    """

    def __init__(
        self,
        speech_stack: SpeechStack,
        transcriber: Ear,
        deliver: Deliver,
        observer: TurnObserver,
        tasks: asyncio.TaskGroup,
        *,
        needs_transcripts: bool = True,
    ) -> None:
        self._speech_stack = speech_stack
        self._transcriber = transcriber
        self._deliver = deliver
        self._observer = observer
        self._tasks = tasks
        self._needs_transcripts = needs_transcripts
        self._configuration = commands.Configure()
        self._audio = ConversationAudio()
        self._last_turn_end_ms = 0.0  # where the last turn, or what was forgotten, ended
        self._vad_stream: VadStream | None = None
        self._vad_stream_start_ms = 0
        self._vad_end_ms = 0.0  # up to there it is known whether someone spoke
        self._endpoint: endpoint.EndpointDetector | None = None
        self._open_turn: UserTurn | None = None
        self._turn_count = 0
        self._transcripts: dict[str, asyncio.Task[str | ApiError]] = {}
        self._last_transcript: asyncio.Task[str | ApiError] | None = None
        self._pending_events: list[events.EngineEvent] = []
        self._pending_turns: dict[str, UserTurn] = {}  # turns that began or ended, and the session was not told
        self._running_tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def current_pause(self) -> tuple[str, TranscriptTask] | None:
        """The turn that may be over, and its words; None where there is none."""
        turn = self._open_turn
        return (turn.id, turn.transcript_task) if turn is not None and turn.transcript_task is not None else None

    # What the session says

    def configure(self, command: commands.Configure) -> None:
        """Hear otherwise from here on; without turn detection a turn that is open is none."""
        self._configuration = command
        self._detect(self._audio.configure(command.rate_hz, command.noise_reduction))
        wanted = command.turn_detection
        if wanted is None or self._speech_stack.vad is None:
            self._abandon(*self._retract_turns())
            self._close_vad_stream()
            self._endpoint = None
        elif self._endpoint is None:
            now_ms = int(self._audio.end_ms)
            self._endpoint = endpoint.EndpointDetector(wanted)
            self._endpoint.reset(now_ms)
            self._vad_stream_start_ms = now_ms
            self._vad_end_ms = now_ms
            self._vad_stream = self._speech_stack.vad.open(self._on_vad_frame)
        else:
            self._endpoint.configure(wanted)

    def append_audio(self, pcm: bytes) -> None:
        """The sound goes on."""
        self._detect(self._audio.process(pcm))

    def _detect(self, pcm: bytes) -> None:
        if not pcm:
            return
        if self._vad_stream is None:
            self._audio.discard_before(self._audio.end_ms - MAX_TURN_MS)
            return
        self._vad_stream.append_audio(pcm)
        if self._audio.end_ms - self._vad_end_ms > MAX_VAD_BACKLOG_MS:
            self._vad_stream.drop_frames()
            self._vad_end_ms = self._audio.end_ms
            self._deliver_soon(
                events.EngineError(message="More sound came than can be listened to; some of it was passed over.", code="audio_too_fast")
            )
        self._audio.discard_before(self._vad_end_ms - LOOKBACK_MS)

    def commit(self, id: str) -> None:
        """What was heard since the last turn is one, the one that is open where one is."""
        found = self._retract_turns(kept_transcript_id=id)
        turn = found[0] if found else self._new_turn(id, int(max(self._last_turn_end_ms, self._audio.start_ms)))
        self._abandon(*found)  # what was made of them so far is not all
        turn.id = id
        turn.speech_ms = None  # nobody may have looked at the end of it
        self._feed(turn, self._audio.end_ms)
        turn.start_transcript()
        self._schedule_transcript(turn)
        self._reset()

    def clear(self) -> None:
        """What was heard since the last turn is nothing."""
        self._abandon(*self._retract_turns())
        self._reset()

    def close(self) -> None:
        """Hear no more, and tell no more."""
        self._is_closed = True
        self._close_vad_stream()
        for task in tuple(self._running_tasks):
            task.cancel()

    async def transcript_of(self, turn_id: str) -> str | None:
        """
        What was said in a turn, as soon as that is known; None for one that is not known, or of long ago.

        Raises:
            ApiError: nobody could make it out.
        """
        task = self._transcripts.get(turn_id)
        if task is None:
            return None
        words = await asyncio.shield(task)
        if isinstance(words, ApiError):
            raise words
        return words

    # What the sound tells

    def _on_vad_frame(self, start_ms: int, probability: float) -> None:
        at_ms = self._vad_stream_start_ms + start_ms
        self._vad_end_ms = max(self._vad_end_ms, at_ms + FRAME_MS)
        if self._endpoint is None:
            return
        self._apply_endpoint_events(self._endpoint.process_frame(at_ms, probability))
        if (turn := self._open_turn) is not None:
            if self._endpoint.state is endpoint.EndpointState.SPEAKING:
                turn.speech_ms = (turn.speech_ms or 0) + FRAME_MS
            self._feed_detected(turn)

    def _apply_endpoint_events(self, endpoint_events: Sequence[endpoint.EndpointEvent]) -> None:
        for happening in endpoint_events:
            match happening:
                case endpoint.TurnStarted(at_ms):
                    self._start_turn(at_ms)
                case endpoint.TurnPaused(at_ms):
                    if self._open_turn is not None:
                        self._open_turn.paused_ms = at_ms
                case endpoint.TurnCheckRequested(at_ms):
                    self._start_task(self._judge_completeness(at_ms))
                case endpoint.TurnResumed():
                    self._resume_turn()
                case endpoint.TurnEnded(at_ms):
                    self._stop_turn(at_ms)

    def _start_turn(self, at_ms: int) -> None:
        self._turn_count += 1
        turn = self._open_turn = self._new_turn(f"turn_{self._turn_count}", at_ms)
        turn.speech_ms = float(endpoint.MIN_SPEECH_MS - FRAME_MS)  # the frame that makes it a turn is yet to be counted
        self._pending_turns[turn.id] = turn
        self._deliver_soon(events.SpeechStarted(turn.id, at_ms))

    def _new_turn(self, id: str, start_ms: int) -> UserTurn:
        wish = self._configuration.transcription

        def tell(words: str) -> None:
            self._deliver_soon(events.InputTranscriptDelta(id, words))

        ear = self._transcriber if self._needs_transcripts or wish is not None else NULL_TRANSCRIBER
        return UserTurn(id, start_ms, ear, wish or Transcription(), self._start_task, tell if wish is not None else None)

    def _feed_detected(self, turn: UserTurn) -> None:
        """Let a turn hear what is known to be of it; make words of one that has paused, as if it were over: most often it is."""
        if turn.paused_ms is None:
            self._feed(turn, self._vad_end_ms)
        elif turn.transcript_task is None and self._vad_end_ms >= turn.paused_ms + TRANSCRIBED_TAIL_MS:
            self._feed(turn, turn.paused_ms + TRANSCRIBED_TAIL_MS)
            self._observer.on_turn_paused(turn.id, turn.start_transcript())

    def _feed(self, turn: UserTurn, until_ms: float) -> None:
        if until_ms > turn.end_ms and (pcm := self._audio.between(turn.end_ms, until_ms)):
            turn.append_audio(pcm)
            turn.end_ms = until_ms

    def _resume_turn(self) -> None:
        turn = self._open_turn
        if turn is None:
            return
        was_written = turn.transcript_task is not None
        turn.reopen()
        if was_written:
            self._observer.on_turn_resumed(turn.id)

    def _stop_turn(self, at_ms: int) -> None:
        turn, self._open_turn = self._open_turn, None
        if turn is None:
            return
        if turn.transcript_task is None or _has_failed(turn.transcript_task):
            self._feed(turn, at_ms)
            turn.start_transcript()
        turn.end_ms = at_ms
        self._last_turn_end_ms = at_ms
        self._pending_turns[turn.id] = turn
        self._schedule_transcript(turn)
        self._deliver_soon(events.SpeechStopped(turn.id, at_ms))

    async def _judge_completeness(self, paused_at_ms: int) -> None:
        """Ask how complete the turn sounds that pauses there."""
        turn, likelihood, until_ms = self._open_turn, None, self._vad_end_ms
        if turn is not None and self._speech_stack.smart_turn is not None:
            start_ms = max(turn.start_ms, until_ms - CONTEXT_S * 1000)
            likelihood = await self._speech_stack.smart_turn.likelihood(self._audio.between(start_ms, until_ms))
        if self._endpoint is not None and not self._is_closed:
            self._apply_endpoint_events(self._endpoint.judge(paused_at_ms, likelihood))

    # Words of a turn

    def _schedule_transcript(self, turn: UserTurn) -> None:
        """Tell the words of a turn that is over, when they are there and those of the turns before it have been told."""
        assert turn.transcript_task is not None
        self._transcripts[turn.id] = self._last_transcript = self._start_task(
            self._deliver_transcript(turn, turn.transcript_task, self._last_transcript)
        )
        while len(self._transcripts) > MAX_KNOWN_TURNS:
            del self._transcripts[next(iter(self._transcripts))]

    async def _deliver_transcript(
        self, turn: UserTurn, transcript_task: TranscriptTask, previous: "asyncio.Task[str | ApiError] | None"
    ) -> str | ApiError:
        transcript = await transcript_task
        if previous is not None:
            await asyncio.wait([previous])
        if self._configuration.transcription is not None:
            for word in _final_transcript_events(turn, transcript, has_times=self._transcriber.has_times):
                self._deliver_soon(word)
        return transcript if isinstance(transcript, ApiError) else transcript.text

    # What is taken back

    def _retract_turns(self, kept_transcript_id: str = "") -> tuple[UserTurn, ...]:
        """
        Let no turn be open, nor any have been found that the session was not told of.

        Args:
            but: what is told of that turn's words holds.

        Returns:
            Those turns, in order.
        """
        found, self._pending_turns = self._pending_turns, {}
        if self._open_turn is not None:
            found[self._open_turn.id] = self._open_turn
            self._open_turn = None
        self._pending_events = [
            word
            for word in self._pending_events
            if word.id not in found or (word.id == kept_transcript_id and isinstance(word, events.InputTranscriptDelta))
        ]
        for id in found:
            if id in self._transcripts:
                self._transcripts.pop(id).cancel()
        return tuple(found.values())

    def _abandon(self, *turns: UserTurn) -> None:
        for turn in turns:
            turn.reopen()
            self._observer.on_turn_resumed(turn.id)

    def _reset(self) -> None:
        now_ms = self._audio.end_ms
        self._audio.clear()
        self._last_turn_end_ms = now_ms
        if self._vad_stream is not None:
            self._vad_stream.drop_frames()
            self._vad_end_ms = now_ms
        if self._endpoint is not None:
            self._endpoint.reset(int(now_ms))

    def _close_vad_stream(self) -> None:
        if self._vad_stream is not None:
            self._vad_stream.close()
            self._vad_stream = None

    # How it is told, and done

    def _deliver_soon(self, event: events.EngineEvent) -> None:
        if not self._pending_events:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending_events.append(event)

    def _flush(self) -> None:
        words, self._pending_events = self._pending_events, []
        self._pending_turns.clear()
        if not words or self._is_closed:
            return
        self._deliver(words)
        for word in words:
            if isinstance(word, events.SpeechStopped):
                self._observer.on_turn_stopped(word.id)

    def _start_task(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self._tasks.create_task(coroutine)
        self._running_tasks.add(task)
        task.add_done_callback(self._running_tasks.discard)
        return task


def _has_failed(transcript_task: TranscriptTask) -> bool:
    return transcript_task.done() and not transcript_task.cancelled() and isinstance(transcript_task.result(), ApiError)


def _final_transcript_events(turn: UserTurn, transcript: Transcript | ApiError, *, has_times: bool) -> Sequence[events.EngineEvent]:
    """What is told of a turn's words at its end."""
    if isinstance(transcript, ApiError):
        return [events.InputTranscriptFailed(id=turn.id, message=transcript.message, code=transcript.code, type=transcript.type)]
    told: list[events.EngineEvent] = []
    if rest := turn.remaining_text(transcript):
        told.append(events.InputTranscriptDelta(turn.id, rest))
    if has_times:
        for part in transcript.segments:
            told.append(
                events.InputTranscriptSegment(id=turn.id, text=part.text, start_s=round(part.start_s, 3), end_s=round(part.end_s, 3))
            )
    languages = (transcript.language,) if transcript.language else ()
    return [
        *told,
        events.InputTranscriptDone(id=turn.id, transcript=transcript.text, seconds=round(turn.duration_s, 3), languages=languages),
    ]
