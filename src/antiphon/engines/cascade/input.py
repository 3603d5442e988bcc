"""
The speech input of one conversation: audio to turns, and turns to transcripts.

What is found in the audio is delivered on the loop's next iteration. A command that comes before that was sent without
knowledge of it: `commit` and `clear` take back turns that the session has not been told of, so that no audio is in two
turns, or in none.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Protocol, TypeVar

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver
from antiphon.engine_api.options import LOOKBACK_MS, Transcription
from antiphon.engines.cascade.input_audio import ConversationAudio
from antiphon.engines.cascade.parts import SpeechStack
from antiphon.engines.cascade.turn import MAX_TURN_MS, TranscriptTask, UserTurn
from antiphon.errors import ApiError
from antiphon.speech.base import Transcriber, Transcript
from antiphon.speech.turn_detection import endpoint
from antiphon.speech.turn_detection.smart_turn import CONTEXT_S
from antiphon.speech.turn_detection.transcript_end import ends_in_mark, likelihood_limit
from antiphon.speech.turn_detection.vad import FRAME_MS, VadStream

MAX_VAD_BACKLOG_MS = 15 * 60_000
"""The most audio that may wait for voice activity detection; when there is more, all of it is skipped."""

MAX_KNOWN_TURNS = 512
"""How many of the last turns keep their transcript."""

TRANSCRIBED_TAIL_MS = 160
"""How much of the silence after speech is transcribed with it; less cuts off soft endings."""

EARLY_TAIL_MS = 64
"""
How much of it is transcribed for an answer that is begun at once. Of 14 recordings it gave the words of the whole tail
in 14, 32 ms in 13.
"""

EARLY_DEADLINE_MS = 320
"""Silence after which an early transcript that is not ready is given up."""

EARLY_BACKOFF = 8
"""After one was given up, so many pauses have none."""

T = TypeVar("T")


class TurnObserver(Protocol):
    """Learns what a turn seems to say, and that it may be over, before it is."""

    def may_follow(self, turn_id: str) -> bool:
        """Whether the open turn is to be transcribed for `on_hypothesis` alone."""

    def on_hypothesis(self, turn_id: str, text: str) -> None:
        """The text of the open turn so far; it may change."""

    def may_answer_early(self, turn_id: str) -> bool:
        """Whether an answer to the turn would be begun if it paused now."""

    def on_turn_paused(self, turn_id: str, transcript_task: TranscriptTask, *, is_early: bool = False) -> None:
        """
        Nobody speaks any more, though the turn may still be open; `transcript_task` transcribes it so far.

        Args:
            is_early: whether a second transcript follows: then `on_transcript_confirmed` if it has the same words, else
                this again with the second.
        """

    def on_transcript_confirmed(self, turn_id: str) -> None:
        """The second transcript of the pause has the words of the early one."""

    def on_turn_resumed(self, turn_id: str) -> None:
        """The turn goes on, or is dropped: the transcripts of its pause are void."""

    def on_turn_stopped(self, turn_id: str) -> None:
        """`SpeechStopped` was delivered, and the session has handled it."""


class SpeechInput:
    """
    One conversation's speech input.

    Args:
        deliver: takes events; never called from within a command.
        tasks: owns the tasks; it outlives this.
        needs_transcripts: whether turns are transcribed even if the client wants no transcripts.
    """

    def __init__(
        self,
        speech_stack: SpeechStack,
        transcriber: Transcriber,
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
        self._last_turn_end_ms = 0.0  # where the last turn, or cleared audio, ended
        self._vad_stream: VadStream | None = None
        self._vad_stream_start_ms = 0
        self._vad_end_ms = 0.0  # where the audio ends that voice activity detection has seen
        self._endpoint: endpoint.EndpointDetector | None = None
        self._open_turn: UserTurn | None = None
        self._turn_count = 0
        self._has_end_marks = False  # whether the transcriber has set a mark at the end of a sentence
        self._early_backoff = 0  # how many pauses are to have no early transcript
        self._transcripts: dict[str, asyncio.Task[str | ApiError]] = {}
        self._last_transcript: asyncio.Task[str | ApiError] | None = None
        self._pending_events: list[events.EngineEvent] = []
        self._pending_turns: dict[str, UserTurn] = {}  # that began or ended, and the session does not know yet
        self._running_tasks: set[asyncio.Task[object]] = set()
        self._is_closed = False

    @property
    def current_pause(self) -> tuple[str, TranscriptTask, bool] | None:
        """The open turn that may be over, its transcript, and whether that is an early one; None if there is none."""
        turn = self._open_turn
        if turn is None or not turn.is_paused_in_words:
            return None
        if turn.transcript_task is not None:
            return turn.id, turn.transcript_task, False
        assert turn.early_task is not None
        return turn.id, turn.early_task, True

    # Commands

    def configure(self, command: commands.Configure) -> None:
        """Take other settings from here on; switching turn detection off drops an open turn."""
        self._configuration = command
        rest = self._audio.configure(command.rate_hz, command.noise_reduction)
        if self._vad_stream is not None:
            self._vad_stream.set_rate(self._audio.rate_hz)
        self._detect(rest)
        detection = command.turn_detection
        if detection is None or self._speech_stack.vad is None:
            self._abandon(*self._retract_turns())
            self._close_vad_stream()
            self._endpoint = None
        elif self._endpoint is None:
            now_ms = int(self._audio.end_ms)
            self._endpoint = endpoint.EndpointDetector(detection)
            self._endpoint.reset(now_ms)
            self._vad_stream_start_ms = now_ms
            self._vad_end_ms = now_ms
            self._vad_stream = self._speech_stack.vad.open(self._on_vad_frame, self._audio.rate_hz)
        else:
            self._endpoint.configure(detection)

    def append_audio(self, pcm: bytes) -> None:
        self._detect(self._audio.process(pcm))

    def _detect(self, pcm: bytes) -> None:
        if not pcm:
            return
        if self._vad_stream is None:
            self._audio.discard_before(self._audio.end_ms - MAX_TURN_MS)
            return
        self._vad_stream.append_audio(pcm)
        if not self._audio.is_long:
            return
        if self._audio.end_ms - self._vad_end_ms > MAX_VAD_BACKLOG_MS:
            self._vad_stream.drop_frames()
            self._vad_end_ms = self._audio.end_ms
            self._deliver_soon(
                events.EngineError(message="Audio arrived faster than it can be processed; some of it was skipped.", code="audio_too_fast")
            )
        self._audio.discard_before(self._vad_end_ms - LOOKBACK_MS)

    def commit(self, id: str) -> None:
        """All audio since the last turn is one turn: the open one, if there is one."""
        turns = self._retract_turns(delivered_id=id)
        turn = turns[0] if turns else self._new_turn(id, int(max(self._last_turn_end_ms, self._audio.start_ms)))
        self._abandon(*turns)  # their transcripts so far are not of the whole turn
        turn.id = id
        turn.speech_ms = None  # voice activity detection may not have seen the end of it
        self._feed(turn, self._audio.end_ms)
        turn.start_transcript()
        self._schedule_transcript(turn)
        self._reset()

    def clear(self) -> None:
        """Drop all audio since the last turn, and an open turn."""
        self._abandon(*self._retract_turns())
        self._reset()

    def close(self) -> None:
        """Stop all work and deliver nothing more."""
        self._is_closed = True
        self._close_vad_stream()
        for task in tuple(self._running_tasks):
            task.cancel()

    async def transcript_of(self, turn_id: str) -> str | None:
        """
        The transcript of a turn, once it is ready; None for an unknown turn, or one that is no longer kept.

        Raises:
            ApiError: it could not be transcribed.
        """
        task = self._transcripts.get(turn_id)
        if task is None:
            return None
        text = await asyncio.shield(task)
        if isinstance(text, ApiError):
            raise text
        return text

    # Turn detection

    def _on_vad_frame(self, start_ms: int, probability: float) -> None:
        at_ms = self._vad_stream_start_ms + start_ms
        self._vad_end_ms = max(self._vad_end_ms, at_ms + FRAME_MS)
        if self._endpoint is None:
            return
        if endpoint_events := self._endpoint.process_frame(at_ms, probability):
            self._apply_endpoint_events(endpoint_events)
        if (turn := self._open_turn) is not None:
            if self._endpoint.state is endpoint.EndpointState.SPEAKING:
                turn.speech_ms = (turn.speech_ms or 0) + FRAME_MS
            self._feed_detected(turn)

    def _apply_endpoint_events(self, endpoint_events: Sequence[endpoint.EndpointEvent]) -> None:
        for event in endpoint_events:
            match event:
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
        turn.speech_ms = float(endpoint.MIN_SPEECH_MS - FRAME_MS)  # the frame that made it a turn is counted by the caller
        self._pending_turns[turn.id] = turn
        self._deliver_soon(events.SpeechStarted(turn.id, at_ms))

    def _new_turn(self, id: str, start_ms: int) -> UserTurn:
        options = self._configuration.transcription

        def on_partial(text: str) -> None:
            self._deliver_soon(events.InputTranscriptDelta(id, text))

        def on_hypothesis(text: str) -> None:
            self._observer.on_hypothesis(id, text)

        transcriber = self._transcriber if self._needs_transcripts or options is not None else None
        return UserTurn(
            id,
            start_ms,
            transcriber,
            options or Transcription(),
            self._start_task,
            on_partial if options is not None else None,
            on_hypothesis,
        )

    def _feed_detected(self, turn: UserTurn) -> None:
        """
        Append the audio known to be of a turn; transcribe one that has paused as if it were over, as most often it is.
        """
        if turn.paused_ms is None:
            turn.is_followed = not turn.has_partials and self._observer.may_follow(turn.id)
            self._feed(turn, self._vad_end_ms)
            return
        silence_ms = self._vad_end_ms - turn.paused_ms
        if turn.transcript_task is not None:
            if silence_ms >= EARLY_DEADLINE_MS and self._give_up_early_transcript(turn):
                self._early_backoff = EARLY_BACKOFF
        elif silence_ms >= TRANSCRIBED_TAIL_MS:
            self._feed(turn, turn.paused_ms + TRANSCRIBED_TAIL_MS)
            self._transcribe_pause(turn)
        elif silence_ms >= EARLY_TAIL_MS and turn.early_task is None and self._may_transcribe_early(turn):
            self._feed(turn, self._vad_end_ms)
            early_task = turn.start_early_transcript()
            self._heed_words(turn, early_task)
            self._observer.on_turn_paused(turn.id, early_task, is_early=True)

    def _may_transcribe_early(self, turn: UserTurn) -> bool:
        """Whether nobody else waits for the transcriber, and an answer is begun to what it makes."""
        return not self._early_backoff and self._observer.may_answer_early(turn.id) and self._transcriber.is_free

    def _transcribe_pause(self, turn: UserTurn) -> None:
        """Transcribe a turn with its whole tail; what was begun to an early transcript holds if the words are the same."""
        transcript_task = turn.start_transcript()
        self._heed_words(turn, transcript_task)
        self._early_backoff = max(0, self._early_backoff - 1)
        if turn.early_task is None:
            self._observer.on_turn_paused(turn.id, transcript_task)
            return

        def on_compared(is_same: bool) -> None:
            if is_same:
                self._observer.on_transcript_confirmed(turn.id)
            else:
                self._observer.on_turn_paused(turn.id, transcript_task)

        turn.compare(on_compared)

    def _give_up_early_transcript(self, turn: UserTurn) -> bool:
        """Let the whole transcript wait no longer for an early one; returns whether it did."""
        if turn.transcript_task is None or not turn.cancel_early_transcript():
            return False
        self._observer.on_turn_paused(turn.id, turn.transcript_task)
        return True

    def _feed(self, turn: UserTurn, until_ms: float) -> None:
        if until_ms > turn.end_ms and (pcm := self._audio.between(turn.end_ms, until_ms)):
            turn.append_audio(pcm)
            turn.end_ms = until_ms

    def _resume_turn(self) -> None:
        turn = self._open_turn
        if turn is None:
            return
        was_paused = turn.is_paused_in_words
        turn.reopen()
        if was_paused:
            self._observer.on_turn_resumed(turn.id)

    def _stop_turn(self, at_ms: int) -> None:
        turn, self._open_turn = self._open_turn, None
        if turn is None:
            return
        if turn.transcript_task is None and turn.early_task is not None:
            self._feed(turn, at_ms)
            self._transcribe_pause(turn)
        elif turn.transcript_task is None or _has_failed(turn.transcript_task):
            self._feed(turn, at_ms)
            turn.start_transcript()
        self._give_up_early_transcript(turn)
        turn.end_ms = at_ms
        self._last_turn_end_ms = at_ms
        self._pending_turns[turn.id] = turn
        self._schedule_transcript(turn)
        self._deliver_soon(events.SpeechStopped(turn.id, at_ms))

    async def _judge_completeness(self, paused_at_ms: int) -> None:
        """Let Smart Turn judge how complete the paused turn sounds."""
        turn, likelihood, until_ms = self._open_turn, None, self._vad_end_ms
        if turn is not None and self._speech_stack.smart_turn is not None:
            start_ms = max(turn.start_ms, until_ms - CONTEXT_S * 1000)
            likelihood = await self._speech_stack.smart_turn.likelihood(self._audio.between(start_ms, until_ms))
        if self._endpoint is not None and not self._is_closed:
            self._apply_endpoint_events(self._endpoint.judge(paused_at_ms, likelihood))

    def _heed_words(self, turn: UserTurn, transcript_task: TranscriptTask) -> None:
        """Wait longer for the end of a turn whose transcript says that it goes on; only `semantic_vad` does."""
        detection, paused_at_ms = self._configuration.turn_detection, turn.paused_ms
        if detection is None or detection.kind != "semantic_vad" or paused_at_ms is None:
            return

        def on_transcript(task: TranscriptTask) -> None:
            transcript = task.result() if not task.cancelled() and task.exception() is None else None
            if not isinstance(transcript, Transcript) or self._endpoint is None or self._open_turn is not turn or self._is_closed:
                return
            self._has_end_marks |= ends_in_mark(transcript.text)
            limit = likelihood_limit(transcript.text, transcript.language, has_end_marks=self._has_end_marks)
            self._apply_endpoint_events(self._endpoint.limit(paused_at_ms, limit))

        transcript_task.add_done_callback(on_transcript)

    # Transcripts

    def _schedule_transcript(self, turn: UserTurn) -> None:
        """Deliver the transcript of a finished turn once it is ready, and after those of the turns before it."""
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
            for event in _final_transcript_events(turn, transcript, has_times=self._transcriber.has_times):
                self._deliver_soon(event)
        elif turn.is_transcribed and isinstance(transcript, Transcript) and transcript.text:
            self._deliver_soon(_transcript_done(turn, transcript))  # for a recorder; it was made for the answer
        return transcript if isinstance(transcript, ApiError) else transcript.text

    # Turns that are taken back

    def _retract_turns(self, delivered_id: str = "") -> tuple[UserTurn, ...]:
        """
        Close the open turn, and take back turns that the session does not know of.

        Args:
            delivered_id: the turn whose partial transcripts are still delivered.

        Returns:
            These turns, in order.
        """
        turns, self._pending_turns = self._pending_turns, {}
        if self._open_turn is not None:
            turns[self._open_turn.id] = self._open_turn
            self._open_turn = None
        self._pending_events = [
            event
            for event in self._pending_events
            if event.id not in turns or (event.id == delivered_id and isinstance(event, events.InputTranscriptDelta))
        ]
        for id in turns:
            if id in self._transcripts:
                self._transcripts.pop(id).cancel()
        return tuple(turns.values())

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

    # Delivery and tasks

    def _deliver_soon(self, event: events.EngineEvent) -> None:
        if not self._pending_events:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending_events.append(event)

    def _flush(self) -> None:
        batch, self._pending_events = self._pending_events, []
        self._pending_turns.clear()
        if not batch or self._is_closed:
            return
        self._deliver(batch)
        for event in batch:
            if isinstance(event, events.SpeechStopped):
                self._observer.on_turn_stopped(event.id)

    def _start_task(self, coroutine: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = self._tasks.create_task(coroutine)
        self._running_tasks.add(task)
        task.add_done_callback(self._running_tasks.discard)
        return task


def _has_failed(transcript_task: TranscriptTask) -> bool:
    return transcript_task.done() and not transcript_task.cancelled() and isinstance(transcript_task.result(), ApiError)


def _final_transcript_events(turn: UserTurn, transcript: Transcript | ApiError, *, has_times: bool) -> Sequence[events.EngineEvent]:
    """The last events of a turn's transcript."""
    if isinstance(transcript, ApiError):
        return [events.InputTranscriptFailed(id=turn.id, message=transcript.message, code=transcript.code, type=transcript.type)]
    batch: list[events.EngineEvent] = []
    if rest := turn.remaining_text(transcript):
        batch.append(events.InputTranscriptDelta(turn.id, rest))
    if has_times:
        for part in transcript.segments:
            batch.append(
                events.InputTranscriptSegment(id=turn.id, text=part.text, start_s=round(part.start_s, 3), end_s=round(part.end_s, 3))
            )
    return [*batch, _transcript_done(turn, transcript)]


def _transcript_done(turn: UserTurn, transcript: Transcript) -> events.InputTranscriptDone:
    languages = (transcript.language,) if transcript.language else ()
    return events.InputTranscriptDone(id=turn.id, transcript=transcript.text, seconds=round(turn.duration_s, 3), languages=languages)
