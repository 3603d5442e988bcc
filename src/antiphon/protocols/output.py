"""
The response: what an engine's words open, fill and close, in an order that every client accepts.

One item is open at a time and within it one part, so an item's events never interleave with another's, its position in the output is
its index, and whatever was opened is closed before the response ends. `MOVES` is the whole law: for what is open now and what the next
word needs open, what closes and what opens. Protocols turn the steps into their own events.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from antiphon.engine_api import events as talk_events
from antiphon.engine_api.history import Phase
from antiphon.protocols.output_table import ITEM_PREFIX, MOVES, Move, Outcome, Slot, Status

_REASONING = (Slot.THINKING, Slot.SUMMARY, Slot.THOUGHT)


class Part:
    """A part being filled: `index` among the parts of its list (a reasoning item counts content and summary apart)."""

    __slots__ = ("annotations", "chunks", "index", "logprobs", "slot")

    def __init__(self, slot: Slot, index: int) -> None:
        self.slot = slot
        self.index = index
        self.chunks: list[str] = []
        self.logprobs: list[talk_events.TokenLogprob] = []
        self.annotations: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.chunks)


class Item:
    """
    An item being filled: a message, a reasoning item, a call, or what a hosted tool does.

    Attributes:
        index: its position in the output.
        slot: what was first open in it, which tells its kind.
        parts: of a message or of the reasoning itself.
        summaries: of a reasoning item.
        call: what began it, for a call; its arguments are in `chunks`.
        hosted: a hosted tool's item as its engine tells it.
        phase: of a message.
    """

    __slots__ = ("call", "chunks", "hosted", "id", "index", "parts", "phase", "sealed", "slot", "status", "summaries")

    def __init__(
        self,
        id: str,
        index: int,
        slot: Slot,
        call: talk_events.Calling | None = None,
        hosted: dict[str, Any] | None = None,
        phase: Phase | None = None,
    ) -> None:
        self.id = id
        self.index = index
        self.slot = slot
        self.call = call
        self.hosted = hosted
        self.phase = phase
        self.status: Status = "in_progress"
        self.parts: list[Part] = []
        self.summaries: list[Part] = []
        self.chunks: list[str] = []
        self.sealed: str | None = None

    @property
    def is_reasoning(self) -> bool:
        """Whether it holds reasoning."""
        return self.slot in _REASONING

    @property
    def arguments(self) -> str:
        """A call's arguments so far."""
        return "".join(self.chunks)


class ItemAdded(Struct):
    """An item opened."""

    item: Item


class PartAdded(Struct):
    """A part of the open item opened."""

    item: Item
    part: Part


class Grew(Struct):
    """The open part grew by `text`."""

    item: Item
    part: Part
    text: str
    logprobs: tuple[talk_events.TokenLogprob, ...]


class Sounded(Struct):
    """The open part is heard further, by `pcm`; its words so far are those of all the sound up to the end of it."""

    item: Item
    part: Part
    pcm: bytes


class CallGrew(Struct):
    """The open call's arguments grew by `text`."""

    item: Item
    text: str


class HostedMoved(Struct):
    """The hosted tool whose item is open has come further."""

    item: Item
    event: dict[str, Any]


class Cited(Struct):
    """The open text part was annotated; `index` counts its annotations."""

    item: Item
    part: Part
    index: int
    annotation: dict[str, Any]


class PartDone(Struct):
    """The open part closed."""

    item: Item
    part: Part


class ItemDone(Struct):
    """The open item closed; its `status` says whether whole."""

    item: Item


class Finished(Struct):
    """The response is over. `reason` says why it is incomplete, `broke` why it failed."""

    outcome: Outcome
    reason: str | None = None
    broke: talk_events.Broke | None = None


CallWord = talk_events.Calling | talk_events.Arguments | talk_events.Called
HostedWord = talk_events.HostedBegan | talk_events.HostedMoved | talk_events.HostedDone
Step = ItemAdded | PartAdded | Grew | Sounded | CallGrew | HostedMoved | Cited | PartDone | ItemDone | Finished

OUTCOMES: dict[talk_events.EndReason, tuple[Outcome, str | None]] = {
    "stop": ("completed", None),
    "length": ("incomplete", "max_output_tokens"),
    "content_filter": ("incomplete", "content_filter"),
    "cancelled": ("cancelled", None),
}


class Response:
    """
    The machine of one response: give it the engine's words, get the steps that follow.

    Args:
        is_aloud: whether the client can hear; for one that can't, what is spoken is text, and sound is nothing.
        is_never_empty: whether an answer of no words at all still has an item, as clients that read `output[0]` need it.

    Attributes:
        items: those that have closed, in order of their index.
        used: the token count that the engine gave last.
        outcome: how it ended; None before.
        sound_bytes: how much sound was said.
    """

    def __init__(self, mint: Callable[[str], str], *, is_aloud: bool = False, is_never_empty: bool = True) -> None:
        self.items: list[Item] = []
        self.used: talk_events.Used | None = None
        self.outcome: Outcome | None = None
        self.sound_bytes = 0
        self._mint = mint
        self._is_aloud = is_aloud
        self._is_never_empty = is_never_empty
        self._slot = Slot.NOTHING
        self._item: Item | None = None
        self._part: Part | None = None
        self._next = talk_events.ItemBreak("")
        # Calls that began before the open one was complete wait here, so that events of two items never mix.
        self._waiting: dict[str, list[CallWord]] = {}

    @property
    def over(self) -> bool:
        """Whether it has finished; it then answers every word with nothing."""
        return self.outcome is not None

    def take(self, word: talk_events.FromEngine) -> list[Step]:
        """What follows from `word`; never raises."""
        if self.outcome is not None or type(word) in NOT_OF_AN_ANSWER:
            return []
        return TAKES[type(word)](self, word)

    def lengthen(self, text: str) -> Item | None:
        """
        The open message, its last part longer by `text`; None where more than that would follow, and nothing was done.

        The path of nearly every token: what `take` says of it in a step is one event, and known beforehand.
        """
        if self._slot is not Slot.TEXT or not text:
            return None
        part = self._part
        assert part is not None
        part.chunks.append(text)
        return self._item

    def cancel(self) -> list[Step]:
        """What follows when nobody waits for the answer any more."""
        return [] if self.outcome is not None else [*self._close("incomplete"), self._finish("cancelled")]

    # What is said

    def _say(self, wanted: Slot, text: str, logprobs: tuple[talk_events.TokenLogprob, ...] = ()) -> list[Step]:
        if not text and not logprobs:
            return []
        steps = self._settle_calls("completed")
        steps += self._move(wanted)
        return steps + self._grow(text, logprobs)

    def _grow(self, text: str, logprobs: tuple[talk_events.TokenLogprob, ...] = ()) -> list[Step]:
        item, part = self._item, self._part
        assert item is not None and part is not None
        part.chunks.append(text)
        if logprobs:
            part.logprobs.extend(logprobs)
        return [Grew(item, part, text, logprobs)]

    def _speak(self, text: str) -> list[Step]:
        return self._say(Slot.SOUND if self._is_aloud else Slot.TEXT, text)

    def _sound(self, pcm: bytes) -> list[Step]:
        if not pcm or not self._is_aloud:
            return []
        self.sound_bytes += len(pcm)
        steps = [] if self._slot is Slot.SOUND else [*self._settle_calls("completed"), *self._move(Slot.SOUND)]
        assert self._item is not None and self._part is not None
        return [*steps, Sounded(self._item, self._part, pcm)]

    def _seal(self, sealed: str) -> list[Step]:
        at_reasoning = self._slot in _REASONING
        steps = [] if at_reasoning else [*self._settle_calls("completed"), *self._move(Slot.THOUGHT)]
        assert self._item is not None
        self._item.sealed = sealed
        return steps

    def _cite(self, annotation: dict[str, Any]) -> list[Step]:
        steps = [] if self._slot is Slot.TEXT else [*self._settle_calls("completed"), *self._move(Slot.TEXT)]
        item, part = self._item, self._part
        assert item is not None and part is not None
        part.annotations.append(annotation)
        return [*steps, Cited(item, part, len(part.annotations) - 1, annotation)]

    # What is called

    def _call(self, word: CallWord) -> list[Step]:
        if word.call_id in self._waiting:
            self._waiting[word.call_id].append(word)
            return []
        open_call = self._item.call if self._item is not None else None
        mine = open_call is not None and open_call.call_id == word.call_id
        match word:
            case talk_events.Calling() if open_call is None:
                return self._move(Slot.CALL, word)
            case talk_events.Calling() if not mine:
                self._waiting[word.call_id] = [word]
                return []
            case talk_events.Arguments(_, _, text) if mine:
                return self._grow_call(text)
            case talk_events.Called():
                return [*self._move(Slot.NOTHING), *self._release()] if mine else []
            case _:
                return self._spoke_out_of_turn(word)

    def _grow_call(self, text: str) -> list[Step]:
        if not text or self._item is None:
            return []
        self._item.chunks.append(text)
        return [CallGrew(self._item, text)]

    def _release(self) -> list[Step]:
        """The calls that waited, as far as they are complete, and the next of them as far as it came."""
        steps: list[Step] = []
        while self._waiting and self._slot is Slot.NOTHING:
            words = self._waiting.pop(next(iter(self._waiting)))
            for word in words:
                match word:
                    case talk_events.Calling():
                        steps += self._move(Slot.CALL, word)
                    case talk_events.Arguments(_, _, text):
                        steps += self._grow_call(text)
                    case talk_events.Called():
                        steps += self._move(Slot.NOTHING)
        return steps

    def _settle_calls(self, status: Status) -> list[Step]:
        """Close the open call and all that wait behind it."""
        if self._slot is not Slot.CALL:
            return []
        steps = self._move(Slot.NOTHING, status=status)
        while self._waiting:
            steps += self._release()
            steps += self._move(Slot.NOTHING, status=status)
        return steps

    def _spoke_out_of_turn(self, word: talk_events.Calling | talk_events.Arguments) -> list[Step]:
        what = "began twice" if isinstance(word, talk_events.Calling) else "went on after its end, or before its beginning"
        broke = talk_events.Broke(id=word.id, message=f"The model server garbled a tool call: '{word.call_id}' {what}.", status=502)
        return [*self._close("incomplete"), self._finish("failed", broke=broke)]

    # What hosted tools do

    def _host(self, word: HostedWord) -> list[Step]:
        if isinstance(word, talk_events.HostedBegan):
            return [*self._settle_calls("completed"), *self._move(Slot.HOSTED, hosted=word.item)]
        item = self._item
        if self._slot is not Slot.HOSTED or item is None:
            return []
        if isinstance(word, talk_events.HostedMoved):
            return [HostedMoved(item, word.event)]
        item.hosted = word.item
        return self._move(Slot.NOTHING)

    # What ends

    def _break(self, word: talk_events.ItemBreak) -> list[Step]:
        steps = [*self._settle_calls("completed"), *self._move(Slot.NOTHING)]
        self._next = word
        return steps

    def _count(self, used: talk_events.Used) -> list[Step]:
        self.used = used
        return []

    def _end(self, reason: talk_events.EndReason) -> list[Step]:
        outcome, why = OUTCOMES[reason]
        steps = self._close("completed" if outcome == "completed" else "incomplete")
        if outcome == "completed" and not self.items and self._is_never_empty:
            steps += [*self._move(Slot.TEXT), *self._move(Slot.NOTHING)]
        return [*steps, self._finish(outcome, why)]

    def _close(self, status: Status) -> list[Step]:
        return [*self._settle_calls(status), *self._move(Slot.NOTHING, status=status)]

    def _finish(self, outcome: Outcome, reason: str | None = None, broke: talk_events.Broke | None = None) -> Finished:
        self.outcome = outcome
        return Finished(outcome, reason, broke)

    # What opens and closes

    def _move(
        self, wanted: Slot, call: talk_events.Calling | None = None, status: Status = "completed", hosted: dict[str, Any] | None = None
    ) -> list[Step]:
        steps: list[Step] = []
        for move in MOVES[self._slot][wanted]:
            match move:
                case Move.END_PART:
                    steps.append(self._end_part())
                case Move.END_ITEM:
                    steps.append(self._end_item(status))
                case Move.ITEM:
                    steps.append(self._open_item(wanted, call, hosted))
                case Move.PART:
                    steps.append(self._open_part(wanted))
        self._slot = wanted
        return steps

    def _open_item(self, wanted: Slot, call: talk_events.Calling | None, hosted: dict[str, Any] | None) -> Step:
        given, self._next = self._next, talk_events.ItemBreak("")
        id = given.item_id
        if id is None:
            prefix = "ctc" if call is not None and call.custom else ITEM_PREFIX[wanted] if hosted is None else _hosted_prefix(hosted)
            id = self._mint(prefix)
        self._item = Item(id, len(self.items), wanted, call, hosted, given.phase)
        return ItemAdded(self._item)

    def _open_part(self, wanted: Slot) -> Step:
        assert self._item is not None
        parts = self._item.summaries if wanted is Slot.SUMMARY else self._item.parts
        self._part = Part(wanted, len(parts))
        parts.append(self._part)
        return PartAdded(self._item, self._part)

    def _end_part(self) -> Step:
        assert self._item is not None and self._part is not None
        done = PartDone(self._item, self._part)
        self._part = None
        return done

    def _end_item(self, status: Status) -> Step:
        assert self._item is not None
        self._item.status = status
        self.items.append(self._item)
        done = ItemDone(self._item)
        self._item = None
        return done


def _hosted_prefix(item: dict[str, Any]) -> str:
    """What ids of such items begin with, by the id that the engine gave this one."""
    prefix = str(item.get("id", "")).partition("_")[0]
    return prefix if prefix.isascii() and prefix.isalpha() and len(prefix) <= 8 else ITEM_PREFIX[Slot.HOSTED]


TAKES: dict[type, Callable[[Response, Any], list[Step]]] = {
    talk_events.ItemBreak: lambda response, word: response._break(word),
    talk_events.Text: lambda response, word: response._say(Slot.TEXT, word.text, word.logprobs),
    talk_events.Refusal: lambda response, word: response._say(Slot.REFUSAL, word.text),
    talk_events.Reasoning: lambda response, word: response._say(Slot.SUMMARY if word.summary else Slot.THINKING, word.text),
    talk_events.ReasoningBreak: lambda response, _: response._move(Slot.THOUGHT) if response._slot is Slot.SUMMARY else [],
    talk_events.Sealed: lambda response, word: response._seal(word.sealed),
    talk_events.Annotated: lambda response, word: response._cite(word.annotation),
    talk_events.Calling: Response._call,
    talk_events.Arguments: Response._call,
    talk_events.Called: Response._call,
    talk_events.HostedBegan: Response._host,
    talk_events.HostedMoved: Response._host,
    talk_events.HostedDone: Response._host,
    talk_events.Used: Response._count,
    talk_events.Spoken: lambda response, word: response._speak(word.text),
    talk_events.Sound: lambda response, word: response._sound(word.pcm),
    talk_events.Ended: lambda response, word: response._end(word.reason),
    talk_events.Broke: lambda response, word: [*response._close("incomplete"), response._finish("failed", broke=word)],
}
"""What each word of an answer does; a word of an engine that is missing here and in `NOT_OF_AN_ANSWER` fails a test."""

OF_THE_ENGINE = frozenset(
    {talk_events.Ready, talk_events.Listening, talk_events.Measured, talk_events.Waiting, talk_events.Assigned, talk_events.Lost}
)
"""What an engine says of itself."""

NOT_OF_AN_ANSWER = OF_THE_ENGINE.union(
    (
        talk_events.SpeechStarted,
        talk_events.SpeechStopped,
        talk_events.Heard,
        talk_events.HeardSegment,
        talk_events.HeardAll,
        talk_events.NotHeard,
        talk_events.Trouble,
    )
)
"""That, and what it says of what it hears."""
