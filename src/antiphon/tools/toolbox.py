"""The toolbox: which tools the server runs, and the limits that hold for each call of any of them."""

import asyncio
import contextlib
import weakref
from collections.abc import Iterable, Mapping, Sequence

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.engine_api.events import HostedToolDone, HostedToolStarted
from antiphon.engine_api.history import HistoryPart, TextPart
from antiphon.errors import ApiError
from antiphon.tool_api import ApprovalRequired, ServerFunction, ServerToolCall, ServerTools, ToolEvent, ToolOutput, ToolsListed
from antiphon.tools.base import ClosableTool, Report, Tool, ToolContext, ToolKind
from antiphon.wire.responses import tools as wire_tools

MAX_TRIAL_S = 15.0
"""How long a request waits until it is known whether a kind of tool works on this machine."""

_log = structlog.get_logger(__name__)


class ToolLimits(Struct, frozen=True, kw_only=True):
    """
    The limits of each call.

    Attributes:
        call_s: seconds that a call may take.
        output_chars: of text that the model gets to read of one call.
    """

    call_s: float = 120.0
    output_chars: int = 200_000


class _KindInUse:
    """A kind of tool. The kind counts as in use while any response or session refers to this object."""

    def __init__(self, kind: ToolKind) -> None:
        self.kind = kind


class Toolbox:
    """The tools that the server has, by their types in requests."""

    def __init__(self, kinds: Sequence[ToolKind] = (), limits: ToolLimits | None = None) -> None:
        self._kinds_in_use: tuple[_KindInUse, ...] = ()
        self._kind_by_type: Mapping[str, _KindInUse] = {}
        self._set_kinds([_KindInUse(kind) for kind in kinds])
        self._limits = limits or ToolLimits()
        self._trials: dict[str, asyncio.Task[None]] = {}
        self._closing: dict[asyncio.Task[None], ToolKind] = {}

    def _set_kinds(self, kinds_in_use: Sequence[_KindInUse]) -> None:
        self._kinds_in_use = tuple(kinds_in_use)
        self._kind_by_type = {type: in_use for in_use in kinds_in_use for type in in_use.kind.types}

    @property
    def types(self) -> frozenset[str]:
        """The types of tools that the server runs."""
        return frozenset(self._kind_by_type)

    def add(self, kind: ToolKind) -> None:
        """Have another kind of tool, for the responses that begin from now on."""
        self._set_kinds([*self._kinds_in_use, _KindInUse(kind)])

    def exchange(self, former: Sequence[ToolKind], new: Sequence[ToolKind], limits: ToolLimits, deadline_s: float) -> None:
        """
        Have other kinds and limits, for the responses that begin from now on.

        Args:
            former: kinds that are dropped. Each is closed once no response and no session has it, or after `deadline_s`.
        """
        dropped_kinds = [in_use for in_use in self._kinds_in_use if in_use.kind in former]
        self._set_kinds([*(in_use for in_use in self._kinds_in_use if in_use.kind not in former), *map(_KindInUse, new)])
        self._limits = limits
        for in_use in dropped_kinds:
            self._close_later(in_use, deadline_s)

    def _close_later(self, in_use: _KindInUse, deadline_s: float) -> None:
        release_event, loop = asyncio.Event(), asyncio.get_running_loop()
        # By a weak reference, so no code has to report that it is done (docs/decisions/0041). The garbage collector may run in any thread.
        weakref.finalize(in_use, lambda: None if loop.is_closed() else loop.call_soon_threadsafe(release_event.set)).atexit = False
        # It outlives the request that dropped the kind, and is ended by `close`.
        task = asyncio.create_task(_close_unused(in_use.kind, release_event, deadline_s), name="end of a tool")  # noqa: TID251
        self._closing[task] = in_use.kind
        task.add_done_callback(lambda task: self._closing.pop(task, None))

    def add_trial(self, type: str, trial: asyncio.Task[None]) -> None:
        """Know of a kind that is being tried: it is added before the task ends, if it can be had."""
        self._trials[type] = trial

    async def wait_for_trials(self, types: Iterable[str]) -> None:
        """Wait until it is known whether tools of these types can be had, for `MAX_TRIAL_S` at most."""
        trials = [trial for type in types if (trial := self._trials.get(type)) is not None and not trial.done()]
        if trials:
            # Not `wait_for`: it would cancel the trial, on which other requests wait too.
            await asyncio.wait(trials, timeout=MAX_TRIAL_S)

    def open(self, tools: Sequence[tuple[str, wire_tools.Tool]], context: ToolContext) -> "OpenTools":
        """
        Open the tools of a request.

        Args:
            tools: each with its path: `tools[3]`; those of other types are left out.

        Raises:
            ClientError: a tool's options are wrong, or name what isn't there.
        """
        open_tools = OpenTools(self._kind_by_type, context, self._limits)
        open_tools.add(tools)
        return open_tools

    async def close(self) -> None:
        """Close all kinds of tools, those that are being dropped included; idempotent."""
        closing, self._closing = self._closing, {}
        for task in closing:
            task.cancel()
        if closing:
            await asyncio.wait(closing)
        for kind in (*(in_use.kind for in_use in self._kinds_in_use), *closing.values()):
            await kind.close()


async def _close_unused(kind: ToolKind, release_event: asyncio.Event, deadline_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline_s):
            await release_event.wait()
    try:
        await kind.close()
    except Exception:  # No caller waits for this task.
        _log.exception("A tool that is no longer offered could not be closed.")


class OpenTools:
    """The tools of one response, or of one session, each call within its limits."""

    def __init__(self, kind_by_type: Mapping[str, _KindInUse], context: ToolContext, limits: ToolLimits) -> None:
        self._kind_by_type = kind_by_type
        self._context = context
        self._limits = limits
        self._tools: list[tuple[str, Tool]] = []
        self._types: set[str] = set()
        self._tool_by_key: dict[str, Tool] = {}

    @property
    def server_tools(self) -> ServerTools:
        """What the session needs to know of them: their types, their functions, and whether `prepare` has to be called."""
        functions = tuple(ServerFunction(type, function) for type, tool in self._tools for function in tool.functions)
        return ServerTools(frozenset(self._types), functions, any(tool.must_prepare for _, tool in self._tools))

    def add(self, tools: Sequence[tuple[str, wire_tools.Tool]]) -> list[Tool]:
        """
        Open more tools; see `Toolbox.open`.

        Raises:
            ClientError: a tool's options are wrong, or name what isn't there.
        """
        # All are opened before one is added: if one is refused, a session keeps exactly what it had.
        new_tools = self._open(tools)
        self._types.update(tool.type for _, tool in tools if tool.type in self._kind_by_type)
        self._tools += new_tools
        self._tool_by_key |= {function.key: tool for _, tool in new_tools for function in tool.functions}
        return [tool for _, tool in new_tools]

    def check(self, tools: Sequence[tuple[str, wire_tools.Tool]]) -> None:
        """
        Check that `add` would take the tools.

        Raises:
            ClientError: it wouldn't.
        """
        for _, tool in self._open(tools):
            if isinstance(tool, ClosableTool):
                tool.close()

    def _open(self, tools: Sequence[tuple[str, wire_tools.Tool]]) -> list[tuple[str, Tool]]:
        tools_by_kind: dict[ToolKind, list[tuple[str, wire_tools.Tool]]] = {}
        for path, tool in tools:
            if (in_use := self._kind_by_type.get(tool.type)) is not None:
                tools_by_kind.setdefault(in_use.kind, []).append((path, tool))
        return [(own_tools[0][1].type, kind.open(own_tools, self._context)) for kind, own_tools in tools_by_kind.items()]

    async def prepare(self, report: Report, tools: Sequence[tuple[str, wire_tools.Tool]] = ()) -> None:
        """
        Do what is to be done before the model is first asked.

        Args:
            tools: to be opened for it; where there are none, those that are open are prepared.

        Raises:
            ApiError: the response must fail, or one of `tools` can't be opened.
        """
        for tool in self.add(tools) if tools else [tool for _, tool in self._tools]:
            if tool.must_prepare:
                await self._prepare(tool, report)

    async def _prepare(self, tool: Tool, report: Report) -> None:
        open_item = _OpenItemTracker(self._learn_functions(tool, report))
        try:
            async with asyncio.timeout(self._limits.call_s):
                await tool.prepare(open_item.report)
        except TimeoutError:
            open_item.fail(tool, self._timeout_message)
        except ApiError:
            raise
        except Exception:
            _log.exception("A tool failed before its first call.")
            open_item.fail(tool, "The tool failed.")

    async def run(self, call: ServerToolCall, report: Report) -> ToolOutput | ApprovalRequired:
        """
        Run a call.

        Raises:
            ApiError: the response must fail.
        """
        key = f"{call.namespace}.{call.name}" if call.namespace else call.name
        # Models call tools that were never offered. Without an answer they make the result up (docs/decisions/0055).
        if (tool := self._tool_by_key.get(key)) is None:
            return ToolOutput((TextPart(f"There is no tool '{key}'."),))
        open_item = _OpenItemTracker(report)
        try:
            async with asyncio.timeout(self._limits.call_s):
                outcome = await tool.run(call, open_item.report)
        except TimeoutError:
            message = self._timeout_message
        except ApiError:
            raise
        except Exception:  # A defect in one tool must neither end the response nor leave the model without an answer.
            _log.exception("A tool failed.", tool=key)
            message = "The tool failed."
        else:
            return outcome if isinstance(outcome, ApprovalRequired) else self._shorten(outcome)
        open_item.fail(tool, message)
        return ToolOutput((TextPart(message),))

    def close(self) -> None:
        """Release what the tools hold for this response, in the background; idempotent."""
        for _, tool in self._tools:
            if isinstance(tool, ClosableTool):
                tool.close()

    @property
    def _timeout_message(self) -> str:
        return f"The tool took longer than {self._limits.call_s:g} seconds (tools.call_s), and was stopped."

    def _learn_functions(self, tool: Tool, report: Report) -> Report:
        def learn(event: ToolEvent) -> None:
            if isinstance(event, ToolsListed):
                self._tool_by_key |= {entry.function.key: tool for entry in event.functions}
            report(event)

        return learn

    def _shorten(self, output: ToolOutput) -> ToolOutput:
        """Cut the texts of an output to the limit that they share, with a note on what was left out; other parts stay."""
        room = self._limits.output_chars
        parts: list[HistoryPart] = []
        for part in output.parts:
            if isinstance(part, TextPart):
                if len(part.text) > room:
                    note = f"\n[{len(part.text) - room} more characters were left out (tools.output_chars).]"
                    part = TextPart(part.text[:room] + note)
                room = max(0, room - len(part.text))
            parts.append(part)
        return replace(output, parts=tuple(parts))


class _OpenItemTracker:
    """Remembers the item that is open: a stream must not end with an item that was added and never done."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._item: HostedToolStarted | None = None

    def report(self, event: ToolEvent) -> None:
        if isinstance(event, HostedToolStarted):
            self._item = event
        elif isinstance(event, HostedToolDone):
            self._item = None
        self._report(event)

    def fail(self, tool: Tool, message: str) -> None:
        if (opening := self._item) is not None:
            self.report(HostedToolDone(opening.id, tool.fail(opening.item, message)))
