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

from msgspec import Struct, field, structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import FunctionTool, ToolChoice
from antiphon.errors import invalid_tool_call
from antiphon.protocols.call_results import NO_RESULT_TEXT
from antiphon.protocols.citations import CitationWriter
from antiphon.protocols.client_tools.calls import ClientCalls, WrongCall
from antiphon.protocols.client_tools.search import SEARCH_NAME, ToolSearch
from antiphon.protocols.output import OutputItem, OutputMachine, ToolCallEvent
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.session import CallTool, FromTool, NewId, PrepareTools, SendToEngine, ToolFailed, ToolsReady
from antiphon.tool_api import (
    ApprovalRequired,
    ImageTokens,
    ServerFunction,
    ServerToolCall,
    ServerTools,
    ToolEvent,
    ToolOutput,
    ToolsListed,
    decode_arguments,
)


class LoopLimits(Struct, frozen=True, kw_only=True):
    """
    The limits of one response.

    Attributes:
        calls: the most calls that are run.
        calls_field: what sets that limit, for the model to read.
        turns: the most times that the model is asked; the last time it gets none of the server's tools. If it calls one
            all the same, the response is incomplete.
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
An event for the output machine, or an effect for the driver. The caller gives each event to the output machine
before it takes the next: the loop looks at what is open there.
"""

MAX_WRONG_CALLS = 4
"""After so many calls that the client can't run, the model has none of these tools any more: it won't learn it."""

_CallState = Literal["written", "running", "over"]


class _Call(Struct):
    """
    A call of the model.

    Attributes:
        id: that it has in the history, and by which its tool's events are told from others'.
        held: what its tool said while another one's items were shown.
        is_async: whether the client makes it, and the model does not wait for it.
        is_custom: whether its arguments are a text.
    """

    id: str
    function: FunctionTool
    chunks: list[str] = field(default_factory=list)
    state: _CallState = "written"
    approval_request_id: str | None = None
    outcome: ToolOutput | ApprovalRequired | None = None
    held: list[ToolEvent] = field(default_factory=list)
    is_async: bool = False
    is_custom: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self.chunks)


class ToolFinding(Struct, frozen=True):
    """
    The client's tools that come later than others, or whose results do.

    Attributes:
        search: the server's search for tools; None where there is nothing to find.
        found_names: of functions outside of namespaces that were found earlier in the conversation.
        async_keys: of the tools that the model need not wait for.
    """

    search: ToolSearch | None = None
    found_names: frozenset[str] = frozenset()
    async_keys: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.search is not None or bool(self.found_names or self.async_keys)


NO_FINDING = ToolFinding()


class ToolLoop:
    """
    The loop of one response.

    Args:
        respond: what the model is asked first.
        output: the session's output machine.
        later_choice: the tool choice after the first turn. Names that end in a dot stand for all functions of a namespace,
            in the first choice too.
        approved_calls: those to run before the model is asked.
        client_calls: those of tools that the client runs.
        finding: the client's tools that come later than others, or whose results do.

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
        client_calls: ClientCalls | None = None,
        finding: ToolFinding = NO_FINDING,
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
        self._client_calls = client_calls or ClientCalls({})
        self._wrong_call_count = 0
        self._search = finding.search
        self._found_names = set(finding.found_names)
        self._async_keys = finding.async_keys
        if self._search is not None:
            self._functions[SEARCH_NAME] = self._search.function
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
            case events.ToolCallStarted() | events.ToolArgumentsDelta() | events.ToolCallDone():
                if (client_call := self._client_calls.take(event)) is not None:
                    yield from self._show_client_call(client_call)
                elif self._is_async(event) or not self._keep_call(event):
                    yield self._with_namespace(event)
            case events.Usage():
                self._usage = event.plus(self._earlier_usage)
                yield self._usage
            case events.ResponseEnded() | events.ResponseFailed():
                yield from self._on_end(event)
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

    def _on_end(self, event: events.TerminalEvent) -> Iterator[LoopStep]:
        is_complete = isinstance(event, events.ResponseEnded) and event.reason == "stop"
        if is_complete:
            for client_call in self._client_calls.end_turn():
                if not self._is_over:
                    yield from self._show_client_call(client_call)
        if self._is_over:
            return
        # Responses: only a turn that is complete has its calls run; one that is cut off runs none of them.
        if is_complete and self._calls and self._request_count < self._limits.turns:
            yield from self._run_calls()
            return
        self._is_over = True
        if is_complete and self._calls and not self._has_client_call:
            # Several upstream servers know no `tool_choice`: a model of theirs could go on calling for ever.
            event = events.ResponseEnded(self._respond.id, "length")
        yield event

    def _is_async(self, event: ToolCallEvent) -> bool:
        """
        Whether the event is of a call that the model need not wait for: the client makes it, and the model goes on, as in the
        original. The last time that the model is asked the response ends with it.
        """
        call = self._calls.get(event.call_id)
        if isinstance(event, events.ToolCallStarted) and call is None and self._request_count < self._limits.turns:
            key = f"{event.namespace}.{event.name}" if event.namespace else event.name
            if key not in self._async_keys:
                return False
            call = _Call(self._new_id("call"), FunctionTool(event.name, namespace=event.namespace), is_async=True, is_custom=event.custom)
            call.outcome, call.state = ToolOutput((history.TextPart(NO_RESULT_TEXT),)), "over"
            self._calls[event.call_id] = call
        elif call is not None and call.is_async and isinstance(event, events.ToolArgumentsDelta):
            call.chunks.append(event.text)
        return call is not None and call.is_async

    def _with_namespace(self, event: ToolCallEvent) -> ToolCallEvent:
        """The event; a function that a search has found is its own namespace, as in the original."""
        if isinstance(event, events.ToolCallStarted) and event.namespace is None and event.name in self._found_names:
            return structs.replace(event, namespace=event.name)
        return event

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

    def _show_client_call(self, client_call: Sequence[ToolCallEvent] | WrongCall) -> Iterator[LoopStep]:
        """Show a call that the client is to run; one that can't be run is told to the model at the end of its turn."""
        if not isinstance(client_call, WrongCall):
            self._has_client_call = self._has_client_call or bool(client_call)
            yield from client_call
            return
        if client_call.is_shown:  # the client has begun to read it
            self._is_over = True
            error = invalid_tool_call(f"'{client_call.tool.function.name}': {client_call.problem.rstrip('.')}")
            yield events.ResponseFailed.from_error(self._respond.id, error)
            return
        self._wrong_call_count += 1
        if self._wrong_call_count > MAX_WRONG_CALLS:  # it was told already that it has no such tool any more
            return
        call = _Call(self._new_id("call"), client_call.tool.function, [client_call.arguments])
        call.outcome, call.state = ToolOutput((history.TextPart(client_call.problem),)), "over"
        self._calls[client_call.call_id] = call

    def _run_calls(self) -> Iterator[LoopStep]:
        yield events.ItemBoundary(self._respond.id)  # what the model wrote is complete
        self._turn_items = self._output.items[self._turn_start :]
        allowed_keys = self._respond.tool_choice.name_set
        for call in self._calls.values():
            if call.state == "over":
                continue
            if self._search is not None and call.function.key == SEARCH_NAME:
                yield from self._find_tools(call, self._search)
                continue
            if self._output_chars >= self._limits.output_chars:
                reason = f"the limit of {self._limits.output_chars} characters of results (tools.response_chars) is reached"
            elif self._call_count >= self._limits.calls:
                reason = f"the limit of {self._limits.calls} calls ({self._limits.calls_field}) is reached"
            elif self._respond.tool_choice.mode == "none":
                reason = "the request does not allow calls (tool_choice)"
            # Open Responses: `allowed_tools` is a hard limit, which the server has to enforce; not every upstream server does.
            elif allowed_keys is not None and call.function.key not in allowed_keys:
                reason = "the request does not allow calls of this tool now (tool_choice)"
            else:
                self._call_count += 1
                self._waiting.append(call)
                continue
            # A model that is not told makes up results, and upstream servers refuse a call without one.
            call.outcome, call.state = ToolOutput((history.TextPart(f"The call was skipped: {reason}."),)), "over"
        yield from self._go_on()

    def _find_tools(self, call: _Call, search: ToolSearch) -> Iterator[LoopStep]:
        """Find the tools that the model asks for, and show it as the original does, whose two items say everything at once."""
        found_tools = search.find(call.arguments)
        call.outcome, call.state = ToolOutput((history.TextPart(found_tools.text),)), "over"
        self._respond = structs.replace(self._respond, tools=(*self._respond.tools, *found_tools.tools))
        self._found_names |= {tool.name for tool in found_tools.tools if tool.namespace is None}
        items: tuple[tuple[str, str, str, object, object], ...] = (
            ("tsc_", "tool_search_call", "arguments", {}, found_tools.arguments),
            ("tso_", "tool_search_output", "tools", [], found_tools.output),
        )
        for id, type, name, empty, value in items:
            item = {"id": id, "type": type, "status": "in_progress", "call_id": None, "execution": "server", name: empty}
            yield events.HostedToolStarted(self._respond.id, item)
            yield events.HostedToolDone(self._respond.id, item | {"status": "completed", name: value})

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
        search = self._search
        for own in functions:
            if search is not None and search.hides(own.function.key, own.function.namespace):
                search.add_function(own.function)
            else:
                self._respond = structs.replace(self._respond, tools=(*self._respond.tools, own.function))

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
        is_last = self._request_count + 1 >= self._limits.turns
        return structs.replace(
            respond,
            tools=tuple(tool for tool in respond.tools if tool.key not in self._functions) if is_last else respond.tools,
            history=(*respond.history, *new_items),
            size_bytes=respond.size_bytes + sum(len(call.arguments) + _output_chars(call) for call in calls),
            sampling=sampling,
            tool_choice=self._next_choice(respond),
        )

    def _next_choice(self, respond: commands.Respond) -> ToolChoice:
        # Responses: `required` binds the first turn. A model that had to call a tool each time would never answer.
        choice = self._expand(self._later_choice)
        has_room = self._call_count < self._limits.calls and self._output_chars < self._limits.output_chars
        barred_keys: set[str] = set()
        if not has_room or self._request_count + 1 >= self._limits.turns:
            barred_keys |= self._functions.keys()
        if self._wrong_call_count >= MAX_WRONG_CALLS:
            barred_keys |= self._client_calls.keys
        if not barred_keys:
            return choice
        names = tuple(tool.key for tool in respond.tools if tool.key not in barred_keys)
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
    arguments = call.arguments if call.is_custom else _json(call.arguments)
    return history.ToolCall(call.id, call.function.name, arguments, call.is_custom, call.function.namespace)


def _json(arguments: str) -> str:
    """The arguments if they are JSON: upstream servers refuse what is not, and the result says what was wrong with them."""
    try:
        decode_arguments(arguments)
    except ValueError:
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
