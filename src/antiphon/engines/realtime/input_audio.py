"""
What an upstream hears: turns under ids of ours, times on the conversation's clock, transcripts.

The law: a turn that started stops, unless it is dropped; one that is over has exactly one `HeardAll` or `NotHeard` where it is
transcribed. The connection that it was heard on may be gone by then.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Struct

from antiphon.engine_api import events as talk_events
from antiphon.engines.realtime.items import heard_likeness
from antiphon.engines.realtime.mirror import Mirror, Placed
from antiphon.wire.codec.types import Unknown
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

LOST = "The connection to the model server was lost before the turn was transcribed."


class _Commit(Struct, frozen=True):
    """A turn that was committed by hand, until the upstream says what its item is called."""

    event_id: str
    turn_id: str
    placed: Placed


class Hearing:
    """
    The hearing of one connection.

    Args:
        mirror: takes the items that turns become.
        mint: a new turn's id.
        began_ms: where on the conversation's clock the connection's own begins.

    Attributes:
        is_transcribed: whether somebody reads what was said.
    """

    def __init__(self, mirror: Mirror, mint: Callable[[], str], began_ms: float) -> None:
        self.is_transcribed = False
        self._mirror = mirror
        self._mint = mint
        self._began_ms = began_ms
        self._turns: dict[str, str] = {}
        self._owed: dict[str, None] = {}
        self._commits: deque[_Commit] = deque()
        self._open = ""

    def commit(self, turn_id: str, event_id: str) -> None:
        """The sound so far was committed by hand, as this turn."""
        if self._open:
            item_id, self._open = self._open, ""
            self._over(item_id, turn_id)
            return
        self._commits.append(_Commit(event_id, turn_id, self._mirror.expect(heard_likeness(turn_id))))
        self._owe(turn_id)

    def drop(self) -> None:
        """The turn that is open, if there is one, is none."""
        self._turns.pop(self._open, None)
        self._open = ""

    def fail(self, event_id: str) -> list[talk_events.FromEngine] | None:
        """The upstream refused what had that id; None where that was no commit."""
        commit = next((commit for commit in self._commits if commit.event_id == event_id), None)
        if commit is None:
            return None
        self._commits.remove(commit)
        self._mirror.forget(commit.placed)
        return self._unheard(commit.turn_id, "The model server did not take the turn.")

    def end(self, now_ms: float) -> list[talk_events.FromEngine]:
        """The connection is gone."""
        words: list[talk_events.FromEngine] = []
        if self._open:
            turn_id = self._turns[self._open]
            words.append(talk_events.SpeechStopped(turn_id, int(now_ms)))
            self._owe(turn_id)
        for turn_id in tuple(self._owed):
            words += self._unheard(turn_id, LOST)
        return words

    # What the upstream says

    def started(self, event: InputAudioBufferSpeechStarted, words: list[talk_events.FromEngine]) -> None:
        """Somebody speaks."""
        if self._open or event.item_id in self._turns:
            return
        self._open = event.item_id
        turn_id = self._turns[event.item_id] = self._mint()
        words.append(talk_events.SpeechStarted(turn_id, self._at(event.audio_start_ms)))

    def stopped(self, event: InputAudioBufferSpeechStopped, words: list[talk_events.FromEngine]) -> None:
        """Nobody speaks any more."""
        if self._open:
            self._stop(event.item_id, self._at(event.audio_end_ms), words)

    def committed(self, event: InputAudioBufferCommitted, now_ms: float, words: list[talk_events.FromEngine]) -> list[ClientEvent]:
        """The sound so far is an item; what is to be done with it."""
        if self._open == event.item_id:  # a server that does not say first that the speech has stopped
            self._stop(event.item_id, int(now_ms), words)
        elif event.item_id not in self._turns and self._commits:
            commit = self._commits.popleft()
            self._turns[event.item_id] = commit.turn_id
            return self._mirror.named(commit.placed, event.item_id)
        elif event.item_id not in self._turns:
            self._mirror.notice(event.item_id)
        return []

    def heard(self, event: ServerEvent | Unknown, words: list[talk_events.FromEngine]) -> None:
        """Something of a transcript."""
        turn_id = self._turns.get(getattr(event, "item_id", ""))
        if turn_id is None:
            return
        match event:
            case InputAudioTranscriptionDelta(delta=delta, logprobs=logprobs):
                words.append(talk_events.Heard(turn_id, delta, _logprobs(logprobs)))
            case InputAudioTranscriptionSegment(text=text, start=start, end=end, speaker=speaker):
                words.append(talk_events.HeardSegment(id=turn_id, text=text, start_s=start, end_s=end, speaker=speaker))
            case InputAudioTranscriptionCompleted() if self._is_due(turn_id):
                words.append(_heard_all(turn_id, event))
            case InputAudioTranscriptionFailed(error=error) if self._is_due(turn_id):
                words.append(
                    talk_events.NotHeard(
                        id=turn_id,
                        message=error.message or "The model server could not transcribe the turn.",
                        code=error.code or "transcription_failed",
                        type=error.type or "server_error",
                    )
                )

    def _stop(self, item_id: str, at_ms: int, words: list[talk_events.FromEngine]) -> None:
        turn_id = self._turns.pop(self._open)
        self._open = ""
        words.append(talk_events.SpeechStopped(turn_id, at_ms))
        self._over(item_id, turn_id)

    def _over(self, item_id: str, turn_id: str) -> None:
        self._turns[item_id] = turn_id
        self._mirror.expect(heard_likeness(turn_id), item_id)
        self._owe(turn_id)

    def _at(self, upstream_ms: int) -> int:
        return max(0, int(self._began_ms + upstream_ms))

    # What is owed

    def _owe(self, turn_id: str) -> None:
        if self.is_transcribed:
            self._owed[turn_id] = None

    def _is_due(self, turn_id: str) -> bool:
        return self._owed.pop(turn_id, self) is None

    def _unheard(self, turn_id: str, message: str) -> list[talk_events.FromEngine]:
        return [talk_events.NotHeard(id=turn_id, message=message)] if self._is_due(turn_id) else []


def _heard_all(turn_id: str, event: InputAudioTranscriptionCompleted) -> talk_events.HeardAll:
    usage = event.usage
    tokens = usage if isinstance(usage, TokensUsage) else TokensUsage(total_tokens=0, input_tokens=0, output_tokens=0)
    details = tokens.input_token_details
    return talk_events.HeardAll(
        id=turn_id,
        transcript=event.transcript,
        seconds=usage.seconds if isinstance(usage, DurationUsage) else None,
        input_tokens=tokens.input_tokens,
        input_audio_tokens=(details.audio_tokens or 0) if details is not UNSET else 0,
        output_tokens=tokens.output_tokens,
        languages=tuple(language.code for language in event.languages or ()),
        logprobs=_logprobs(event.logprobs),
    )


def _logprobs(given: Any) -> tuple[talk_events.TokenLogprob, ...]:
    logprobs: Sequence[Logprob] = given or ()
    return tuple(talk_events.TokenLogprob(talk_events.Likelihood(each.token, each.logprob, tuple(each.bytes or ()))) for each in logprobs)
