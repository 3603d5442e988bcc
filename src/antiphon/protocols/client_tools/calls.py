"""
The calls of tools that the client runs: kept back until they are sure to be what their items need, and shown as those.

A client runs what an item says, so a call whose arguments don't fit is not shown: the model is told, and may try again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

import msgspec
from msgspec import UNSET, Struct, field

from antiphon.engine_api import events as engine_events
from antiphon.protocols.client_tools.definitions import ClientTool
from antiphon.protocols.client_tools.streaming import ArgumentStream, CommandStream, DiffStream, TextPiece, whole_text
from antiphon.protocols.output import OutputItem, ToolCallEvent
from antiphon.tool_api import decode_arguments
from antiphon.wire.codec.types import Extra, JsonDict, Opt, Unknown
from antiphon.wire.responses import events, hosted_calls as calls, items, tools
from antiphon.wire.responses.events import StreamEvent

Pad = Callable[[str], Opt[str]]
"""Gives the random text that hides the size of a delta."""

_CallEvent = engine_events.ToolCallStarted | engine_events.ToolArgumentsDelta | engine_events.ToolCallDone


class _Call(Struct):
    """
    A call; `fields` are its item's, once they are known.

    Attributes:
        stream: what of it is shown before it is complete; None for nothing.
    """

    id: str
    tool: ClientTool
    started: engine_events.ToolCallStarted
    chunks: list[str] = field(default_factory=list)
    fields: JsonDict | None = None
    stream: ArgumentStream | None = None

    @property
    def is_streamed(self) -> bool:
        return self.stream is not None and self.stream.is_open

    @property
    def known_fields(self) -> JsonDict | None:
        """The fields so far; None where nothing is sure."""
        if self.fields is not None or self.stream is None or not self.stream.is_open:
            return self.fields
        return (self.tool.unknown or {}) | self.stream.fields


class WrongCall(Struct, frozen=True):
    """
    A call that the client can't run; `problem` says why, to the model.

    Attributes:
        is_shown: whether its beginning is shown already, so that the client waits for the rest.
    """

    call_id: str
    tool: ClientTool
    arguments: str
    problem: str
    is_shown: bool = False


class ClientCalls:
    """
    The calls of one response.

    Args:
        tools: by the keys of their functions.
        async_keys: of the functions and custom tools whose results may come later.
    """

    def __init__(self, tools: Mapping[str, ClientTool], async_keys: frozenset[str] = frozenset()) -> None:
        self._tools = tools
        self._async_keys = async_keys
        self._held_calls: dict[str, _Call] = {}
        self._shown_calls: dict[str, _Call] = {}

    @property
    def keys(self) -> Set[str]:
        """The keys of the tools' functions."""
        return self._tools.keys()

    def take(self, event: _CallEvent) -> Sequence[ToolCallEvent] | WrongCall | None:
        """What may be shown now; None for an event of any other call."""
        if isinstance(event, engine_events.ToolCallStarted):
            # These functions have no namespace: one of that name in a namespace is the client's own.
            tool = None if event.namespace or event.custom else self._tools.get(event.name)
            if tool is None or event.call_id in self._held_calls or event.call_id in self._shown_calls:
                return None
            stream = _STREAMS.get(type(tool.tool))
            self._held_calls[event.call_id] = _Call(event.call_id, tool, event, stream=stream() if stream is not None else None)
            return ()
        if (call := self._held_calls.get(event.call_id)) is None:
            return None
        return self._take_delta(call, event) if isinstance(event, engine_events.ToolArgumentsDelta) else self._release(call)

    def _take_delta(self, call: _Call, event: engine_events.ToolArgumentsDelta) -> Sequence[ToolCallEvent]:
        call.chunks.append(event.text)
        if call.stream is None:
            return ()
        was_open = call.stream.is_open
        call.stream.feed(event.text)
        if was_open:
            return (event,)
        if not call.stream.is_open:
            return ()
        # Sure from here on: the beginning is shown with all that was held back.
        self._shown_calls[call.id] = call
        return call.started, engine_events.ToolArgumentsDelta(event.id, call.id, "".join(call.chunks))

    def end_turn(self) -> Iterator[Sequence[ToolCallEvent] | WrongCall]:
        """What may be shown of the calls that the model's turn has ended with."""
        for call in list(self._held_calls.values()):
            yield self._release(call)

    def _release(self, call: _Call) -> Sequence[ToolCallEvent] | WrongCall:
        del self._held_calls[call.id]
        arguments = "".join(call.chunks)
        try:
            call.fields = call.tool.read(_arguments(arguments))
        except ValueError as error:
            # Told to the model: clients run what an item says, and their libraries raise at a call that they don't know.
            return WrongCall(call.id, call.tool, arguments, f"The call was not made: {error}.", call.is_streamed)
        id, self._shown_calls[call.id] = call.started.id, call
        done_event = engine_events.ToolCallDone(id, call.id)
        return (done_event,) if call.is_streamed else (call.started, engine_events.ToolArgumentsDelta(id, call.id, arguments), done_event)

    def id_prefix(self, call: engine_events.ToolCallStarted) -> str | None:
        """The prefix of the ids of a call's item; None for any other call."""
        shown_call = self._shown_calls.get(call.call_id)
        return None if shown_call is None else shown_call.tool.id_prefix

    def wire_item(self, item: OutputItem, *, is_empty: bool = False) -> items.Item | None:
        """The item as the client gets it, or as it is when it is added; None for any other item."""
        call = self._find(item)
        fields = None if call is None else call.known_fields
        if call is None or fields is None:
            return None
        # A patch knows no other status: one that was cut off stays in progress.
        is_cut = item.status == "incomplete" and call.tool.item is calls.ApplyPatchCall
        status = "in_progress" if is_cut else item.status
        wire: items.Item = call.tool.item(
            id=item.id, call_id=call.id, status=status, **(_empty_fields(call, fields) if is_empty else fields)
        )
        return wire

    def with_async(self, item: OutputItem, wire: items.Item) -> items.Item:
        """The item of a plain call, which says so if its result may come later."""
        if item.call is None or not self._async_keys or not isinstance(wire, items.FunctionCall | items.CustomToolCall):
            return wire
        name, namespace = item.call.name, item.call.namespace
        # A deferred function is shown as its own namespace when it is called (docs/decisions/0057).
        key = f"{namespace}.{name}" if namespace and namespace != name else name
        return msgspec.structs.replace(wire, async_=True) if key in self._async_keys else wire

    def is_call(self, item: OutputItem) -> bool:
        """Whether the item is a call of a tool that the client runs."""
        return self._find(item) is not None

    def delta_events(self, item: OutputItem, number: int, pad: Pad) -> Iterator[StreamEvent]:
        """The events of what has come since the last, numbered from `number`."""
        call = self._find(item)
        if call is None or call.stream is None:
            return
        pieces, call.stream.pieces = call.stream.pieces, []
        show = shell_command_events if isinstance(call.stream, CommandStream) else _diff_events
        for count, piece in enumerate(_visible_pieces(pieces)):
            yield from show(piece, item, number + count, pad)

    def done_events(self, item: OutputItem, number: int, pad: Pad) -> Iterator[StreamEvent]:
        """The events before the item's last, numbered from `number`."""
        call = self._find(item)
        if call is None or call.fields is None or call.is_streamed:
            return
        if isinstance(action := call.fields.get("action"), calls.ShellAction):
            for index, command in enumerate(action.commands):
                for piece in whole_text("commands", index, command):
                    yield from shell_command_events(piece, item, number, pad)
                    number += 1
        elif isinstance(operation := call.fields.get("operation"), calls.CreateFile | calls.UpdateFile):
            yield from _diff_events(TextPiece("more", "diff", None, operation.diff), item, number, pad)
            yield from _diff_events(TextPiece("end", "diff", None, operation.diff), item, number + 1, pad)

    def _find(self, item: OutputItem) -> _Call | None:
        return None if item.call is None else self._shown_calls.get(item.call.call_id)


def _arguments(text: str) -> JsonDict:
    try:
        arguments = decode_arguments(text or "{}")
    except ValueError as error:
        raise ValueError(f"its arguments are no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("its arguments are no JSON object")
    return arguments


def _empty_fields(call: _Call, fields: JsonDict) -> JsonDict:
    if isinstance(operation := fields.get("operation"), calls.CreateFile | calls.UpdateFile):
        return {"operation": msgspec.structs.replace(operation, diff="")}
    return fields if call.tool.unknown is None else call.tool.unknown


def _visible_pieces(pieces: Sequence[TextPiece]) -> Iterator[TextPiece]:
    """The pieces that have an event: there is none for the beginning of a diff."""
    return (piece for piece in pieces if piece.kind != "begin" or piece.key == "commands")


def shell_command_events(piece: TextPiece, item: OutputItem, number: int, pad: Pad) -> Iterator[StreamEvent]:
    """The event of a piece of a shell's command, which has no item's id in the original either."""
    index = piece.index or 0
    match piece.kind:
        case "begin":
            yield events.ShellCallCommandAdded(sequence_number=number, output_index=item.index, command_index=index, command="")
        case "more":
            yield events.ShellCallCommandDelta(
                sequence_number=number, output_index=item.index, command_index=index, delta=piece.text, obfuscation=pad(piece.text)
            )
        case "end":
            yield events.ShellCallCommandDone(sequence_number=number, output_index=item.index, command_index=index, command=piece.text)


def _diff_events(piece: TextPiece, item: OutputItem, number: int, pad: Pad) -> Iterator[StreamEvent]:
    # The original sends these, though its clients' types lack them.
    kind, name = ("delta", "delta") if piece.kind == "more" else ("done", "diff")
    event = {"type": f"response.apply_patch_call_operation_diff.{kind}", "sequence_number": number, "item_id": item.id}
    padding = pad(piece.text) if piece.kind == "more" else UNSET
    extra = {} if padding is UNSET else {"obfuscation": padding}
    yield Unknown(extra=Extra({**event, "output_index": item.index, name: piece.text, **extra}))


_STREAMS: Mapping[type, type[ArgumentStream]] = {tools.ShellTool: CommandStream, tools.ApplyPatchTool: DiffStream}
