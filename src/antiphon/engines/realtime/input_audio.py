"""
The user's turns upstream: under our ids, with times on the conversation's clock, and with their transcripts.

The law: a turn that started stops, unless it is dropped; with transcription on, a turn that is over gets exactly one
`InputTranscriptDone` or `InputTranscriptFailed`, also when its connection is lost.
"""

from collections import deque
from collections.abc import Callable

from msgspec import UNSET, Struct

from antiphon.engine_api import events
from antiphon.engines.realtime.items import live_turn_fingerprint
from antiphon.engines.realtime.mirror import Mirror, MirroredItem
from antiphon.wire.codec.types import Opt, Unknown
from antiphon.wire.realtime.client_events import ClientEvent
from antiphon.wire.realtime.server_events import (
    DurationUsage,
    InputAudioBufferCommitted,
    InputAudioBufferSpeechStarted,
    InputAudioBufferSpeechStopped,
    InputAudioTranscriptionCompleted,
    InputAudioTranscriptionDelta,
    InputAudioTranscriptionFailed,
    InputAudioTranscriptionSegment,
    Logprob,
    ServerEvent,
    TokensUsage,
)

CONNECTION_LOST_MESSAGE = "The connection to the model server was lost before the turn was transcribed."


class _PendingCommit(Struct, frozen=True):
    """A turn that the client committed, until the server names its item."""

    event_id: str
    turn_id: str
    mirrored_item: MirroredItem


class InputAudioTracker:
    """
    The turns of one connection.

    Args:
        mirror: takes the items that turns become.
        new_id: makes the id of a turn.
        start_ms: where the connection's clock begins on the conversation's clock.

    Attributes:
        has_transcription: whether turns are transcribed.
    """

    def __init__(self, mirror: Mirror, new_id: Callable[[], str], start_ms: float) -> None:
        self.has_transcription = False
        self._mirror = mirror
        self._new_id = new_id
        self._start_ms = start_ms
        self._turn_ids: dict[str, str] = {}
        self._pending_transcripts: dict[str, None] = {}
        self._pending_commits: deque[_PendingCommit] = deque()
        self._open_item_id = ""

    def commit(self, turn_id: str, event_id: str) -> None:
        """The client committed the audio so far as this turn."""
        if self._open_item_id:
            item_id, self._open_item_id = self._open_item_id, ""
            self._commit_turn(item_id, turn_id)
            return
        self._pending_commits.append(_PendingCommit(event_id, turn_id, self._mirror.expect(live_turn_fingerprint(turn_id))))
        self._expect_transcript(turn_id)

    def discard_open_turn(self) -> None:
        """Forget the open turn, if there is one."""
        self._turn_ids.pop(self._open_item_id, None)
        self._open_item_id = ""

    def fail_commit(self, event_id: str) -> list[events.EngineEvent] | None:
        """The server refused the event with this id; None if that was not a commit."""
        commit = next((commit for commit in self._pending_commits if commit.event_id == event_id), None)
        if commit is None:
            return None
        self._pending_commits.remove(commit)
        self._mirror.remove(commit.mirrored_item)
        return self._fail_transcript(commit.turn_id, "The model server refused the audio of the turn.")

    def close(self, now_ms: float) -> list[events.EngineEvent]:
        """The connection is lost: end the open turn and fail the pending transcripts."""
        batch: list[events.EngineEvent] = []
        if self._open_item_id:
            turn_id = self._turn_ids[self._open_item_id]
            batch.append(events.SpeechStopped(turn_id, int(now_ms)))
            self._expect_transcript(turn_id)
        for turn_id in tuple(self._pending_transcripts):
            batch += self._fail_transcript(turn_id, CONNECTION_LOST_MESSAGE)
        return batch

    # Server events

    def on_speech_started(self, event: InputAudioBufferSpeechStarted, out: list[events.EngineEvent]) -> None:
        if self._open_item_id or event.item_id in self._turn_ids:
            return
        self._open_item_id = event.item_id
        turn_id = self._turn_ids[event.item_id] = self._new_id()
        out.append(events.SpeechStarted(turn_id, self._to_conversation_ms(event.audio_start_ms)))

    def on_speech_stopped(self, event: InputAudioBufferSpeechStopped, out: list[events.EngineEvent]) -> None:
        if self._open_item_id:
            self._end_turn(event.item_id, self._to_conversation_ms(event.audio_end_ms), out)

    def on_committed(self, event: InputAudioBufferCommitted, now_ms: float, out: list[events.EngineEvent]) -> list[ClientEvent]:
        """The audio so far became an item; returns what to send."""
        if self._open_item_id == event.item_id:  # a server that sends no `speech_stopped` before
            self._end_turn(event.item_id, int(now_ms), out)
        elif event.item_id not in self._turn_ids and self._pending_commits:
            # The server answers commits in their order.
            commit = self._pending_commits.popleft()
            self._turn_ids[event.item_id] = commit.turn_id
            return self._mirror.assign_id(commit.mirrored_item, event.item_id)
        elif event.item_id not in self._turn_ids:
            self._mirror.register(event.item_id)
        return []

    def on_transcript(self, event: ServerEvent | Unknown, out: list[events.EngineEvent]) -> None:
        turn_id = self._turn_ids.get(getattr(event, "item_id", ""))
        if turn_id is None:
            return
        match event:
            case InputAudioTranscriptionDelta(delta=delta, logprobs=logprobs):
                out.append(events.InputTranscriptDelta(turn_id, delta, _logprobs(logprobs)))
            case InputAudioTranscriptionSegment(text=text, start=start, end=end, speaker=speaker):
                out.append(events.InputTranscriptSegment(id=turn_id, text=text, start_s=start, end_s=end, speaker=speaker))
            case InputAudioTranscriptionCompleted() if self._resolve_transcript(turn_id):
                out.append(_transcript_done(turn_id, event))
            case InputAudioTranscriptionFailed(error=error) if self._resolve_transcript(turn_id):
                out.append(
                    events.InputTranscriptFailed(
                        id=turn_id,
                        message=error.message or "The model server could not transcribe the turn.",
                        code=error.code or "transcription_failed",
                        type=error.type or "server_error",
                    )
                )

    def _end_turn(self, item_id: str, at_ms: int, out: list[events.EngineEvent]) -> None:
        turn_id = self._turn_ids.pop(self._open_item_id)
        self._open_item_id = ""
        out.append(events.SpeechStopped(turn_id, at_ms))
        self._commit_turn(item_id, turn_id)

    def _commit_turn(self, item_id: str, turn_id: str) -> None:
        self._turn_ids[item_id] = turn_id
        self._mirror.expect(live_turn_fingerprint(turn_id), item_id)
        self._expect_transcript(turn_id)

    def _to_conversation_ms(self, upstream_ms: int) -> int:
        return max(0, int(self._start_ms + upstream_ms))

    # Transcripts that are due

    def _expect_transcript(self, turn_id: str) -> None:
        if self.has_transcription:
            self._pending_transcripts[turn_id] = None

    def _resolve_transcript(self, turn_id: str) -> bool:
        # Entries are None, so `self` stands for none.
        return self._pending_transcripts.pop(turn_id, self) is None

    def _fail_transcript(self, turn_id: str, message: str) -> list[events.EngineEvent]:
        return [events.InputTranscriptFailed(id=turn_id, message=message)] if self._resolve_transcript(turn_id) else []


def _transcript_done(turn_id: str, event: InputAudioTranscriptionCompleted) -> events.InputTranscriptDone:
    usage = event.usage
    tokens = usage if isinstance(usage, TokensUsage) else TokensUsage(total_tokens=0, input_tokens=0, output_tokens=0)
    details = tokens.input_token_details
    return events.InputTranscriptDone(
        id=turn_id,
        transcript=event.transcript,
        seconds=usage.seconds if isinstance(usage, DurationUsage) else None,
        input_tokens=tokens.input_tokens,
        input_audio_tokens=(details.audio_tokens or 0) if details is not UNSET else 0,
        output_tokens=tokens.output_tokens,
        languages=tuple(language.code for language in event.languages or ()),
        logprobs=_logprobs(event.logprobs),
    )


def _logprobs(wire_logprobs: Opt[list[Logprob] | None]) -> tuple[events.TokenLogprob, ...]:
    logprobs = wire_logprobs or ()
    return tuple(events.TokenLogprob(events.TokenCandidate(each.token, each.logprob, tuple(each.bytes or ()))) for each in logprobs)
