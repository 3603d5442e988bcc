"""
A Realtime session: what the client, the engine and the clock say in, events and words out.

At most one answer is under way in the conversation, and any number up to `MOST_ASIDE` out of band. Whatever is asked that can't be done is
answered by one `error` event, and nothing has changed. The wire here is that of general availability; the beta's is translated outside.

Source: OpenAI's Realtime API reference and guide, and captures of what its server does.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import UNSET, Struct, structs

from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.errors import ClientMistake, Fault, OurFault
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.realtime.conversation import Conversation, Entry
from antiphon.protocols.realtime.input_audio import Speech
from antiphon.protocols.realtime.items import Items, check_told
from antiphon.protocols.realtime.output_buffer import Playout, Unheard
from antiphon.protocols.realtime.plan import plan
from antiphon.protocols.realtime.response import Answer
from antiphon.protocols.realtime.settings import AnySession, Opening, changed, coding_of, initial, sound_in, sound_out, voice_name
from antiphon.protocols.session import Close, Effect, Event, FromClient, FromEngine, Halted, Hangup, Mint, Spend, Tick, WakeAt
from antiphon.wire.realtime import client_events as client, server_events as events
from antiphon.wire.realtime.items import McpListToolsItem
from antiphon.wire.realtime.response import ResponseParams
from antiphon.wire.realtime.session import McpTool, ServerVad, Session

MOST_ASIDE = 16
"""The most answers out of band at once."""


class Garbled(Struct, frozen=True):
    """The client sent what is no event: `fault` says why, `event_id` which of its events it was, if it said so."""

    fault: Fault
    event_id: str | None = None


class Realtime:
    """
    The machine of one session; begun by its `Opening`, which comes as from the client.

    Attributes:
        has_ended: why it is over; None while it isn't.
    """

    def __init__(self, opening: Opening, mint: Mint) -> None:
        self.has_ended: str | None = None
        self._opening = opening
        self._mint = mint
        self._outbox = Outbox(mint)
        self._conversation = Conversation()
        self._items = Items(opening, self._outbox, mint, self._conversation)
        self._session: AnySession
        self._speech: Speech
        self._conversation_id = mint("conv")
        self._playout = Playout(self._outbox.send) if opening.has_output_buffer else None
        self._answers: dict[str, Answer] = {}
        self._main: Answer | None = None
        self._uncounted = 0
        self._has_spoken = False
        self._at = 0.0
        self._ends_at = 0.0
        self._idle_at: float | None = None
        self._idle_since_ms = 0
        self._wakes_at: float | None = None
        self._listed: set[str] = set()
        self._next_id: str | None = None

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done about `event`, in order."""
        if self.has_ended is not None:
            return []
        self._at = event.at
        self._uncounted = 0
        if self._playout is not None:
            self._playout.advance(event.at)
        if isinstance(event, FromEngine):
            for word in event.words:
                self._hear(word)
        elif isinstance(event, FromClient):
            self._take(event.message)
        else:
            self._decide(event)
        self._rearm()
        return self._outbox.take()

    def _decide(self, event: Event) -> None:
        match event:
            case Tick(at):
                self._wake(at)
            case Hangup():
                self._end("client_left", None)
            case Halted(fault):
                self._fail_all(talk_events.Broke.by("", fault))
                self._end("halted", fault)
            case _:
                pass

    # The frame

    def _take(self, message: Any) -> None:
        try:
            _CLIENT[type(message)](self, message)
        except Fault as fault:
            event_id = getattr(message, "event_id", None)
            self._refuse(fault, event_id if isinstance(event_id, str) else None)

    def _refuse(self, fault: Fault, event_id: str | None = None) -> None:
        error = events.RealtimeError(type=fault.type, code=fault.code, message=fault.message, param=fault.param, event_id=event_id)
        self._outbox.send(events.ErrorEvent, error=error)

    def _begin(self, opening: Opening) -> None:
        self._ends_at = self._at + opening.lasts_s
        try:
            self._session = initial(opening, self._mint("sess"), int(self._ends_at))
            check_told(self._session, "session")
        except ClientMistake as mistake:
            self._refuse(mistake)
            self._end("refused", mistake)
            return
        self._speech = Speech(opening, self._session, self._outbox, self._mint, self._conversation)
        self._outbox.send(events.SessionCreated, session=self._session)
        if opening.dialect == "beta":
            conversation = events.Conversation(id=self._conversation_id, object="realtime.conversation")
            self._outbox.send(events.ConversationCreated, conversation=conversation)
        self._list_tools()

    def _end(self, why: str, fault: Fault | None) -> None:
        for answer in self._answers.values():
            answer.abandon()
            self._count(answer)
        self._answers.clear()
        self._main = None
        self.has_ended = why
        self._outbox.effects.append(Close(fault))

    def _wake(self, at: float) -> None:
        self._wakes_at = None
        if at >= self._ends_at:
            fault = _expired(self._opening.lasts_s)
            self._fail_all(talk_events.Broke.by("", fault))
            self._refuse(fault)
            self._end("session_expired", fault)
        elif self._idle_at is not None and at >= self._idle_at:
            self._idle_at = None
            self._speech.time_out(self._idle_since_ms)
            self._answer_turn()

    def _rearm(self) -> None:
        """Be woken for what comes first: the end of the session, of the client's patience, or of what is played."""
        if self.has_ended is not None:
            return
        due_at = self._ends_at if self._idle_at is None else min(self._idle_at, self._ends_at)
        if self._playout is not None and (played_at := self._playout.next_at) is not None:
            due_at = min(due_at, played_at)
        if due_at != self._wakes_at:
            self._wakes_at = due_at
            self._outbox.effects.append(WakeAt(due_at))

    # The session

    def _update(self, event: client.SessionUpdate) -> None:
        wanted = changed(self._session, event.session, self._opening, has_spoken=self._has_spoken)
        check_told(wanted, "session")
        self._speech.configure(wanted)
        self._session = wanted
        if self._idle_ms() is None:
            self._idle_at = None
        self._outbox.send(events.SessionUpdated, session=wanted)
        self._list_tools()
        self._foresee()

    def _list_tools(self) -> None:
        """Tell what tools the session's MCP servers have. There is nobody yet who asks them, and the client is to know that."""
        tools = self._session.tools if isinstance(self._session, Session) else ()
        for tool in tools or ():
            if isinstance(tool, McpTool) and tool.server_label not in self._listed:
                self._listed.add(tool.server_label)
                item = McpListToolsItem(id=self._mint("mcpl"), server_label=tool.server_label, tools=[])
                place = {"previous_item_id": self._conversation.add(Entry(item)), "item": item}
                self._outbox.send(events.ConversationItemAdded, **place)
                self._outbox.send(events.McpListToolsInProgress, item_id=item.id)
                self._outbox.send(events.McpListToolsFailed, item_id=item.id)
                self._outbox.send(events.ConversationItemDone, **place)

    # Sound

    def _append(self, event: client.InputAudioBufferAppend) -> None:
        self._speech.append(event)

    def _commit(self, _event: client.InputAudioBufferCommit) -> None:
        self._speech.commit()
        self._speech.not_transcribed(self._session)

    def _clear(self, _event: client.InputAudioBufferClear) -> None:
        self._speech.clear()

    def _clear_output(self, _event: client.OutputAudioBufferClear) -> None:
        if self._playout is not None:
            self._cut(self._playout.clear(self._at))
            return
        raise ClientMistake(
            "The server has no output audio buffer here: it has one over WebRTC and SIP only. Send 'response.cancel', stop playing, and "
            "say with 'conversation.item.truncate' how much was heard.",
            code="invalid_value",
            param="type",
        )

    def _cut(self, unheard: Sequence[Unheard]) -> None:
        for part in unheard:
            self._items.cut(part.item_id, part.content_index, part.heard_ms)

    def _person_starts(self, word: talk_events.SpeechStarted) -> None:
        if not self._speech.started(word):
            return
        self._idle_at = None
        if self._detection("interrupt_response"):
            self._interrupt()
        self._foresee()

    def _interrupt(self) -> None:
        """Fall silent: first what is heard, then what is being made."""
        if self._playout is not None:
            self._cut(self._playout.drop(self._at))
        if self._main is not None:
            self._cancel(self._main, "turn_detected")

    def _person_stops(self, word: talk_events.SpeechStopped) -> None:
        if self._speech.stopped(word):
            self._speech.not_transcribed(self._session)
            if self._detection("create_response"):
                self._answer_turn()

    def _heard(self, word: Any) -> None:
        self._speech.heard(word, self._session)

    def _detection(self, name: str) -> bool:
        return getattr(sound_in(self._session).turn_detection, name, False) is not False

    def _idle_ms(self) -> int | None:
        detection = sound_in(self._session).turn_detection
        idle_ms = detection.idle_timeout_ms if isinstance(detection, ServerVad) else None
        return idle_ms if isinstance(idle_ms, int) else None

    # Items

    def _create_item(self, event: client.ConversationItemCreate) -> None:
        self._items.create(event, coding_of(sound_in(self._session).format))
        self._foresee()

    def _retrieve_item(self, event: client.ConversationItemRetrieve) -> None:
        session = self._session
        if isinstance(session, Session) and self._items.is_answer(event.item_id):
            self._items.retrieve(event, sound_out(session).format)
        else:
            self._items.retrieve(event, sound_in(session).format)

    def _truncate_item(self, event: client.ConversationItemTruncate) -> None:
        self._items.truncate(event)
        self._foresee()

    def _delete_item(self, event: client.ConversationItemDelete) -> None:
        self._items.delete(event)
        self._foresee()

    # Answers

    def _answer_turn(self) -> None:
        """Answer a turn that has just ended, where the session is one that answers."""
        if isinstance(self._session, Session):
            try:
                self._respond(ResponseParams())
            except Fault as fault:  # nobody asked, so there is no event to name
                self._refuse(fault)

    def _foresee(self) -> None:
        """Tell the engine what it will be asked when the open turn ends, so that it can begin."""
        session, turn = self._session, self._speech.turn
        is_of_use = self._opening.abilities.foresees and turn.is_open and self._detection("create_response")
        if not is_of_use or not isinstance(session, Session) or self._main is not None:
            return
        self._next_id = self._next_id or self._mint("resp")
        said = turns.Message("user", (turns.SpeechPart(b"", self._speech.buffer.rate_hz, turn.id),))
        history = (*self._items.history(None, coding_of(sound_in(session).format)), said)
        with suppress(Fault):  # what can't be had is told when it is asked
            planned = plan(self._next_id, ResponseParams(), session, self._opening, history, self._conversation_id)
            self._outbox.tell(commands.Foresee(planned.respond))

    def _create_response(self, event: client.ResponseCreate) -> None:
        self._respond(event.response if isinstance(event.response, ResponseParams) else ResponseParams())

    def _respond(self, params: ResponseParams) -> None:
        session = self._session
        if not isinstance(session, Session):
            raise ClientMistake("Responses are not available in transcription sessions.", code="invalid_value", param="type")
        is_aside = params.conversation == "none"
        self._check_room(is_aside=is_aside)
        given = params.input if isinstance(params.input, list) else None
        history = self._items.history(given, coding_of(sound_in(session).format))
        conversation_id = None if is_aside else self._conversation_id
        response_id = (None if is_aside else self._next_id) or self._mint("resp")
        planned = plan(response_id, params, session, self._opening, history, conversation_id)
        self._check_voice(planned.voice, session)
        answer = Answer(planned, self._outbox, self._mint, None if is_aside else self._conversation, self._playout)
        self._answers[planned.id] = answer
        if not is_aside:
            self._main, self._next_id = answer, None
            self._idle_at = None
        if (spent := self._spent(planned.id)) is None:
            answer.begin()
        else:
            answer.refuse(spent, self._at)
        if self._opening.dialect == "beta":
            self._tell_limits()
        if spent is not None:
            self._finished(answer)

    def _spent(self, id: str) -> talk_events.Broke | None:
        """Why there may be no more answers for now: those before have used up what there was."""
        limit = next((limit for limit in self._limits() if limit.name == "tokens" and limit.remaining == 0), None)
        if limit is None:
            return None
        most = limit.limit or 1
        wait_s = (limit.reset_seconds or 0.0) - (most - 1) * 60 / most  # until the first is there again, not all of them
        return talk_events.Broke(
            id=id,
            message=f"Rate limit reached: your limit is {most} tokens per minute. Please try again in {max(0.0, wait_s):.3f}s.",
            status=429,
            code="rate_limit_exceeded",
            type="rate_limit_error",
        )

    def _check_room(self, *, is_aside: bool) -> None:
        if not is_aside and self._main is not None:
            raise ClientMistake(
                f"Conversation already has an active response in progress: {self._main.plan.id}. "
                "Wait until the response is finished before creating a new one.",
                code="conversation_already_has_active_response",
            )
        if len(self._answers) - (self._main is not None) >= MOST_ASIDE and is_aside:
            raise ClientMistake(
                f"There are {MOST_ASIDE} responses in progress outside of the conversation. Wait until one of them is finished.",
                code="too_many_active_responses",
            )

    def _check_voice(self, voice: Any, session: Session) -> None:
        if self._has_spoken and voice_name(voice) != voice_name(sound_out(session).voice):
            raise ClientMistake(
                "Cannot update a conversation's voice if assistant audio is present.",
                code="cannot_update_voice",
                param="response.audio.output.voice",
            )

    def _cancel_response(self, event: client.ResponseCancel) -> None:
        answer = self._main if event.response_id in (UNSET, None) else self._answers.get(str(event.response_id))
        if answer is None:
            raise ClientMistake("Cancellation failed: no active response found", code="response_cancel_not_active")
        self._cancel(answer, "client_cancelled")

    def _cancel(self, answer: Answer, reason: Any) -> None:
        answer.cancel(reason, self._at)
        self._finished(answer)

    def _fail_all(self, broke: talk_events.Broke) -> None:
        for answer in tuple(self._answers.values()):
            self._outbox.tell(commands.Cancel(answer.plan.id))
            answer.take(broke, self._at)
            self._count(answer)
        self._answers.clear()
        self._main = None

    def _finished(self, answer: Answer) -> None:
        del self._answers[answer.plan.id]
        self._count(answer)
        if answer is self._main:
            self._main = None
            self._await_person(answer)
        if self._opening.dialect == "ga":
            self._tell_limits()

    def _count(self, answer: Answer) -> None:
        if tokens := answer.tokens:
            self._uncounted += tokens
            self._outbox.effects.append(Spend(tokens))

    def _await_person(self, answer: Answer) -> None:
        idle_ms = self._idle_ms()
        if idle_ms is not None and not self._speech.turn.is_open:
            # Sound is made faster than it is heard: the client is quiet from when the last of it was played.
            unplayed_s = max(0.0, answer.sounded_at + answer.sound_ms / 1000 - self._at) if answer.has_sounded else 0.0
            self._idle_at = self._at + unplayed_s + idle_ms / 1000
            self._idle_since_ms = self._speech.buffer.now_ms

    def _limits(self) -> list[events.RateLimit]:
        """What may still be used. Answers are counted when this is done, so those that end just now are taken off here."""
        return [_lowered(limit, self._uncounted) for limit in self._opening.limits()]

    def _tell_limits(self) -> None:
        self._outbox.send(events.RateLimitsUpdated, rate_limits=self._limits())

    # What the engine says

    def _hear(self, word: talk_events.FromEngine) -> None:
        heard = _ENGINE.get(type(word))
        if heard is not None:
            heard(self, word)
        elif (answer := self._answers.get(word.id)) is not None:
            is_over = answer.take(word, self._at)
            self._has_spoken = self._has_spoken or answer.has_sounded
            if is_over:
                self._finished(answer)

    def _trouble(self, word: talk_events.Trouble) -> None:
        self._refuse(OurFault(word.message, code=word.code, type=word.type))


def _lowered(limit: events.RateLimit, tokens: int) -> events.RateLimit:
    if limit.name != "tokens" or not tokens or not limit.limit:
        return limit
    remaining, reset_s = max(0, (limit.remaining or 0) - tokens), (limit.reset_seconds or 0.0) + tokens * 60 / limit.limit
    return structs.replace(limit, remaining=remaining, reset_seconds=round(reset_s, 3))


def _expired(lasts_s: float) -> Fault:
    minutes = f"{lasts_s / 60:g} minutes" if lasts_s != 60 else "1 minute"
    return ClientMistake(f"Your session hit the maximum duration of {minutes}.", code="session_expired")


_CLIENT: dict[type, Callable[[Realtime, Any], None]] = {
    Opening: Realtime._begin,
    Garbled: lambda session, garbled: session._refuse(garbled.fault, garbled.event_id),
    client.SessionUpdate: Realtime._update,
    client.InputAudioBufferAppend: Realtime._append,
    client.InputAudioBufferCommit: Realtime._commit,
    client.InputAudioBufferClear: Realtime._clear,
    client.OutputAudioBufferClear: Realtime._clear_output,
    client.ConversationItemCreate: Realtime._create_item,
    client.ConversationItemRetrieve: Realtime._retrieve_item,
    client.ConversationItemTruncate: Realtime._truncate_item,
    client.ConversationItemDelete: Realtime._delete_item,
    client.ResponseCreate: Realtime._create_response,
    client.ResponseCancel: Realtime._cancel_response,
}
"""What each event of a client does; one that is missing here fails a test."""

_ENGINE: dict[type, Callable[[Realtime, Any], None]] = {
    talk_events.SpeechStarted: Realtime._person_starts,
    talk_events.SpeechStopped: Realtime._person_stops,
    talk_events.Heard: Realtime._heard,
    talk_events.HeardSegment: Realtime._heard,
    talk_events.HeardAll: Realtime._heard,
    talk_events.NotHeard: Realtime._heard,
    talk_events.Trouble: Realtime._trouble,
}
"""What each word about the hearing does; all others are of an answer."""
