"""A conversation whose requests may each be tried with several engines, one after another."""

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Sequence

import structlog

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver, Engine, EngineConversation, EngineOverrun, deliver_nowhere, overrun_event
from antiphon.engine_api.fast_path import TextRoute
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, UpstreamError, shutting_down
from antiphon.runtime.balancing.failures import STALL_CAUSE, describe_failure

MAX_EVENTS_BEFORE_OUTPUT = 1024
"""After so many events without output, what was held back is passed on, so that it doesn't fill the memory."""

STALL_CHECK_S = 1.0
"""How often another engine is looked for while one says nothing."""

_OUTPUT = (
    events.TextDelta,
    events.RefusalDelta,
    events.ReasoningDelta,
    events.EncryptedReasoning,
    events.AnnotationAdded,
    events.ToolCallStarted,
    events.HostedToolStarted,
    events.HostedToolDone,
    events.AudioDelta,
    events.AudioTranscriptDelta,
    events.CompactionProgress,
)
"""Events after which a response can't be begun again: its client may have seen them."""

Request = commands.Respond | commands.Relay

MayFailOver = Callable[[], bool]
"""Whether another engine would answer at once in the place of one that says nothing."""


class AttemptRun:
    """
    One engine's try to answer a request. It holds back what comes before the first output, and delivers all after it.

    Args:
        on_output: called at the first output; returns what is delivered before it.
        on_end: called when `end` is set.
        holds_all: whether the client reads nothing before the end, so that everything can be held back until then.

    Attributes:
        is_delivered: whether anything was delivered; no other engine may answer then.
        end: the last event; None while there is none. A failure is not delivered unless something was before.
        usage: the latest count of tokens.
        report: of the engine's own tries, if it makes several.
    """

    def __init__(
        self,
        request: Request,
        deliver: Deliver,
        on_output: Callable[["AttemptRun"], Sequence[events.EngineEvent]],
        on_end: Callable[["AttemptRun"], None],
        *,
        holds_all: bool,
    ) -> None:
        self.is_delivered = False
        self.has_output = False
        self.end: events.TerminalEvent | None = None
        self.usage: events.Usage | None = None
        self.report: events.AttemptsReported | None = None
        self._request = request
        self._deliver = deliver
        self._on_output = on_output
        self._on_end = on_end
        self._holds_all = holds_all
        self._before: Sequence[events.EngineEvent] = ()
        self._pending: list[events.EngineEvent] = []
        self._end_signal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.conversation: EngineConversation | None = None

    async def run(
        self, engine: Engine, settings: ConversationSettings, *, is_paused: bool, patience_s: float | None, may_fail_over: MayFailOver
    ) -> events.TerminalEvent:
        """
        Have the engine answer; returns the last event.

        Args:
            is_paused: whether the client is behind.
            patience_s: how long the engine may say nothing before it is left, if `may_fail_over` then; None for as long as
                it takes.
        """
        try:
            async with engine.open(settings, self.on_events) as self.conversation:
                if is_paused:
                    self.conversation.pause()
                try:
                    self.conversation.send(self._request)
                except EngineOverrun as error:
                    self.on_events([overrun_event(self._request, error)])
                await self._wait(patience_s, may_fail_over)
        except ApiError as error:  # it could not be opened
            self._finish(events.ResponseFailed.from_error(self._request.id, error))
        finally:
            self.conversation = None
        assert self.end is not None
        return self.end

    def on_events(self, batch: Sequence[events.EngineEvent]) -> TextRoute | None:
        """Take what the engine delivers. Once that goes straight through, text may take the fast path."""
        # It was left, and another engine may be answering.
        if self.end is not None:
            return None
        if not self.is_delivered:
            batch = self._hold(batch)
            if not batch:
                return None
        last = batch[-1]
        self._note_usage(batch)
        if isinstance(last, events.TerminalEvent) and last.id == self._request.id:
            self._finish(last)  # first: the session may leave as soon as it gets the end
        return self._deliver(batch)

    def _hold(self, batch: Sequence[events.EngineEvent]) -> Sequence[events.EngineEvent]:
        """What of a batch is to be delivered now, with all that was held back if there is any."""
        pending = self._pending
        for place, event in enumerate(batch):
            if event.id != self._request.id:  # of an engine's queue, or an error beside the response
                continue
            match event:
                case events.AttemptsReported():
                    self.report = event
                # Not held back: it makes a stream hold its head, whose headers will name all attempts.
                case events.RetryScheduled():
                    self._deliver((event,))
                case events.ResponseFailed():
                    self._finish(event)
                    return ()
                case events.ResponseEnded():
                    self._note_output()
                    return self._release(event)
                case _ if is_output(event) or len(pending) > MAX_EVENTS_BEFORE_OUTPUT:
                    self._note_output()
                    if not self._holds_all:
                        return self._release(*batch[place:])
                    pending.append(event)
                case _:
                    pending.append(event)
        self._note_usage(batch)
        return ()

    def _release(self, *rest: events.EngineEvent) -> Sequence[events.EngineEvent]:
        self.is_delivered = True
        pending, self._pending = self._pending, []
        self._note_usage(pending)
        self._note_usage(rest)
        return [*self._before, *pending, *rest]

    def _note_output(self) -> None:
        if not self.has_output:
            self.has_output = True
            self._before = self._on_output(self)

    def _note_usage(self, batch: Sequence[events.EngineEvent]) -> None:
        for event in batch:
            if type(event) is events.Usage:
                self.usage = event

    def _finish(self, end: events.TerminalEvent) -> None:
        if self.end is None:
            self.end = end
            self._on_end(self)
        if not self._end_signal.done():
            self._end_signal.set_result(None)

    def _is_silent(self) -> bool:
        return self.end is None and not self.has_output

    async def _wait(self, patience_s: float | None, may_fail_over: MayFailOver) -> None:
        while patience_s is not None and self._is_silent():
            await asyncio.wait({self._end_signal}, timeout=patience_s)
            # Asked last, as `may_fail_over` pays for the next try.
            if self._is_silent() and may_fail_over():
                message = "The model server did not begin to answer in time."
                error = UpstreamError(message, status=504, code="upstream_timeout")
                error.cause = STALL_CAUSE
                self._finish(events.ResponseFailed.from_error(self._request.id, error))
            patience_s = STALL_CHECK_S
        await self._end_signal


def is_output(event: events.EngineEvent) -> bool:
    """Whether the client of a response sees this event as the beginning of its output."""
    if isinstance(event, events.TextDelta | events.ReasoningDelta | events.RefusalDelta):
        return bool(event.text)
    if isinstance(event, events.RelayData):
        return _has_content(event.data)
    return isinstance(event, _OUTPUT)


def _has_content(data: bytes) -> bool:
    """Whether relayed data is more than the empty chunk with the role that a chat completion begins with."""
    # The empty first chunk is short, and parsing a long one only for this would cost too much.
    if len(data) > 4096:
        return True
    try:
        choices = json.loads(data)["choices"]
        return any(_choice_has_content(choice) for choice in choices)
    except (ValueError, KeyError, TypeError, AttributeError):
        return True


def _choice_has_content(choice: dict[str, object]) -> bool:
    delta = choice["delta"]
    if not isinstance(delta, dict) or choice.get("finish_reason") is not None:
        return True
    return any(value for name, value in delta.items() if name != "role")


_is_within_another: contextvars.ContextVar[bool] = contextvars.ContextVar("_is_within_another", default=False)
"""Whether a try of a request is under way here: what an engine that answers it has asked is part of that one's log."""


class BalancedRequest:
    """
    One request, and the tries to answer it. Delivers exactly one last event.

    Attributes:
        attempts: those that are over, and at the end who answered.
        fallback_reason: why another model is asked; empty if none is.
    """

    def __init__(self, conversation: "RoutedConversation", command: Request) -> None:
        self.command = command
        self.settings = conversation.settings
        self.attempts: list[events.Attempt] = []
        self.fallback_reason = ""
        self.task: asyncio.Task[None] | None = None
        self._conversation = conversation
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._try: AttemptRun | None = None
        self._has_begun = self._is_over = self._is_cancelled = False
        self._is_logged = not _is_within_another.get()

    async def run(self) -> None:
        self._has_begun = True
        try:
            # A task that is cancelled before its first step never runs, so `cancel` leaves it to this line to end the request.
            if not self._is_cancelled:
                await self._conversation.answer(self)
        except ApiError as error:
            self.fail(events.ResponseFailed.from_error(self.command.id, error))
            error.__traceback__ = None  # its frames refer to the error
        except asyncio.CancelledError:
            # It was not the client: the whole conversation is being closed, and delivers nothing more.
            if not self._is_cancelled:
                raise
        if self._is_cancelled:
            self._emit([events.ResponseEnded(self.command.id, "cancelled")], is_last=True)

    async def attempt(
        self,
        engine: Engine,
        settings: ConversationSettings,
        command: Request,
        names: tuple[str, str],
        on_output: Callable[[float], None] = lambda _duration_s: None,
        on_end: Callable[[AttemptRun], None] = lambda _try: None,
        patience_s: float | None = None,
        may_fail_over: MayFailOver = lambda: False,
    ) -> AttemptRun:
        """
        Have an engine try to answer.

        Args:
            names: of the model, and of its upstream.
            on_output: called at the first output, with the seconds that it took.
            on_end: called at the end of the try, unless it is cancelled.
            patience_s: see `AttemptRun.run`.
        """
        began_at = self._loop.time()

        def report(one: AttemptRun) -> Sequence[events.EngineEvent]:
            on_output(self._loop.time() - began_at)
            self._add(one, names, "ok", began_at)
            return [self._report()]

        holds_all = command.whole if isinstance(command, commands.Respond) else not command.stream
        one = self._try = AttemptRun(command, self._deliver, report, on_end, holds_all=holds_all)
        token = _is_within_another.set(True)
        try:
            end = await one.run(
                engine, settings, is_paused=self._conversation.is_paused, patience_s=patience_s, may_fail_over=may_fail_over
            )
        finally:
            self._try = None
            _is_within_another.reset(token)
        if one.is_delivered:
            self._is_over = True
        elif isinstance(end, events.ResponseFailed):
            if one.has_output:  # it was to be held back until its end: what came of it is thrown away
                del self.attempts[-1 if one.report is None else -len(one.report.attempts) :]
            self._add(one, names, describe_failure(end), began_at)
        return one

    def fail(self, failure: events.ResponseFailed) -> None:
        """Deliver the failure: no engine is left that may answer."""
        self._emit([self._report(), failure] if self.attempts else [failure], is_last=True)

    def report_retry(self) -> None:
        """Deliver that another engine is asked."""
        self._emit([events.RetryScheduled(self.command.id)])

    def cancel(self) -> None:
        """Stop; a running try delivers the last event, or else the task does."""
        # Its client has seen a part of the answer, which its engine ends in order.
        if self._try is not None and self._try.conversation is not None and self._try.is_delivered:
            self._try.conversation.send(commands.Cancel(self.command.id))
            return
        self._is_cancelled = True
        if self.task is not None and self._has_begun:
            self.task.cancel()

    def pause(self) -> None:
        if self._try is not None and self._try.conversation is not None:
            self._try.conversation.pause()

    def resume(self) -> None:
        if self._try is not None and self._try.conversation is not None:
            self._try.conversation.resume()

    def _add(self, one: AttemptRun, names: tuple[str, str], outcome: str, began_at: float) -> None:
        started_ms = round((began_at - self._started_at) * 1000)
        if one.report is not None:  # the engine's own tries, counted from the beginning of this one
            self.attempts += [
                events.Attempt(each.model, each.upstream, each.outcome, started_ms + each.started_ms, each.duration_ms)
                for each in one.report.attempts
            ]
            return
        model, upstream = names
        self.attempts.append(events.Attempt(model, upstream, outcome, started_ms, round((self._loop.time() - began_at) * 1000)))

    def _report(self) -> events.AttemptsReported:
        if len(self.attempts) > 1 and self._is_logged:
            self._log()
        return events.AttemptsReported(id=self.command.id, attempts=tuple(self.attempts), fallback_reason=self.fallback_reason)

    def _log(self) -> None:
        """Say who was asked, why each did not answer, and when and how long that took."""
        attempts = [
            f"{'/'.join(filter(None, (each.model, each.upstream)))}={each.outcome} t={each.started_ms}+{each.duration_ms}ms"
            for each in self.attempts
        ]
        fallback = {"fallback": self.fallback_reason} if self.fallback_reason else {}
        log = structlog.get_logger().info
        self._conversation.context.run(log, "answered_by", response_id=self.command.id, attempts="; ".join(attempts), **fallback)

    def _deliver(self, batch: Sequence[events.EngineEvent]) -> TextRoute | None:
        return None if self._is_over else self._conversation.deliver(batch)

    def _emit(self, batch: Sequence[events.EngineEvent], *, is_last: bool = False) -> None:
        if not self._is_over:
            self._is_over = is_last
            self._conversation.deliver(batch)


class RoutedConversation:
    """
    A conversation that has each of its requests answered by `answer`.

    Attributes:
        settings: that it was opened with.
        context: of who opened it, with the id of the request: engines deliver in any.
        is_paused: whether the client is behind.
    """

    def __init__(
        self,
        settings: ConversationSettings,
        deliver: Deliver,
        tasks: asyncio.TaskGroup,
        answer: Callable[[BalancedRequest], Awaitable[None]],
    ) -> None:
        self.settings = settings
        self.context = contextvars.copy_context()
        self.is_paused = False
        self.deliver: Deliver = deliver
        self.answer = answer
        self._tasks = tasks
        self._requests: dict[str, BalancedRequest] = {}

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.Respond(id=id) | commands.Relay(id=id):
                request = self._requests[id] = BalancedRequest(self, command)
                request.task = self._tasks.create_task(request.run())
                # A callback, as a task that is cancelled before its first step runs none of its own clean-up.
                request.task.add_done_callback(lambda _task: self._forget(request))
            case commands.Cancel(id):
                if (request_to_cancel := self._requests.get(id)) is not None:
                    request_to_cancel.cancel()
            case commands.Configure() | commands.AppendAudio() | commands.CommitAudio() | commands.ClearAudio() | commands.Prepare():
                pass  # engines with several upstreams have no audio input
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen():
                pass  # nor do they take pictures or live audio

    def _forget(self, request: BalancedRequest) -> None:
        if self._requests.get(request.command.id) is request:  # else the same response goes on with another turn
            del self._requests[request.command.id]

    def pause(self) -> None:
        self.is_paused = True
        for request in self._requests.values():
            request.pause()

    def resume(self) -> None:
        self.is_paused = False
        for request in tuple(self._requests.values()):
            request.resume()

    def abort(self) -> None:
        """Fail every response: the engine stops."""
        for request in tuple(self._requests.values()):
            request.fail(events.ResponseFailed.from_error(request.command.id, shutting_down()))
            request.cancel()

    def close(self) -> None:
        """Cancel every response, and deliver nothing more."""
        # First, as a task that is cancelled may still deliver something.
        self.deliver = deliver_nowhere
        for request in self._requests.values():
            if request.task is not None:
                request.task.cancel()
