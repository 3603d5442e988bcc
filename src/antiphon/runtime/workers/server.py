"""
The worker's end of a link: conversations that a server opens, held with the engine that is here.

A place is free when the engine has left the conversation, and not before: `Left` says so, and is the last that is said of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, cast

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.engine import Conversation, CountingEngine, Engine, EngineOverrun, ProbedEngine
from antiphon.engine_api.options import Settings
from antiphon.engines.remote.link import End
from antiphon.errors import Fault, OurFault
from antiphon.runtime.core.driver import overrun
from antiphon.wire.internal.worker_link import (
    Answered,
    Beat,
    Begin,
    Broken,
    Count,
    Dismissed,
    Drain,
    Failure,
    Leave,
    Left,
    Open,
    Opened,
    Pause,
    Probe,
    Refused,
    Resume,
    Said,
    Told,
    ToWorker,
    Undrain,
    Unsendable,
    Welcome,
    to_worker,
)

QUESTIONS = 64
"""The most questions that are being answered at the same time."""

Of = Beat | Begin | Welcome | Refused | Drain | Undrain | Dismissed
"""What a server says of the link itself."""


class Serving(AbstractAsyncContextManager["Serving"]):
    """
    Conversations over one link, for as long as it is entered.

    Args:
        slots: the most at the same time; None for as many as are asked for.
        told: takes what the server says of the link itself.
        lost: called once, with the reason, when the server is gone; the conversations are being left then.
        freed: called when a conversation has been left, with how many there are still.

    Attributes:
        end: this end of the link, for whatever carries it.
    """

    def __init__(
        self,
        slots: int | None = None,
        told: Callable[[Of], None] = lambda _frame: None,
        lost: Callable[[str], None] = lambda _reason: None,
        freed: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self.end: End[ToWorker] = End(to_worker, self._take, self._on_lost, self._hold)
        self._engine: Engine | None = None
        self._slots = slots
        self._told = told
        self._lost = lost
        self._freed = freed
        self._places: dict[int, _Place] = {}
        self._questions: set[asyncio.Task[None]] = set()
        self._tasks = asyncio.TaskGroup()
        self._is_draining = False
        self._hangs_up = False

    async def __aenter__(self) -> Self:
        """Conversations may come."""
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave every conversation, and hang up."""
        self.end.drop("the worker is stopping")
        self._leave_all()
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def count(self) -> int:
        """How many conversations there are."""
        return len(self._places)

    def serve(self, engine: Engine) -> None:
        """Begin to answer with an engine, which has been started."""
        self._engine = engine
        self.end.begin_beating()

    def drain(self, *, hangs_up: bool = True) -> None:
        """Take no more conversations; where `hangs_up`, the link ends after the last, and the server is told so."""
        self._is_draining = True
        if hangs_up and not self._hangs_up:
            self._hangs_up = True
            self.end.send(Drain())
        self._hang_up_if_drained()

    def resume(self) -> None:
        """Take conversations again, unless the link is to end after the last."""
        self._is_draining = self._hangs_up

    def _hang_up_if_drained(self) -> None:
        if self._hangs_up and not self._places:
            self.end.drop("the worker was drained")

    # What the server says

    def _take(self, frame: ToWorker) -> None:
        match frame:
            case Told(number, words):
                if (place := self._places.get(number)) is not None:
                    place.tell(words)
            case Open(number, settings):
                self._open(number, settings)
            case Leave(number):
                if (place := self._places.get(number)) is not None:
                    place.leave()
            case Pause(number) | Resume(number):
                if (place := self._places.get(number)) is not None:
                    place.be_read(not isinstance(frame, Pause))
            case Count() | Probe():
                self._question(frame)
            case _:
                self._told(frame)

    def _open(self, number: int, settings: Settings) -> None:
        if number in self._places:
            self.end.drop(f"conversation {number} was opened twice")
            return
        if (fault := self._full()) is not None:
            self.end.send(Broken(number, Failure.of(fault)))
            self.end.send(Left(number))
            return
        assert self._engine is not None
        place = self._places[number] = _Place(number, self.end)
        place.task = self._tasks.create_task(place.hold(self._engine, settings))
        place.task.add_done_callback(lambda _task: self._free(number))

    def _full(self) -> Fault | None:
        """Why there may be no more conversations."""
        if self._engine is None or self._is_draining:
            return _busy("The worker takes no conversations.")
        if self._slots is not None and len(self._places) >= self._slots:
            return _busy("The worker has no place.")
        return None

    def _free(self, number: int) -> None:
        # Not in the task itself: one that is cancelled before its first step runs none of its own code.
        del self._places[number]
        self.end.send(Left(number))
        self._freed(len(self._places))
        self._hang_up_if_drained()

    def _question(self, frame: Count | Probe) -> None:
        if len(self._questions) >= QUESTIONS or self._engine is None:
            self.end.send(Answered(frame.number, failure=Failure.of(_busy("The worker is asked too much."))))
            return
        task = self._tasks.create_task(_answer(frame, self._engine, self.end))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    # The link

    def _hold(self, is_held: bool) -> None:
        """Where the server reads slower than is written, every engine is to wait."""
        for place in self._places.values():
            place.be_held(is_held)

    def _on_lost(self, reason: str) -> None:
        self._leave_all()
        self._lost(reason)

    def _leave_all(self) -> None:
        for place in self._places.values():
            place.leave()
        for task in self._questions:
            task.cancel()


class _Place:
    """
    One conversation.

    Attributes:
        task: holds it.
    """

    def __init__(self, number: int, end: "End[ToWorker]") -> None:
        self.task: asyncio.Task[None] | None = None
        self._number = number
        self._end = end
        self._conversation: Conversation | None = None
        self._leaving = asyncio.Event()
        self._is_behind = False
        self._is_held = False

    async def hold(self, engine: Engine, settings: Settings) -> None:
        """Be in the conversation until it is to be left."""
        try:
            async with engine.open(settings, self._deliver) as conversation:
                self._conversation = conversation
                if self._is_behind or self._is_held:
                    conversation.pause()
                self._end.send(Opened(self._number))
                await self._leaving.wait()
        except Fault as fault:
            self._break(fault)
        except Exception as error:  # a conversation ends here; what is wrong in one must not cost the others
            self._break(OurFault(f"The model's worker failed: {type(error).__name__}."))
        finally:
            self._conversation = None

    def tell(self, words: Sequence[commands.ToEngine]) -> None:
        """Tell the engine."""
        for word in words:
            try:
                if self._conversation is not None:
                    self._conversation.tell(word)
            except EngineOverrun as full:
                self._deliver((overrun(word, full),))

    def leave(self) -> None:
        """Leave the conversation; one that has not begun yet never will."""
        if self._conversation is None and self.task is not None:
            self.task.cancel()
        self._leaving.set()

    def be_read(self, is_read: bool) -> None:
        """Whether the client keeps up."""
        self._be_paused(not is_read, self._is_held)

    def be_held(self, is_held: bool) -> None:
        """Whether the link does not keep up."""
        self._be_paused(self._is_behind, is_held)

    def _be_paused(self, is_behind: bool, is_held: bool) -> None:
        was = self._is_behind or self._is_held
        self._is_behind, self._is_held = is_behind, is_held
        if self._conversation is None or was == (is_behind or is_held):
            return
        if was:
            self._conversation.resume()
        else:
            self._conversation.pause()

    def _deliver(self, words: Sequence[talk_events.FromEngine]) -> None:
        try:
            self._end.send(Said(self._number, tuple(words)))
        except Unsendable as error:
            self._break(OurFault(f"The model's worker said what can't be told: {error}."))

    def _break(self, fault: Fault) -> None:
        self._end.send(Broken(self._number, Failure.of(fault)))


async def _answer(question: Count | Probe, engine: Engine, end: "End[ToWorker]") -> None:
    tokens, failure = 0, None
    try:
        match question:
            case Count(ask=ask):
                tokens = await cast(CountingEngine, engine).count(ask)
            case Probe():
                if isinstance(engine, ProbedEngine):
                    await engine.probe()
    except Fault as fault:
        failure = Failure.of(fault)
    except Exception as error:  # as where a conversation ends
        failure = Failure.of(OurFault(f"The model's worker failed: {type(error).__name__}."))
    end.send(Answered(question.number, tokens, failure))


def _busy(message: str) -> Fault:
    return OurFault(message, status=503, type="service_unavailable_error", code="worker_busy", retry_after_s=2)
