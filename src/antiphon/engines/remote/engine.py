"""
An engine at the other end of a link: in a child of the server, or on another machine.

What is told crosses the link as it is; what the other end says is delivered from the connection's own callback. A worker that is gone says
no last words, so they are said here: `Broke` for every answer under way, then `Lost`.

`docs/reference/engine-worker.md` says how a model gets its workers.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec import msgpack

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, Deliver, EngineOverrun, Place
from antiphon.engine_api.options import Settings
from antiphon.engines.remote.link import End
from antiphon.errors import ClientMistake, Fault, OurFault, UpstreamTrouble, listed
from antiphon.subprocesses import settle
from antiphon.wire.internal.worker_link import (
    Answered,
    Beat,
    Broken,
    Count,
    Dismissed,
    Drain,
    Failed,
    FromWorker,
    Hello,
    Leave,
    Left,
    Noticed,
    Open,
    Opened,
    Pause,
    Probe,
    Resume,
    Said,
    Told,
    Undrain,
    Unsendable,
    from_worker,
)

OPENING_S = 120.0
"""How long a worker may take to begin a conversation; one that has to load its model anew takes a minute."""

LEAVING_S = 15.0
"""How long it may take to leave one; then nobody knows what it is doing, and it gets nothing more to do."""

ANSWERING_S = 20.0
"""How long it may take to answer a question."""

BACKLOG_LIMIT_BYTES = 8 << 20
"""With so much waiting for the worker it is told nothing more."""

UNHEEDED_LIMIT_BYTES = 16 << 20
"""The most that a worker says in a conversation that it was told to pause: some was on its way, and the rest has to wait somewhere."""

_ALOUD = (talk_events.Text, talk_events.Spoken, talk_events.Sound)
"""Words with which an engine in full duplex begins to say something."""


def build(model: str, options: Mapping[str, Any], _place: Place) -> "Awaited":
    """
    What stands for a model whose workers join.

    Raises:
        OurFault: it has options, which are the workers' to have.
    """
    if options:
        raise OurFault(f"Model '{model}' has {listed(sorted(options))}; the engine 'worker' has no options: its workers bring them.")
    return Awaited(model)


class Awaited:
    """A model none of whose workers has joined; those that do are given out by the server's coordinator."""

    def __init__(self, model: str) -> None:
        self.abilities = Abilities()
        self._model = model

    async def start(self) -> None:
        """Workers come when they come."""

    async def stop(self) -> None:
        """There is nothing to let go of."""

    def open(self, settings: Settings, deliver: Deliver) -> AbstractAsyncContextManager[Conversation]:
        """
        No conversation.

        Raises:
            OurFault: nobody is there.
        """
        raise unavailable(f"No worker of the model '{self._model}' has joined. Please try again later.")


class RemoteEngine:
    """
    An engine at the other end of a link.

    Args:
        gone: called once with the reason, when the worker is gone, after every conversation has been told.
        drained: called when the worker says of its own accord that it takes no more conversations.
        notice: takes lines for the operator.

    Attributes:
        abilities: of the engine there, once it has said hello.
        is_draining: whether it takes no more conversations, by its own will or by an operator's.
        is_ending: whether it said that it goes when it has none.
        end: this end of the link, for whatever carries it.
    """

    def __init__(
        self,
        gone: Callable[[str], None] = lambda _reason: None,
        drained: Callable[[], None] = lambda: None,
        notice: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.abilities = Abilities()
        self.end: End[FromWorker] = End(from_worker, self._take, self._lost)
        self._gone = gone
        self._drained = drained
        self._notice = notice
        self._numbers = itertools.count(1)
        self._greeting: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._conversations: dict[int, _Conversation] = {}
        self._questions: dict[int, asyncio.Future[int]] = {}
        self._is_stopping = False
        self.is_draining = False
        self.is_ending = False

    async def greeted(self, patience_s: float | None = None) -> Hello:
        """
        What the worker says it is, once it does.

        Raises:
            Fault: it can't be had; why it says itself.
        """
        try:
            async with asyncio.timeout(patience_s):
                return await asyncio.shield(self._greeting)
        except TimeoutError:
            raise unavailable("The worker did not say what it is.") from None

    # As an operator's

    @property
    def silent_s(self) -> float:
        """For how long nothing has been heard of it."""
        return self.end.silent_s

    def drain(self) -> None:
        """Tell it to take no more conversations, unless it has said so itself."""
        if not self.is_draining:
            self.is_draining = True
            self.end.send(Drain())

    def resume(self) -> None:
        """Tell it to take conversations again; one that is ending takes none."""
        if self.is_draining and not self.is_ending:
            self.is_draining = False
            self.end.send(Undrain())

    def dismiss(self) -> None:
        """Tell it to go when it has no conversations."""
        self.end.send(Dismissed())

    # As an engine

    async def start(self) -> None:
        """Wait for it to be there."""
        await self.greeted()

    async def stop(self) -> None:
        """Break what is being answered and hang up."""
        self._is_stopping = True
        for conversation in tuple(self._conversations.values()):
            conversation.lose(_stopping(), "shutdown")
        self.end.drop("the server is stopping")

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation at the other end; this returns when the engine there has left it."""
        if self.end.is_over:
            raise _is_gone()
        number = next(self._numbers)
        conversation = self._conversations[number] = _Conversation(number, self.end, deliver)
        try:
            self.end.send(Open(number, settings))
            await conversation.begun(OPENING_S)
            yield conversation
        finally:
            await self._leave(conversation)

    async def count(self, ask: commands.Respond) -> int:
        """
        The tokens that the engine there would read `ask` as.

        Raises:
            Fault: they can't be counted.
        """
        return await self._asked(lambda number: Count(number, ask))

    async def probe(self) -> None:
        """
        See whether the engine there is well.

        Raises:
            Fault: it is not, or says nothing.
        """
        await self._asked(Probe)

    async def _asked(self, question: Callable[[int], Count | Probe]) -> int:
        if self.end.is_over:
            raise _is_gone()
        number = next(self._numbers)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self.end.send(question(number))
            async with asyncio.timeout(ANSWERING_S):
                return await answer
        except TimeoutError:
            raise UpstreamTrouble("The model's worker did not answer in time.", status=504, code="upstream_timeout") from None
        except Unsendable as error:
            raise _unsendable(error) from None
        finally:
            del self._questions[number]

    async def _leave(self, conversation: "_Conversation") -> None:
        conversation.hush()
        self.end.send(Leave(conversation.number))
        if not await _outlasting(conversation.left, LEAVING_S):
            # What it does with the place nobody knows, so nobody is to have it next.
            self.end.drop("a conversation was not left in time")
        self._conversations.pop(conversation.number, None)

    # What the worker says

    def _take(self, frame: FromWorker) -> None:
        match frame:
            case Said(number, words):
                if (conversation := self._conversations.get(number)) is not None:
                    conversation.hear(words)
            case Opened() | Broken() | Left():
                self._move(frame)
            case Answered(number, tokens, failure):
                if (answer := self._questions.get(number)) is not None:
                    settle(answer, tokens if failure is None else failure.fault())
            case _:
                self._learn(frame)

    def _learn(self, frame: Beat | Hello | Failed | Noticed | Drain) -> None:
        """The worker says something of itself."""
        match frame:
            case Beat():
                pass
            case Hello():
                self.abilities, self.is_draining = frame.abilities, frame.is_draining
                self.end.begin_beating()
                settle(self._greeting, frame)
            case Failed(failure):
                settle(self._greeting, failure.fault())
            case Noticed(line):
                self._notice(line)
            case Drain():
                self.is_ending = True
                if not self.is_draining:
                    self.is_draining = True
                    self._drained()

    def _move(self, frame: Opened | Broken | Left) -> None:
        """A conversation begins, breaks off or is left."""
        conversation = self._conversations.get(frame.number)
        if conversation is None:
            return
        match frame:
            case Opened():
                settle(conversation.opened, None)
            case Broken(failure=failure):
                conversation.lose(failure.fault(), "backend_error")
            case Left():
                conversation.lose(_is_gone(), "backend_error")  # where it had not been asked to leave
                settle(conversation.left, None)

    def _lost(self, reason: str) -> None:
        fault = _stopping() if self._is_stopping else _is_gone()
        settle(self._greeting, fault)
        for conversation in tuple(self._conversations.values()):
            conversation.lose(fault, "shutdown" if self._is_stopping else "backend_error")
            settle(conversation.left, None)
        for answer in self._questions.values():
            settle(answer, fault)
        self._gone(reason)


class _Conversation:
    """
    A conversation, as far as it is on this end.

    Attributes:
        opened: done when it has begun at the other end, or never will.
        left: done when the engine at the other end has left it.
    """

    def __init__(self, number: int, end: "End[FromWorker]", deliver: Deliver) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.opened: asyncio.Future[None] = loop.create_future()
        self.left: asyncio.Future[None] = loop.create_future()
        self._end = end
        self._deliver = deliver
        self._under_way: dict[str, None] = {}
        self._is_duplex = False
        self._is_lost = False
        self._is_hushed = False
        self._is_paused = False
        self._unheeded_bytes = 0

    async def begun(self, patience_s: float) -> None:
        """
        Wait until it has begun.

        Raises:
            Fault: it can't, or did not in time.
        """
        try:
            async with asyncio.timeout(patience_s):
                await self.opened
        except TimeoutError:
            raise UpstreamTrouble("The model's worker did not begin in time.", status=504, code="upstream_timeout") from None

    def tell(self, word: commands.ToEngine) -> None:
        if self._is_lost:
            self._refuse(word, _is_gone())
            return
        is_asking = not isinstance(word, commands.Cancel)
        if is_asking and self._end.waiting_bytes > BACKLOG_LIMIT_BYTES:
            raise EngineOverrun("its worker is behind with reading")
        try:
            self._end.send(Told(self.number, (word,)))
        except Unsendable as error:
            self._refuse(word, _unsendable(error))
            return
        if isinstance(word, commands.Respond):
            self._under_way[word.id] = None
        elif isinstance(word, commands.Converse):
            self._is_duplex = True

    def pause(self) -> None:
        self._is_paused, self._unheeded_bytes = True, 0
        self._end.send(Pause(self.number))

    def resume(self) -> None:
        self._is_paused = False
        self._end.send(Resume(self.number))

    def hear(self, words: tuple[talk_events.FromEngine, ...]) -> None:
        """Deliver what the engine says."""
        if self._is_lost or self._is_hushed or not words:
            return
        if self._is_paused:
            self._unheeded_bytes += sum(map(_size_bytes, words))
            if self._unheeded_bytes > UNHEEDED_LIMIT_BYTES:
                self.lose(UpstreamTrouble("The model's worker goes on though it was told to wait."), "backend_error")
                return
        for word in words:
            if isinstance(word, talk_events.Ended | talk_events.Broke):
                self._under_way.pop(word.id, None)
            elif self._is_duplex and isinstance(word, _ALOUD):
                self._under_way[word.id] = None
        self._deliver(words)

    def lose(self, fault: Fault, code: str) -> None:
        """There is nothing at the other end any more; said at once."""
        if self._is_lost:
            return
        self._is_lost = True
        if not self.opened.done():
            settle(self.opened, fault)
            return
        if not self._is_hushed:
            broke = [talk_events.Broke.by(id, fault) for id in self._under_way]
            self._deliver((*broke, talk_events.Lost(code=code, message=fault.message)))

    def hush(self) -> None:
        """Deliver nothing more."""
        self._is_hushed = True
        self.opened.cancel()

    def _refuse(self, word: commands.ToEngine, fault: Fault) -> None:
        """Answer what nobody else can; not from within `tell`."""
        if isinstance(word, commands.Respond):
            asyncio.get_running_loop().call_soon(self._say, talk_events.Broke.by(word.id, fault))

    def _say(self, word: talk_events.FromEngine) -> None:
        if not self._is_hushed:
            self._deliver((word,))


def _size_bytes(word: talk_events.FromEngine) -> int:
    return len(msgpack.encode(word))


async def _outlasting(future: "asyncio.Future[None]", patience_s: float) -> bool:
    """Wait for a future, also through being cancelled, which goes on afterwards; whether it came."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    cancelled: asyncio.CancelledError | None = None
    while not future.done() and (left_s := until - loop.time()) > 0:
        try:
            await asyncio.wait((future,), timeout=left_s)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return future.done()


def unavailable(message: str, retry_after_s: float = 2) -> Fault:
    """Nobody is there to answer now, but soon may be."""
    return OurFault(message, status=503, type="service_unavailable_error", code="server_is_overloaded", retry_after_s=retry_after_s)


def _is_gone() -> Fault:
    return OurFault("The model's worker is gone. Please try again.", status=503, type="server_error", code="server_error", retry_after_s=2)


def _stopping() -> Fault:
    return OurFault("The server is stopping.", status=503, type="server_error", code="server_is_overloaded")


def _unsendable(error: Unsendable) -> Fault:
    return ClientMistake(f"The model's worker can't be asked that: {error}.", code="invalid_value", status=400)
