"""
A conversation with an upstream server, whatever its dialect: each `Respond` is a request, its words are what the answer says.

A task for each answer sees to its turn, its connection and its retries, then sleeps until it is over; the words come from the
connection's own callbacks.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, Deliver
from antiphon.engine_api.options import Settings
from antiphon.engines.upstream.client import Upstream
from antiphon.engines.upstream.http_exchange import Exchange
from antiphon.engines.upstream.models import Names
from antiphon.errors import Fault, UpstreamTrouble


class Reading(Protocol):
    """Turns the events of one answer into words."""

    def read(self, events: list[bytes], words: list[talk_events.FromEngine]) -> bool:
        """
        Add to `words` what `events` say; whether the answer is over, its last word added.

        Raises:
            Fault: they make no sense, or say that the answer failed; `words` has what came before.
        """

    def finish(self, words: list[talk_events.FromEngine]) -> bool:
        """Nothing more comes: add the last word if the answer was whole, and say so."""


class Dialect(Protocol):
    """How one kind of server is asked and understood."""

    path: str

    async def request(self, ask: commands.Respond, model: str) -> tuple[bytes, Reading]:
        """
        The body that asks for an answer, and the reading of that answer.

        Raises:
            Fault: it can't be asked so.
        """


class UpstreamEngine:
    """An engine behind which another server answers."""

    def __init__(self, upstream: Upstream, dialect: Dialect, abilities: Abilities) -> None:
        self.abilities = abilities
        self._upstream = upstream
        self._dialect = dialect
        self._conversations: set[_Conversation] = set()
        self._names = Names(upstream)

    async def start(self) -> None:
        """Nothing yet: an upstream that is down must not keep this server down."""

    async def names(self) -> Sequence[str]:
        """The models upstream, asked for anew when a while has passed."""
        return await self._names.get()

    async def stop(self) -> None:
        """Let go of everything; answers under way break."""
        for conversation in tuple(self._conversations):
            conversation.shut()
        self._upstream.close()

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation in which every `Respond` is answered by the upstream."""
        async with asyncio.TaskGroup() as tasks:
            conversation = _Conversation(self._upstream, self._dialect, settings.model, deliver, tasks)
            self._conversations.add(conversation)
            try:
                yield conversation
            finally:
                self._conversations.discard(conversation)
                conversation.hush()


class _Conversation:
    """
    One client's answers, each under way until its one last word.

    Attributes:
        deliver: takes the words.
    """

    def __init__(self, upstream: Upstream, dialect: Dialect, model: str, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self.is_paused = False
        self.upstream = upstream
        self.dialect = dialect
        self.model = model
        self.deliver: Deliver = deliver
        self._tasks = tasks
        self._answers: dict[str, _Answer] = {}

    def tell(self, word: commands.ToEngine) -> None:
        match word:
            case commands.Respond(id=id):
                self.upstream.slots.reserve()
                began = self._answers[id] = _Answer(self, word)
                began.task = self._tasks.create_task(began.get())
                # Not the task's own last act: one that is cancelled before its first step does nothing at all.
                began.task.add_done_callback(lambda _task: self._forget(id))
            case commands.Cancel(id):
                if (answer := self._answers.get(id)) is not None:
                    answer.call_off()
            case commands.Configure() | commands.Hear() | commands.Commit() | commands.Forget() | commands.Foresee():
                pass  # its abilities say that it doesn't listen
            case commands.Converse() | commands.See() | commands.Listen():
                pass  # its abilities say that it does no full duplex

    def pause(self) -> None:
        self.is_paused = True
        for answer in self._answers.values():
            answer.pause()

    def resume(self) -> None:
        self.is_paused = False
        for answer in tuple(self._answers.values()):
            answer.resume()

    def shut(self) -> None:
        """Break every answer: the server stops."""
        for answer in tuple(self._answers.values()):
            answer.fail(UpstreamTrouble("The server is shutting down.", status=503, code="server_is_overloaded"))
            answer.call_off()

    def hush(self) -> None:
        """Say nothing more."""
        self.deliver = lambda _words: None
        for answer in self._answers.values():
            answer.call_off()

    def _forget(self, id: str) -> None:
        self.upstream.slots.release()
        del self._answers[id]


class _Answer:
    """
    One answer: the listener of its exchange.

    Attributes:
        task: sees it through.
    """

    def __init__(self, conversation: _Conversation, ask: commands.Respond) -> None:
        self.ask = ask
        self.task: asyncio.Task[None] | None = None
        self._conversation = conversation
        self._reading: Reading | None = None
        self._exchange: Exchange | None = None
        self._has_begun = False
        self._is_over = False
        self._is_called_off = False

    async def get(self) -> None:
        """Ask, and deliver all that is answered, with exactly one last word."""
        self._has_begun = True
        try:
            if not self._is_called_off:
                await self._request()
        except Fault as fault:
            self.fail(fault)
        except asyncio.CancelledError:
            if not self._is_called_off:
                raise
        if self._is_called_off:
            self._say([talk_events.Ended(self.ask.id, "cancelled")], is_last=True)

    async def _request(self) -> None:
        conversation = self._conversation
        upstream, dialect = conversation.upstream, conversation.dialect
        async with upstream.slots.held():
            body, self._reading = await dialect.request(self.ask, conversation.model)
            await upstream.stream(upstream.request("POST", dialect.path, body), self, self._watch)

    def call_off(self) -> None:
        """Stop; the last word is said by the task."""
        self._is_called_off = True
        if self.task is not None and self._has_begun:
            self.task.cancel()

    def pause(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()

    def fail(self, fault: Fault) -> None:
        """Say that it broke, if it was not over."""
        self._say([talk_events.Broke.by(self.ask.id, fault)], is_last=True)

    # What the exchange says

    def hear(self, events: list[bytes]) -> bool:
        """Words of one read, in one delivery."""
        assert self._reading is not None
        words: list[talk_events.FromEngine] = []
        try:
            is_last = self._reading.read(events, words)
        except Fault:
            self._say(words)
            raise
        if words and not self._is_over:
            self._is_over = is_last
            self._conversation.deliver(words)
        return is_last

    def no_more(self) -> bool:
        """The end, if the answer had one."""
        assert self._reading is not None
        words: list[talk_events.FromEngine] = []
        is_whole = self._reading.finish(words)
        if is_whole:
            self._say(words, is_last=True)
        return is_whole

    def _watch(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._conversation.is_paused:
            exchange.pause()

    def _say(self, words: list[talk_events.FromEngine], *, is_last: bool = False) -> None:
        if words and not self._is_over:
            self._is_over = is_last
            self._conversation.deliver(words)
