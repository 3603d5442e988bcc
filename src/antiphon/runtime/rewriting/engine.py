"""Rewriting around any engine: the answer is a draft until it has been rewritten."""

import asyncio
import contextlib
import contextvars
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import cast

import structlog

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, EngineOverrun, deliver_nowhere, overrun_event
from antiphon.engine_api.fast_path import TextRoute
from antiphon.engine_api.forwarding import ForwardingConversation
from antiphon.engine_api.options import ConversationSettings
from antiphon.runtime.rewriting.ask_model import Reply
from antiphon.runtime.rewriting.draft import Draft
from antiphon.runtime.rewriting.failure import RewriteFailed
from antiphon.runtime.rewriting.rewrites import Answer, Rewrite, Text

DELTA_CHARS = 200
"""A final text is delivered in pieces of about this size."""

CountRewrite = Callable[[str, str], None]
"""Counts a rewrite, by its name and outcome: `completed`, `unchanged` or `failed`."""


class RewritingEngine:
    """
    An engine whose answers are rewritten: those of text, but neither speech nor structured output, which must stay as it
    is to be read by a program.

    Args:
        rewrites: one after another.
        replaces: whether the client can be told a text that takes the place of what it has got; if not, drafts are held.
        only_response_id: the id of the one response to rewrite; None for all.
    """

    def __init__(
        self,
        engine: Engine,
        rewrites: Sequence[Rewrite],
        *,
        replaces: bool,
        only_response_id: str | None = None,
        count: CountRewrite = lambda _name, _outcome: None,
    ) -> None:
        self._engine = engine
        self._rewrites = rewrites
        self._holds = not replaces or any(rewrite.entry.drafts == "hold" for rewrite in rewrites)
        self._only_response_id = only_response_id
        self._count = count

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine behind."""
        return self._engine.capabilities

    async def start(self) -> None:
        """Nothing: the engine behind has been started by its owner."""

    async def stop(self) -> None:
        """Nothing: others use the engine behind."""

    async def count(self, request: commands.Respond) -> int:
        """As the engine behind; to be called only if that one counts."""
        return await cast(CountingEngine, self._engine).count(request)

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        conversation = _RewritingConversation(self, settings, deliver)
        async with asyncio.TaskGroup() as tasks, self._engine.open(settings, conversation.on_events) as inner:
            conversation.begin(tasks, inner)
            try:
                yield conversation
            finally:
                conversation.close()

    def draft_of(self, request: commands.Respond) -> Draft | None:
        """The draft that the request's answer is; None for one that is not rewritten."""
        if request.voice is not None or request.format is not None or self._only_response_id not in (None, request.id):
            return None
        return Draft(self._holds, max(rewrite.entry.max_chars for rewrite in self._rewrites))

    def fitting_rewrites(self, text: str, request: commands.Respond) -> Iterator[Rewrite]:
        """The rewrites that may change the text, judged without doing them."""
        return (rewrite for rewrite in self._rewrites if rewrite.fits(text, request))

    async def rewrite(self, text: Text, rewrites: Sequence[Rewrite], answer: Answer) -> tuple[Text, bool]:
        """The text after all rewrites that worked, and whether all did."""
        has_failed = False
        for rewrite in rewrites:
            name, before = rewrite.entry.name, text
            try:
                # Outside of the time limit: on a busy machine a start alone takes longer than a rule may.
                await rewrite.prepare()
                async with asyncio.timeout(rewrite.entry.deadline_s):
                    text = await rewrite.apply(text, answer)
            except (RewriteFailed, TimeoutError) as error:
                has_failed = True
                reason = "it took too long" if isinstance(error, TimeoutError) else str(error)
                structlog.get_logger().warning("rewrite_failed", rewrite=name, response_id=answer.request.id, reason=reason)
                self._count(name, "failed")
            else:
                self._count(name, "completed" if text.content != before.content else "unchanged")
        return text, not has_failed


class _RewritingConversation(ForwardingConversation):
    def __init__(self, engine: RewritingEngine, settings: ConversationSettings, deliver: Deliver) -> None:
        super().__init__()
        self._engine = engine
        self._settings = settings
        self._deliver: Deliver = deliver
        self._context = contextvars.copy_context()  # Has the request's id for the log; engines deliver in any context.
        self._is_inner_paused = False
        self._tasks: asyncio.TaskGroup | None = None
        self._requests: dict[str, commands.Respond] = {}
        self._drafts: dict[str, Draft] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self._replies: dict[str, Reply] = {}  # Of the model that answered, if it is also the one that rewrites.

    def begin(self, tasks: asyncio.TaskGroup, inner: EngineConversation) -> None:
        self._tasks = tasks
        self.attach(inner)

    def close(self) -> None:
        self._deliver = deliver_nowhere
        self.inner = self._tasks = None
        work, self._work = self._work, {}
        for task in work.values():
            task.cancel()

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.Respond() if (draft := self._engine.draft_of(command)) is not None:
                self._requests[command.id], self._drafts[command.id] = command, draft
                try:
                    super().send(command)
                except EngineOverrun:
                    self._forget(command.id)
                    raise
            case commands.Cancel(id) if (task := self._work.pop(id, None)) is not None:
                task.cancel()
                self._end_early(id)
            case _:
                super().send(command)

    def pause(self) -> None:
        self._is_paused = True
        self._update_pause()

    def resume(self) -> None:
        self._is_paused = False
        self._update_pause()

    def _update_pause(self) -> None:
        """Pause the engine for a slow client, but not while it rewrites: the client gets nothing of that before it is complete."""
        is_paused = self._is_paused and not self._replies
        if self.inner is not None and is_paused is not self._is_inner_paused:
            self._is_inner_paused = is_paused
            (self.inner.pause if is_paused else self.inner.resume)()

    def on_events(self, batch: Sequence[events.EngineEvent]) -> TextRoute | None:
        """Take what the engine behind delivers. Of a text that is to be rewritten it must see each event."""
        if not self._drafts and not self._replies:
            return self._deliver(batch)
        output: list[events.EngineEvent] = []
        for event in batch:
            if (reply := self._replies.get(event.id)) is not None:
                reply.take(event)
                # Only then: the late events of a cancelled reply must not reach the client.
                if reply.is_over:
                    del self._replies[event.id]
                    self._update_pause()
            elif (draft := self._drafts.get(event.id)) is not None:
                output += draft.take(event)
                if draft.end is not None:
                    self._on_draft_end(event.id, draft, output)
                elif isinstance(event, events.ResponseEnded | events.ResponseFailed):
                    self._forget(event.id)
            else:
                output.append(event)
        if output:
            self._deliver(output)
        return None

    def _on_draft_end(self, id: str, draft: Draft, output: list[events.EngineEvent]) -> None:
        rewrites = list(self._engine.fitting_rewrites(draft.text, self._requests[id]))
        if not rewrites:
            output += draft.release()
            output.append(cast(events.ResponseEnded, draft.end))
            self._forget(id)
            return
        assert self._tasks is not None
        output.append(events.RewriteStarted(id))
        self._work[id] = self._tasks.create_task(self._rewrite(id, draft, rewrites), name="rewrite", context=self._context.copy())

    async def _rewrite(self, id: str, draft: Draft, rewrites: Sequence[Rewrite]) -> None:
        usage = draft.usage

        def add_usage(more: events.Usage) -> None:
            nonlocal usage
            # Only if both engines report theirs: half of the sum would pass for the whole.
            usage = None if usage is None else usage.plus(more)

        answer = Answer(request=self._requests[id], settings=self._settings, engine=self._engine, ask=self._ask, add_usage=add_usage)
        before = Text(draft.text, draft.annotations)
        after, has_worked = await self._engine.rewrite(before, rewrites, answer)
        # Before the last event: a tool loop asks again from within it, under the same id (docs/decisions/0055).
        self._work.pop(id, None)
        self._forget(id)
        self._deliver([*_final_events(id, draft, before, after, has_worked), *((usage,) if usage is not None else ()), _end_of(draft)])

    async def _ask(self, request: commands.Respond, reply: Reply) -> str:
        """Ask the engine behind, in this conversation: where workers have one conversation each, there may be no other."""
        self._replies[request.id] = reply
        self._update_pause()
        try:
            super().send(request)
        except EngineOverrun as error:
            reply.take(overrun_event(request, error))
            del self._replies[request.id]
        try:
            return await reply.text
        finally:
            if not reply.is_over:
                with contextlib.suppress(EngineOverrun):
                    super().send(commands.Cancel(request.id))

    def _end_early(self, id: str) -> None:
        """End a response that is cancelled while it is rewritten: with its draft, as any other with what there is of it."""
        draft = self._drafts[id]
        self._forget(id)
        self._deliver([*draft.release(), events.ResponseEnded(id, "cancelled")])

    def _forget(self, id: str) -> None:
        del self._requests[id], self._drafts[id]


def _end_of(draft: Draft) -> events.ResponseEnded:
    assert draft.end is not None
    return draft.end


def _final_events(id: str, draft: Draft, before: Text, after: Text, has_worked: bool) -> Iterator[events.EngineEvent]:
    """The events that give the client the final text, whether or not it has the draft already."""
    status: events.RewriteStatus = "completed" if has_worked else "failed"
    if after.content == before.content:
        yield events.RewriteEnded(id=id, status=status)
        yield from draft.release()
    elif not draft.has_held_events:
        yield events.RewriteEnded(id=id, status=status, text=after.content, annotations=tuple(after.annotations))
        yield from draft.release()
    else:
        yield events.RewriteEnded(id=id, status=status)
        deltas = [events.TextDelta(id, piece) for piece in split_text(after.content)]
        yield from draft.replace([*deltas, *(events.AnnotationAdded(id, annotation) for annotation in after.annotations)])


_PIECE = re.compile(rf".{{1,{DELTA_CHARS}}}(?:\s|\Z)|.{{1,{DELTA_CHARS}}}", re.DOTALL)


def split_text(text: str) -> list[str]:
    """Pieces of a text, which end between words where they can."""
    return _PIECE.findall(text)
