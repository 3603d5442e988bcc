"""
One connection to a Realtime server, seen from inside: words become its client events, its server events become words.

It decides and never waits: what it sends goes to `send`, what it says is returned, and times are given to it. The upstream answers one
thing at a time in its conversation; what is asked meanwhile is answered beside it.
"""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec import UNSET, Struct

from antiphon.audio import bytes_of, ms_of
from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engines.realtime.faults import HARMLESS, Judge, error_in
from antiphon.engines.realtime.input_audio import Hearing
from antiphon.engines.realtime.items import item_of
from antiphon.engines.realtime.mirror import Mirror
from antiphon.engines.realtime.request import encoded, params_of, session_for, session_of, wire_hz_of
from antiphon.engines.realtime.response import Answer
from antiphon.errors import ClientMistake, Fault, UpstreamTrouble
from antiphon.wire.codec.types import Opt, Unknown
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.client_events import (
    ClientEvent,
    ConversationItemCreate,
    InputAudioBufferAppend,
    InputAudioBufferClear,
    InputAudioBufferCommit,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from antiphon.wire.realtime.dialects import DialectName
from antiphon.wire.realtime.items import InputItem, Item
from antiphon.wire.realtime.server_events import ServerEvent

CANCEL_PATIENCE_S = 5.0
"""How long an upstream may take to end an answer that was cancelled."""

HELD_MS = 120_000
"""How much sound is kept until it is committed by hand, for a connection that is lost before."""

APPEND_BYTES = 256 << 10

CORRELATION = "client_event_id"
"""The key, usual among clients, under which an answer's metadata says what asked for it."""

_AS_IT_BEGINS = commands.Respond(id="", history=(), truncate=True)


class Intake:
    """
    What a conversation has heard, on whatever connection.

    Attributes:
        configure: how it is to be taken; None before anybody said so.
        heard_ms: all of it: the conversation's clock.
        held: what is not committed, where that is done by hand.
    """

    def __init__(self) -> None:
        self.configure: commands.Configure | None = None
        self.heard_ms = 0.0
        self.held = bytearray()

    @property
    def rate_hz(self) -> int:
        """Samples a second."""
        return self.configure.rate_hz if self.configure is not None else 24_000

    @property
    def held_ms(self) -> float:
        """How long what is held sounds."""
        return ms_of(len(self.held), self.rate_hz)

    def set(self, configure: commands.Configure) -> None:
        """From here on it is to be taken so."""
        if configure.turn_detection is not None or configure.rate_hz != self.rate_hz:
            self.held.clear()
        self.configure = configure

    def take(self, pcm: bytes) -> None:
        """More sound."""
        self.heard_ms += ms_of(len(pcm), self.rate_hz)
        if self.configure is None or self.configure.turn_detection is None:
            self.held += pcm
            del self.held[: -bytes_of(HELD_MS, self.rate_hz)]


class Patience(Struct, frozen=True):
    """How long an answer may take to begin, and between two events of it."""

    first_s: float
    idle_s: float


class Channel:
    """
    What is said over one connection, from its `session.created` on.

    Args:
        send: takes what goes upstream.
        intake: what was heard before, and is from now on.
        mint_turn: a new turn's id.
        token: makes the ids of items unique.
        judge: what an error of the upstream's is to the client.
        dialect: which the upstream speaks.
    """

    def __init__(
        self,
        send: Callable[[ClientEvent], None],
        intake: Intake,
        mint_turn: Callable[[], str],
        token: str,
        patience: Patience,
        judge: Judge,
        dialect: DialectName,
    ) -> None:
        self._send = send
        self._intake = intake
        self._patience = patience
        self._judge = judge
        self._dialect = dialect
        self._event_numbers = count(1)
        item_numbers = count(1)
        self._mirror = Mirror(lambda: f"item_{token}{next(item_numbers)}")
        self._hearing = Hearing(self._mirror, mint_turn, intake.heard_ms - intake.held_ms)
        self._set = session_for(_AS_IT_BEGINS, dialect)
        self._answers: dict[str, Answer] = {}
        self._asked: deque[Answer] = deque()
        self._begun: dict[str, Answer] = {}
        self._creations: dict[str, Answer] = {}
        self._main: Answer | None = None
        self._waiting: dict[str, commands.Respond] = {}
        self._greet()

    def _greet(self) -> None:
        intake = self._intake
        if intake.configure is not None:
            self._configure(intake.configure)
        for start in range(0, len(intake.held), APPEND_BYTES):
            self._append(bytes(intake.held[start : start + APPEND_BYTES]))

    # What it is told

    def take(self, word: commands.ToEngine, now: float) -> list[talk_events.FromEngine]:
        """Take a word; what there is to say at once."""
        match word:
            case commands.Hear(pcm):
                self._intake.take(pcm)
                self._append(pcm)
            case commands.Commit(id):
                self._intake.held.clear()
                event_id = self._event_id()
                self._hearing.commit(id, event_id)
                self._send(InputAudioBufferCommit(event_id=event_id))
            case commands.Forget():
                self._intake.held.clear()
                self._hearing.drop()
                self._send(InputAudioBufferClear())
            case commands.Configure():
                self._intake.set(word)
                self._configure(word)
            case commands.Respond():
                return self._respond(word, now)
            case commands.Cancel(id):
                return self._cancel(id, now)
            case commands.Foresee():
                pass  # a server that is told of it would answer it
            case commands.Converse() | commands.See() | commands.Listen():
                pass  # its abilities say that it does no full duplex
        return []

    def _append(self, pcm: bytes) -> None:
        rate_hz = self._intake.rate_hz
        self._send(InputAudioBufferAppend(audio=encoded(pcm, rate_hz, wire_hz_of(rate_hz))))

    def _configure(self, configure: commands.Configure) -> None:
        self._hearing.is_transcribed = configure.transcription is not None
        if configure.turn_detection is None:
            self._hearing.drop()
        self._send(SessionUpdate(event_id=self._event_id(), session=session_of(configure)))

    def _respond(self, ask: commands.Respond, now: float) -> list[talk_events.FromEngine]:
        main = self._main
        if main is not None and (main.is_cancelled or main.is_over) and not ask.aside:
            self._waiting[ask.id] = ask  # nearly over: then it is this one's turn
            return []
        answer = Answer(ask, None if ask.aside or main is not None else self._mirror, now)
        answer.event_id = self._event_id()
        try:
            given = self._prepare(answer)
        except ClientMistake as mistake:
            return [talk_events.Broke.by(ask.id, mistake)]
        if (session := session_for(ask, self._dialect)) != self._set:
            self._set = session
            self._send(SessionUpdate(event_id=self._event_id(), session=session))
        self._answers[ask.id] = answer
        self._asked.append(answer)
        if not answer.is_aside:
            self._main = answer
        correlation = {CORRELATION: answer.event_id} if answer.is_aside else None
        self._send(ResponseCreate(event_id=answer.event_id, response=params_of(ask, given, correlation, self._dialect)))
        return []

    def _prepare(self, answer: Answer) -> Opt[list[InputItem]]:
        """What the answer is given in place of the conversation upstream, which else is made equal to its history."""
        history = answer.ask.history
        if answer.is_aside:
            return UNSET if self._main is None and self._mirror.is_like(history) else self._mirror.told(history, self._item)
        params_of(answer.ask, UNSET, None, self._dialect)  # what can't be asked is found out before anything is changed
        for event in self._mirror.equalise(history, self._item):
            if isinstance(event, ConversationItemCreate):
                event.event_id = self._event_id()
                self._creations[event.event_id] = answer
            self._send(event)
        return UNSET

    def _item(self, turn: turns.Turn, item_id: str) -> Item:
        wire_hz = wire_hz_of(self._intake.rate_hz)
        return item_of(turn, item_id, lambda pcm, rate_hz: encoded(pcm, rate_hz, wire_hz))

    def _cancel(self, id: str, now: float) -> list[talk_events.FromEngine]:
        if self._waiting.pop(id, None) is not None:
            return [talk_events.Ended(id, "cancelled")]
        answer = self._answers.get(id)
        if answer is not None and not answer.is_cancelled:
            answer.is_cancelled = True
            answer.touched_at = now
            self._call_off(answer)
        return []

    def _call_off(self, answer: Answer) -> None:
        # One beside the conversation has no name before it has begun; it is called off then.
        if answer.response_id is not None or not answer.is_aside:
            self._send(ResponseCancel(response_id=answer.response_id or UNSET))

    # What it hears

    def hear(self, event: ServerEvent | Unknown, now: float) -> list[talk_events.FromEngine]:
        """Take an event; what there is to say."""
        words: list[talk_events.FromEngine] = []
        answer = self._begun.get(getattr(event, "response_id", ""))
        if answer is not None:
            answer.touched_at = now
            answer.read(event, words)
        elif (hearing := _HEARD.get(type(event))) is not None:
            hearing(self, event, now, words)
        return words

    def _on_started(self, event: events.InputAudioBufferSpeechStarted, _now: float, words: list[talk_events.FromEngine]) -> None:
        self._hearing.started(event, words)

    def _on_stopped(self, event: events.InputAudioBufferSpeechStopped, _now: float, words: list[talk_events.FromEngine]) -> None:
        self._hearing.stopped(event, words)

    def _on_committed(self, event: events.InputAudioBufferCommitted, _now: float, words: list[talk_events.FromEngine]) -> None:
        for effect in self._hearing.committed(event, self._intake.heard_ms, words):
            self._send(effect)

    def _on_transcript(self, event: ServerEvent, _now: float, words: list[talk_events.FromEngine]) -> None:
        self._hearing.heard(event, words)

    def _on_item(self, event: events.PlacedItem, _now: float, _words: list[talk_events.FromEngine]) -> None:
        item_id = getattr(event.item, "id", UNSET)
        if isinstance(item_id, str):
            self._mirror.notice(item_id)

    def _on_deleted(self, event: events.ConversationItemDeleted, _now: float, _words: list[talk_events.FromEngine]) -> None:
        if (placed := self._mirror.find(event.item_id)) is not None:
            self._mirror.forget(placed)

    def _on_created(self, event: events.ResponseCreated, now: float, _words: list[talk_events.FromEngine]) -> None:
        response = event.response
        if response.id in self._begun:
            return
        answer = self._asked_by(response.metadata)
        if answer is None:
            # Nobody asked: a server that answers by itself all the same.
            self._send(ResponseCancel(response_id=response.id))
            return
        self._asked.remove(answer)
        answer.touched_at = now
        answer.response_id = response.id
        self._begun[response.id] = answer
        if answer.is_cancelled and answer.is_aside:
            self._call_off(answer)

    def _on_done(self, event: events.ResponseDone, now: float, words: list[talk_events.FromEngine]) -> None:
        response = event.response
        answer = self._begun.pop(response.id, None)
        if answer is None and response.status == "failed" and (answer := self._asked_by(response.metadata)) is not None:
            self._asked.remove(answer)  # some failures come before they have begun
        if answer is not None:
            words += answer.end(response, self._judge)
            words += self._finish(answer, now)

    def _on_error(self, event: events.ErrorEvent | Unknown, now: float, words: list[talk_events.FromEngine]) -> None:
        error = error_in(event)
        event_id = error.event_id or ""
        answer = next((answer for answer in self._asked if answer.event_id == event_id), None)
        if answer is None and event_id in self._creations:
            words += self._spoil(self._creations[event_id], self._judge(error), now)
        elif answer is None and (unheard := self._hearing.fail(event_id)) is not None:
            words += unheard
        elif answer is None and error.code in HARMLESS:
            return
        elif answer is not None or (self._asked and not event_id):
            # One that says nothing of what it is about is taken to be about what is waited for.
            answer = answer or self._asked[0]
            self._asked.remove(answer)
            words += _broken(answer, self._judge(error))
            words += self._finish(answer, now)
        else:
            fault = self._judge(error)
            words.append(talk_events.Trouble(message=fault.message, code=fault.code, type=fault.type))

    def _on_unknown(self, event: Unknown, now: float, words: list[talk_events.FromEngine]) -> None:
        if event.type == "error":
            self._on_error(event, now, words)

    def _asked_by(self, metadata: Any) -> Answer | None:
        """Which answer it is that begins: as it says itself, else the first that was asked for, one in the conversation before others."""
        correlation = (metadata or {}).get(CORRELATION)
        named = (answer for answer in self._asked if answer.event_id == correlation)
        main = (answer for answer in self._asked if not answer.is_aside)
        return next(named, None) or next(main, None) or next(iter(self._asked), None)

    # How answers end

    def _finish(self, answer: Answer, now: float) -> list[talk_events.FromEngine]:
        """The upstream is done with the answer; whoever waited for that has a turn."""
        self._answers.pop(answer.ask.id, None)
        self._creations = {event_id: whose for event_id, whose in self._creations.items() if whose is not answer}
        if answer is not self._main:
            return []
        self._main = None
        words: list[talk_events.FromEngine] = []
        waiting, self._waiting = self._waiting, {}
        for ask in waiting.values():
            words += self._respond(ask, now)
        return words

    def _spoil(self, answer: Answer, fault: Fault, now: float) -> list[talk_events.FromEngine]:
        """The answer is of no use, though the upstream may not know."""
        if answer.is_over:
            return []
        words = _broken(answer, fault)
        if not answer.is_cancelled:
            answer.is_cancelled = True
            answer.touched_at = now
            self._call_off(answer)
        return words

    def look_at_clock(self, now: float) -> list[talk_events.FromEngine]:
        """End what takes too long."""
        words: list[talk_events.FromEngine] = []
        for answer in [*self._asked, *self._begun.values()]:
            if now < self._due(answer) - 0.001:
                continue
            if answer.is_cancelled:
                words += self._give_up(answer, now)
                continue
            phase = "fell silent in the middle of its answer" if answer.is_delivering else "did not begin to answer"
            message = f"The model server {phase} for {self._due(answer) - answer.touched_at:g} seconds."
            words += self._spoil(answer, UpstreamTrouble(message, status=504, code="upstream_timeout"), now)
        return words

    def due_at(self) -> float | None:
        """When to look at the clock next."""
        return min(map(self._due, [*self._asked, *self._begun.values()]), default=None)

    def touch(self, now: float) -> None:
        """The time that has passed does not count: nothing was read."""
        for answer in [*self._asked, *self._begun.values()]:
            answer.touched_at = now

    def end(self, fault: Fault) -> list[talk_events.FromEngine]:
        """The connection is gone."""
        words: list[talk_events.FromEngine] = []
        for answer in [*self._asked, *self._begun.values()]:
            words += _broken(answer, fault)
        words += [talk_events.Broke.by(id, fault) for id in self._waiting]
        return words + self._hearing.end(self._intake.heard_ms)

    def _due(self, answer: Answer) -> float:
        patience = self._patience
        patience_s = CANCEL_PATIENCE_S if answer.is_cancelled else patience.idle_s if answer.is_delivering else patience.first_s
        return answer.touched_at + patience_s

    def _give_up(self, answer: Answer, now: float) -> list[talk_events.FromEngine]:
        if answer in self._asked:
            self._asked.remove(answer)
        self._begun.pop(answer.response_id or "", None)
        return _broken(answer, None) + self._finish(answer, now)

    def _event_id(self) -> str:
        return f"event_{next(self._event_numbers)}"


def _broken(answer: Answer, fault: Fault | None) -> list[talk_events.FromEngine]:
    """The last word of an answer that the upstream did not end."""
    if answer.is_over:
        return []
    answer.is_over = True
    if answer.is_cancelled or fault is None:
        return [talk_events.Ended(answer.ask.id, "cancelled")]
    return [talk_events.Broke.by(answer.ask.id, fault)]


_HEARD: dict[type[Any], Callable[[Channel, Any, float, list[talk_events.FromEngine]], None]] = {
    events.InputAudioBufferSpeechStarted: Channel._on_started,
    events.InputAudioBufferSpeechStopped: Channel._on_stopped,
    events.InputAudioBufferCommitted: Channel._on_committed,
    events.InputAudioTranscriptionDelta: Channel._on_transcript,
    events.InputAudioTranscriptionSegment: Channel._on_transcript,
    events.InputAudioTranscriptionCompleted: Channel._on_transcript,
    events.InputAudioTranscriptionFailed: Channel._on_transcript,
    events.ConversationItemAdded: Channel._on_item,
    events.ConversationItemCreated: Channel._on_item,
    events.ConversationItemDeleted: Channel._on_deleted,
    events.ResponseCreated: Channel._on_created,
    events.ResponseDone: Channel._on_done,
    events.ErrorEvent: Channel._on_error,
    Unknown: Channel._on_unknown,
}
