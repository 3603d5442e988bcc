"""
Compaction for engines that have none: before a response, the engine itself writes a summary of a conversation that has
become too long, and then answers from that.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import cast

import structlog
from msgspec import structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, Engine, EngineConversation, EngineOverrun, overrun_event
from antiphon.engine_api.fast_path import TextRoute
from antiphon.engine_api.options import ConversationSettings, Sampling, ToolChoice
from antiphon.engine_api.token_estimate import BYTES_PER_TOKEN, estimate_input_tokens
from antiphon.engine_api.truncation import drop_oldest, output_room
from antiphon.errors import ApiError, UpstreamError
from antiphon.offload import offload
from antiphon.protocols.responses.compaction import SUMMARY_PROMPT, CompactionPlan
from antiphon.protocols.responses.session import Encrypt
from antiphon.runtime.core.ids import new_id

MAX_SUMMARY_CHARACTERS = 1 << 20
"""A model that writes more does not stop by itself."""


class CompactingEngine:
    """
    An engine whose conversation is compacted as a plan says, for one response.

    Args:
        encrypt: makes the content of the compaction item, which the client gets.
    """

    def __init__(self, engine: Engine, plan: CompactionPlan, encrypt: Encrypt) -> None:
        self._engine = engine
        self._plan = plan
        self._encrypt = encrypt

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine that is wrapped."""
        return self._engine.capabilities

    async def start(self) -> None:
        """Nothing to do: the engine behind has started."""

    async def stop(self) -> None:
        """Nothing to do: others use the engine behind."""

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        conversation = _CompactingConversation(self._engine, self._plan, self._encrypt, deliver)
        async with asyncio.TaskGroup() as tasks, self._engine.open(settings, conversation.on_events) as inner:
            conversation.begin(tasks, inner)
            try:
                yield conversation
            finally:
                conversation.close()


class _SummaryFailed(Exception):
    """There is no summary; `failure` says why, of the response that was to be one."""

    def __init__(self, failure: events.ResponseFailed) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Summary:
    """
    A summary that the engine writes.

    Attributes:
        text: set at its end, or raises `_SummaryFailed`.
        has_ended: whether the engine writes no more.
    """

    def __init__(self, request: commands.Respond) -> None:
        self.request = request
        self.usage: events.Usage | None = None
        self.text: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.has_ended = False
        self._chunks: list[str] = []
        self._size = 0

    def take(self, event: events.EngineEvent) -> None:
        self.has_ended = self.has_ended or isinstance(event, events.TerminalEvent)
        match event:
            case events.TextDelta(_, text) if not self.text.done():
                self._chunks.append(text)
                self._size += len(text)
                if self._size > MAX_SUMMARY_CHARACTERS:
                    self._fail("the model does not stop writing its summary")
            case events.Usage():
                self.usage = event
            case events.ResponseEnded(_, "stop"):
                self._end("".join(self._chunks).strip())
            # A summary that was cut off is an error: what it leaves out would be lost (docs/decisions/0027).
            case events.ResponseEnded(_, reason):
                self._fail(f"the model did not finish its summary ({reason})")
            case events.ResponseFailed() if not self.text.done():
                self.text.set_exception(_SummaryFailed(event))

    def _end(self, text: str) -> None:
        if not text:
            self._fail("the model wrote no summary")
        elif not self.text.done():
            self.text.set_result(text)

    def _fail(self, reason: str) -> None:
        if not self.text.done():
            failure = events.ResponseFailed.from_error(self.request.id, UpstreamError(f"{reason}.", code="server_error"))
            self.text.set_exception(_SummaryFailed(failure))


class _CompactingConversation:
    def __init__(self, engine: Engine, plan: CompactionPlan, encrypt: Encrypt, deliver: Deliver) -> None:
        self._engine = engine
        self._plan = plan
        self._encrypt = encrypt
        self._deliver = deliver
        self._tasks: asyncio.TaskGroup | None = None
        self._inner: EngineConversation | None = None
        self._response_id = ""
        self._item_id = new_id("cmp")
        self._work: asyncio.Task[None] | None = None
        self._summary: _Summary | None = None

    def begin(self, tasks: asyncio.TaskGroup, inner: EngineConversation) -> None:
        self._tasks, self._inner = tasks, inner

    def close(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def pause(self) -> None:
        assert self._inner is not None
        self._inner.pause()

    def resume(self) -> None:
        assert self._inner is not None
        self._inner.resume()

    def send(self, command: commands.EngineCommand) -> None:
        assert self._inner is not None and self._tasks is not None
        match command:
            case commands.Respond():
                self._work = self._tasks.create_task(self._prepare(command), name="compaction")
            case commands.Cancel(id) if self._work is not None and not self._work.done():
                self._work.cancel()
                if self._summary is not None:
                    # The engine knows the summary's request only, not the client's.
                    self._send(commands.Cancel(self._summary.request.id))
                self._deliver((events.ResponseEnded(id, "cancelled"),))
            case _:
                self._inner.send(command)

    def on_events(self, batch: Sequence[events.EngineEvent]) -> TextRoute | None:
        """Take what the engine behind delivers. Behind a summary it must see each event."""
        if (summary := self._summary) is None:
            return self._deliver(batch)
        if output := [other for event in batch if (other := self._translate(event, summary)) is not None]:
            self._deliver(output)
        return None

    def _translate(self, event: events.EngineEvent, summary: _Summary) -> events.EngineEvent | None:
        """What the client's session gets to know of an event; None for nothing."""
        if getattr(event, "id", None) != summary.request.id:
            return event.plus(summary.usage) if isinstance(event, events.Usage) else event
        summary.take(event)
        match event:
            case events.TextDelta() | events.ReasoningDelta():
                return events.CompactionProgress(self._response_id, self._item_id)
            case events.RetryScheduled():
                return events.RetryScheduled(self._response_id)
            case events.Usage():  # it counts though the response may fail
                return structs.replace(event, id=self._response_id)
            case _:
                return None

    async def _prepare(self, request: commands.Respond) -> None:
        """Compact the conversation if it is too long, and have the response made."""
        self._response_id = request.id
        plan, tokens = self._plan, 0
        if not plan.is_requested:
            if await self._is_short(request, plan.threshold) or (tokens := await self._count(request)) <= plan.threshold:
                self._send(request)
                return
        try:
            summary = await self._summarize(request)
            content = await offload(len(summary), self._encrypt, plan.content(summary))
            if content is None:
                raise _SummaryFailed(events.ResponseFailed(id=request.id, message="The summary is too long."))
        except _SummaryFailed as error:
            self._on_failure(request, error.failure, tokens)
            return
        item = {"id": self._item_id, "type": "compaction", "encrypted_content": content}
        # Only now: if the summary had failed, an item that was added could not be taken back (docs/decisions/0032).
        self._deliver(
            (
                events.ItemBoundary(request.id, self._item_id),
                events.HostedToolStarted(request.id, item),
                events.HostedToolDone(request.id, item),
            )
        )
        if plan.is_requested:
            self._deliver((events.ResponseEnded(request.id),))
        else:
            self._send(structs.replace(request, history=plan.history(summary)))

    async def _summarize(self, request: commands.Respond) -> str:
        """The summary of the request's conversation; raises `_SummaryFailed`."""
        summary = self._summary = _Summary(await self._summary_request(request))
        self._send(summary.request)
        try:
            return await summary.text
        except _SummaryFailed:
            if not summary.has_ended:  # it is too long
                self._send(commands.Cancel(summary.request.id))
            raise

    async def _summary_request(self, request: commands.Respond) -> commands.Respond:
        prompt = history.Message("user", (history.TextPart(SUMMARY_PROMPT),))
        summary_request = commands.Respond(
            id=new_id("resp"),
            history=(*request.history, prompt),
            size_bytes=request.size_bytes,
            instructions=request.instructions,
            sampling=Sampling(),
            tool_choice=ToolChoice(),
            truncate=self._engine.capabilities.truncation,
            reasoning_effort=request.reasoning_effort,
            whole=request.whole,
            out_of_band=True,
        )
        return await self._fit(summary_request)

    async def _fit(self, request: commands.Respond) -> commands.Respond:
        """
        The request without the oldest turns, where it is longer than the context window. An earlier summary stays: it is
        all that is left of what it stands for.
        """
        window = self._engine.capabilities.context_window
        limit = None if window is None else window - output_room(request, window)
        if limit is None or await self._is_short(request, limit) or await self._count(request) <= limit:
            return request
        head, rest = request.history[: self._plan.head_count], request.history[self._plan.head_count :]
        measure = lambda rest: self._count(structs.replace(request, history=(*head, *rest)))  # noqa: E731
        shorter = await drop_oldest(rest, measure, lambda tokens: tokens, limit)
        return request if shorter is None else structs.replace(request, history=(*head, *shorter[0]))

    async def _is_short(self, request: commands.Respond, limit: int) -> bool:
        """Whether the request needs not be counted: a token has a byte at least."""
        return await offload(request.size_bytes, estimate_input_tokens, request) * BYTES_PER_TOKEN <= limit

    async def _count(self, request: commands.Respond) -> int:
        if self._engine.capabilities.counts_tokens:
            with contextlib.suppress(ApiError):
                return await cast(CountingEngine, self._engine).count(request)
        return await offload(request.size_bytes, estimate_input_tokens, request)

    def _on_failure(self, request: commands.Respond, failure: events.ResponseFailed, tokens: int) -> None:
        """Go on with the whole conversation if the model may read it, or else fail."""
        window = self._engine.capabilities.context_window
        structlog.get_logger().warning("compaction_failed", response_id=request.id, message=failure.message)
        if not self._plan.is_requested and (request.truncate or window is None or tokens < window):
            self._send(request)
            return
        message = f"The conversation could not be compacted: {failure.message}"
        self._deliver((structs.replace(failure, id=request.id, message=message),))

    def _send(self, command: commands.EngineCommand) -> None:
        assert self._inner is not None
        try:
            self._inner.send(command)
        except EngineOverrun as error:
            self.on_events((overrun_event(command, error),))
