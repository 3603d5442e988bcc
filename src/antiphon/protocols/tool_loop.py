"""
The turns of a response whose model calls tools that the server runs: the model asks, the server does it, and the model
goes on, until it answers or needs the client.

A loop stands between an engine's events and the output machine of the session that has it. It keeps back the calls that
are the server's, has them run when the model's turn is over, shows the tools' items one after another, and asks the
model again with what it called and what came of it. It works for every protocol: what a session does with items is its
own.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, field, structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import FunctionTool, ToolChoice
from antiphon.protocols.citations import CitationWriter
from antiphon.protocols.output import OutputItem, OutputMachine
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.session import CallTool, FromTool, NewId, PrepareTools, SendToEngine, ToolFailed, ToolsReady
from antiphon.tool_api import ApprovalRequired, ImageTokens, ServerFunction, ServerToolCall, ServerTools, ToolEvent, ToolOutput, ToolsListed


class LoopLimits(Struct, frozen=True, kw_only=True):
    """
    The limits of one response.

    Attributes:
        calls: the most calls that are run.
        calls_field: what sets that limit, for the model to read.
        turns: the most times that the model is asked; the last time it can call none of the server's tools.
        parallel: the most calls that run at once.
        output_chars: of the results of all calls; when they have more, no further calls are run.
        infers_citations: whether an answer in which the model cites nothing is cited by its words.
    """

    calls: int = 128
    calls_field: str = "tools.calls"
    turns: int = 32
    parallel: int = 8
    output_chars: int = 2_000_000
    infers_citations: bool = True


class ApprovedCall(Struct, frozen=True):
    """
    A call that the user has approved: it is run before the model is asked, and its result is in the history by its id.

    Attributes:
        name: of the function.
    """

    approval_request_id: str
    name: str
    arguments: str
    server_label: str


LoopStep: TypeAlias = events.EngineEvent | SendToEngine | CallTool | PrepareTools
"""
An event for the output machine, or an effect for the driver. Whoever takes steps gives each event to the output machine
before it takes the next: the loop looks at what is open there.
"""

_CallState = Literal["written", "running", "over"]


class _Call(Struct):
    """
    A call of the model.

    Attributes:
        id: that it has in the history, and by which its tool's events are told from others'.
        held: what its tool said while another one's items were shown.
    """

    id: str
    function: FunctionTool
    chunks: list[str] = field(default_factory=list)
    state: _CallState = "written"
    approval_request_id: str | None = None
    outcome: ToolOutput | ApprovalRequired | None = None
    held: list[ToolEvent] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.chunks)


class ToolLoop:
    """
    The loop of one response.

    Args:
        respond: what the model is asked first.
        output: the session's output machine.
        later_choice: the tool choice after the first turn. Names that end in a dot stand for all functions of a namespace,
            in the first choice too.
        approved_calls: those to run before the model is asked.

    Attributes:
        searches: web searches so far.
        image_tokens: used to make images so far.
    """

    def __init__(
        self,
        respond: commands.Respond,
        tools: ServerTools,
        output: OutputMachine,
        new_id: NewId,
        limits: LoopLimits,
        later_choice: ToolChoice,
        approved_calls: Sequence[ApprovedCall] = (),
    ) -> None:
        self.searches = 0
        self.image_tokens = ImageTokens()
        self._respond = respond
        self._tools = tools
        self._output = output
        self._new_id = new_id
        self._limits = limits
        self._approved_calls = tuple(approved_calls)
        self._functions = {own.function.key: own.function for own in tools.functions}
        self._citations = CitationWriter(respond.id, infers=limits.infers_citations)
        self._usage: events.Usage | None = None
        self._earlier_usage: events.Usage | None = None
        self._later_choice = later_choice
        self._request_count = 0 if tools.must_prepare or approved_calls else 1
        self._turn_start = 0
        self._turn_items: list[OutputItem] = []
        self._call_count = 0
        self._output_chars = 0
        self._has_client_call = False
        self._calls: dict[str, _Call] = {}  # of this turn, by the engine's ids
        self._running: dict[str, _Call] = {}  # by ours, in their order
        self._waiting: deque[_Call] = deque()
        self._is_over = False

    @property
    def must_wait(self) -> bool:
        """Whether the model can't be asked at once."""
        return self._tools.must_prepare or bool(self._approved_calls)

    @property
    def changes_text(self) -> bool:
        """Whether text has to come this way: there is something that it may cite."""
        return self._citations.is_active

    def begin(self) -> Iterator[LoopStep]:
        """The first steps, of a loop that `must_wait`."""
        if self._tools.must_prepare:
            yield PrepareTools(self._respond.id)
        else:
            yield from self._begin_approved_calls()

    # The engine

    def on_engine(self, event: events.EngineEvent) -> Iterator[LoopStep]:
        """What follows from an event of the engine."""
        if self._is_over:
            return
        if self._citations.is_active:
            yield from self._cite(event)
            if isinstance(event, events.TextDelta):
                return
        match event:
            case events.ToolCallStarted() | events.ToolArgumentsDelta() | events.ToolCallDone() if self._keep_call(event):
                pass
            case events.Usage():
                self._usage = event.plus(self._earlier_usage)
                yield self._usage
            case events.ResponseEnded(reason="stop") if self._calls:
                # Responses: only a turn that is complete has its calls run; one that is cut off runs none of them.
                yield from self._run_calls()
            case events.ResponseEnded() | events.ResponseFailed():
                self._is_over = True
                yield event
            case _:
                yield event

    def _cite(self, event: events.EngineEvent) -> Iterator[events.TextDelta | events.AnnotationAdded]:
        """The text with its citations, and those that come before an event that is no text."""
        if isinstance(event, events.TextDelta):
            if self._output.open_text() is None:
                self._citations.begin_part()
            yield from self._citations.write(event)
            return
        yield from self._citations.flush()
        if isinstance(event, events.RewriteEnded) and event.text is not None:
            self._citations.replace_text(event.text)
        # A turn that ends with calls goes on: only its last text is the answer.
        if isinstance(event, events.ResponseEnded) and not self._calls and self._output.open_text() is not None:
            yield from self._citations.infer()

    def _keep_call(self, event: events.ToolCallStarted | events.ToolArgumentsDelta | events.ToolCallDone) -> bool:
        """Whether the event is of a call that the server runs; such a call is kept back."""
        if isinstance(event, events.ToolCallStarted):
            function = self._functions.get(f"{event.namespace}.{event.name}" if event.namespace else event.name)
            if function is None or event.call_id in self._calls:
                # A name that nobody knows is the client's too: it may know better.
                self._has_client_call = True
                return False
            self._calls[event.call_id] = _Call(self._new_id("call"), function)
            return True
        call = self._calls.get(event.call_id)
        if call is not None and isinstance(event, events.ToolArgumentsDelta):
            call.chunks.append(event.text)
        return call is not None

    def _run_calls(self) -> Iterator[LoopStep]:
        yield events.ItemBoundary(self._respond.id)  # what the model wrote is complete
        self._turn_items = self._output.items[self._turn_start :]
        for call in self._calls.values():
            if self._output_chars >= self._limits.output_chars:
                limit = f"{self._limits.output_chars} characters of results (tools.response_chars)"
            elif self._call_count >= self._limits.calls:
                limit = f"{self._limits.calls} calls ({self._limits.calls_field})"
            else:
                limit = ""
            if not limit:
                self._call_count += 1
                self._waiting.append(call)
            else:
                # A model that is not told makes up results, and upstream servers refuse a call without one.
                note = f"The call was skipped: the limit of {limit} is reached."
                call.outcome, call.state = ToolOutput((history.TextPart(note),)), "over"
        yield from self._go_on()

    # Tools

    def on_tool(self, event: FromTool) -> Iterator[LoopStep]:
        """What follows from an event of a tool."""
        if self._is_over:
            return
        call = self._running.get(event.call_id)
        match event.event:
            case ToolFailed(error):
                self._is_over = True
                yield events.ResponseFailed.from_error(self._respond.id, error)
            case ToolsReady():
                yield from self._begin_approved_calls()
            case ToolOutput() | ApprovalRequired() as outcome:
                if call is not None:
                    call.outcome, call.state = outcome, "over"
                    yield from self._go_on()
            case tool_event if call is None or call is next(iter(self._running.values())):
                yield from self._show(tool_event)
            case tool_event:
                call.held.append(tool_event)

    def _show(self, event: ToolEvent) -> Iterator[LoopStep]:
        if isinstance(event, ToolsListed):
            self._add_functions(event.functions)
        elif isinstance(event, events.HostedToolProgress):
            yield events.HostedToolProgress(self._respond.id, {"item_id": "", **event.event})  # the session's to set
        elif isinstance(event, events.HostedToolStarted | events.HostedToolDone):
            yield structs.replace(event, id=self._respond.id)

    def _add_functions(self, functions: Sequence[ServerFunction]) -> None:
        self._functions |= {own.function.key: own.function for own in functions}
        self._respond = structs.replace(self._respond, tools=(*self._respond.tools, *(own.function for own in functions)))

    def _begin_approved_calls(self) -> Iterator[LoopStep]:
        for approval in self._approved_calls:
            key = f"{approval.server_label}.{approval.name}"
            function = self._functions.get(key) or FunctionTool(approval.name, namespace=approval.server_label)
            call = _Call(self._new_id("call"), function, [approval.arguments], approval_request_id=approval.approval_request_id)
            self._calls[call.id] = call
            self._waiting.append(call)
            self._call_count += 1
        yield from self._go_on()

    def _go_on(self) -> Iterator[LoopStep]:
        """Show what the calls that are over have left, start those that wait, and end the turn when all are over."""
        while self._running and (call := next(iter(self._running.values()))).state == "over":
            del self._running[call.id]
            if self._running:
                head = next(iter(self._running.values()))
                held, head.held = head.held, []
                for event in held:
                    yield from self._show(event)
        active = sum(call.state == "running" for call in self._running.values())
        while self._waiting and active < (self._limits.parallel if self._respond.parallel_tool_calls else 1):
            active += 1
            yield self._start(self._waiting.popleft())
        if not self._running and not self._waiting:
            yield from self._end_turn()

    def _start(self, call: _Call) -> CallTool:
        call.state = "running"
        self._running[call.id] = call
        return CallTool(
            ServerToolCall(
                response_id=self._respond.id,
                call_id=call.id,
                name=call.function.name,
                namespace=call.function.namespace,
                arguments=call.arguments,
                approval_request_id=call.approval_request_id,
            )
        )

    # From turn to turn

    def _end_turn(self) -> Iterator[LoopStep]:
        calls, self._calls = tuple(self._calls.values()), {}
        outputs = [call.outcome for call in calls if isinstance(call.outcome, ToolOutput)]
        self._output_chars += sum(map(_output_chars, calls))
        self.searches += sum(output.searches for output in outputs)
        for output in outputs:
            self.image_tokens = self.image_tokens.plus(output.image_tokens)
        self._citations.learn(citation for output in outputs for citation in output.citations)
        if self._has_client_call or len(outputs) < len(calls):
            # The client goes on: it runs its own calls, or approves. What was run here is in the items it has.
            self._is_over = True
            yield events.ResponseEnded(self._respond.id)
            return
        yield events.ItemBoundary(self._respond.id)
        if (respond := self._next_request(calls)) is None:
            self._is_over = True
            yield events.ResponseEnded(self._respond.id, "length")
            return
        self._respond, self._earlier_usage = respond, self._usage
        self._request_count += 1
        self._turn_start = len(self._output.items)
        yield SendToEngine(respond)

    def _next_request(self, calls: Sequence[_Call]) -> commands.Respond | None:
        """What the model is asked next; None if it has no tokens left."""
        respond = self._respond
        if self._request_count == 0:
            return structs.replace(respond, history=_with_results(respond.history, calls), tool_choice=self._expand(respond.tool_choice))
        new_items = [item for each in self._turn_items if (item := _history_item(each)) is not None]
        new_items += [_call_item(call) for call in calls]
        new_items += [_result(call, call.id) for call in calls]
        sampling = respond.sampling
        if sampling.max_tokens is not None and self._usage is not None:
            # Responses: `max_output_tokens` is for all turns together.
            used_tokens = self._usage.output_tokens - (self._earlier_usage.output_tokens if self._earlier_usage else 0)
            if (rest := sampling.max_tokens - used_tokens) <= 0:
                return None
            sampling = structs.replace(sampling, max_tokens=rest)
        return structs.replace(
            respond,
            history=(*respond.history, *new_items),
            size_bytes=respond.size_bytes + sum(len(call.arguments) + _output_chars(call) for call in calls),
            sampling=sampling,
            tool_choice=self._next_choice(respond),
        )

    def _next_choice(self, respond: commands.Respond) -> ToolChoice:
        # Responses: `required` binds the first turn. A model that had to call a tool each time would never answer.
        choice = self._expand(self._later_choice)
        has_room = self._call_count < self._limits.calls and self._output_chars < self._limits.output_chars
        if has_room and self._request_count + 1 < self._limits.turns:
            return choice
        names = tuple(tool.key for tool in respond.tools if tool.key not in self._functions)
        if choice.names is not None:
            names = tuple(name for name in names if name in choice.names)
        return ToolChoice(choice.mode, names) if names else ToolChoice("none")

    def _expand(self, choice: ToolChoice) -> ToolChoice:
        """The choice with the functions that its namespaces have by now."""
        if choice.names is None or not any(name.endswith(".") for name in choice.names):
            return choice
        names: dict[str, None] = {}
        for name in choice.names:
            names |= dict.fromkeys(key for key in self._functions if key.startswith(name)) if name.endswith(".") else {name: None}
        # A namespace that turns out to be empty leaves nothing to require.
        return ToolChoice(choice.mode if names else "none", tuple(names))


def mcp_texts(content: object) -> str:
    """The texts in the content of an MCP result, which may be anything; empty where there are none."""
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def denial(reason: str | None) -> history.TextPart:
    """What the model reads of a call that the user did not approve."""
    return history.TextPart("The user did not approve this call." + (f" The reason: {reason}" if reason else ""))


def _with_results(past: Sequence[history.HistoryItem], calls: Sequence[_Call]) -> tuple[history.HistoryItem, ...]:
    """The history with what approved calls have come to: where the user approved each, or at the end."""
    results = {call.approval_request_id or "": _result(call, call.approval_request_id or "") for call in calls}
    items = [results.pop(item.call_id, item) if isinstance(item, history.ToolResult) else item for item in past]
    for call in calls:
        if call.approval_request_id in results:
            items += [_call_item(call), _result(call, call.id)]
    return tuple(items)


def _call_item(call: _Call) -> history.ToolCall:
    return history.ToolCall(call.id, call.function.name, _json(call.arguments), namespace=call.function.namespace)


def _json(arguments: str) -> str:
    """The arguments if they are JSON: upstream servers refuse what is not, and the result says what was wrong with them."""
    try:
        msgspec.json.decode(arguments, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return "{}"
    return arguments


def _result(call: _Call, call_id: str) -> history.ToolResult:
    return history.ToolResult(call_id, call.outcome.parts if isinstance(call.outcome, ToolOutput) else ())


def _output_chars(call: _Call) -> int:
    parts = call.outcome.parts if isinstance(call.outcome, ToolOutput) else ()
    texts = (getattr(part, "text", None) or getattr(part, "url", None) or getattr(part, "inline", None) or "" for part in parts)
    return sum(map(len, texts))


def _history_item(item: OutputItem) -> history.HistoryItem | None:
    """What the model said in this turn, as it reads it in the next; None for a call that the client runs."""
    if item.is_reasoning:
        summary = tuple(part.text for part in item.summaries)
        text = "".join(part.text for part in item.parts)
        return history.ReasoningItem(text=text, summary=summary, encrypted_content=item.encrypted_content)
    if item.hosted_item is not None:  # of a tool that the engine runs itself
        return history.HostedToolItem(item.hosted_item)
    if item.call is not None:
        return None
    return history.Message("assistant", tuple(_history_part(part.text, part.kind) for part in item.parts), item.phase)


def _history_part(text: str, kind: OutputKind) -> history.HistoryPart:
    return history.RefusalPart(text) if kind is OutputKind.REFUSAL else history.TextPart(text)
