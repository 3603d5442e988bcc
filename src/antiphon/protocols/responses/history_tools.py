"""
What other tools left in a conversation, for engines that know plain calls only.

A client replays its whole history, and some of it may come from another model: a shell's command, a patch, what an MCP server gave.
Each such item that says what was done is told as a call with its result, which every model understands.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.engine_api import history as turns
from antiphon.engine_api.capabilities import Abilities
from antiphon.wire.codec.types import Tagged, Wire, encode
from antiphon.wire.responses import hosted_calls as calls, items

Told = tuple[turns.Turn, ...]

_FAMILY = re.compile(r"_(call|output|call_output|list_tools|approval_request|approval_response)\Z")


def hosted(item: Tagged, abilities: Abilities) -> turns.Hosted | None:
    """The item as it is, for an engine that has its tool."""
    family = _FAMILY.sub("", item.type)
    if not family or not any(kind.startswith(family) for kind in abilities.hosted):
        return None
    return turns.Hosted(msgspec.json.decode(encode(item)))


def told(item: Tagged, abilities: Abilities) -> Told:
    """What a model can be told of the item; nothing where there is nothing to tell."""
    return _TOLD[type(item)](item, abilities) if type(item) in _TOLD else ()


def shell_call_ids(conversation: Sequence[tuple[str, items.Item]]) -> Mapping[str, str]:
    """The call id of each local shell's call by its item's id: its output names one or the other."""
    return {item.id: item.call_id for _, item in conversation if isinstance(item, calls.LocalShellCall)}


def _call(call_id: str, name: str, arguments: Any, namespace: str | None = None) -> turns.ToolCall:
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    return turns.ToolCall(call_id, name, text, namespace=namespace)


def _result(call_id: str, text: str) -> turns.ToolResult:
    return turns.ToolResult(call_id, (turns.TextPart(text),))


def _computer_call(item: calls.ComputerCall) -> turns.ToolCall:
    return _call(item.call_id, "computer", {"actions": item.actions or [action for action in (item.action,) if action]})


def _screenshot(item: calls.ComputerCallOutput, abilities: Abilities) -> Told:
    if abilities.images and item.output.image_url:
        return (turns.ToolResult(item.call_id, (turns.ImagePart(item.output.image_url),)),)
    return (_result(item.call_id, "Done. The screenshot can't be shown here."),)


def _shell_output(item: calls.ShellCallOutput) -> turns.ToolResult:
    return _result(item.call_id, "\n".join(encode(output).decode() for output in item.output))


def _patch_output(item: calls.ApplyPatchCallOutput) -> turns.ToolResult:
    return _result(item.call_id, item.output or item.status)


def _tool_search(item: calls.ToolSearchCall) -> Told:
    return (_call(item.call_id, "tool_search", item.arguments),) if item.call_id else ()


def _tools_found(item: calls.ToolSearchOutput) -> Told:
    names = [str(getattr(tool, "name", tool.type)) for tool in item.tools]
    return (_result(item.call_id, f"Tools found: {', '.join(names) or 'none'}."),) if item.call_id else ()


def _mcp_call(item: calls.McpCall) -> Told:
    outcome = encode(item.error).decode() if isinstance(item.error, Wire) else item.output or ""
    return (_call(item.id, item.name, item.arguments, item.server_label), _result(item.id, outcome))


def _code(item: calls.CodeInterpreterCall) -> Told:
    logs = [output.logs if isinstance(output, calls.LogsOutput) else "(a picture)" for output in item.outputs or ()]
    return (_call(item.id, "code_interpreter", {"code": item.code or ""}), _result(item.id, "\n".join(logs)))


def _file_search(item: calls.FileSearchCall) -> Told:
    if not item.results:
        return ()
    found = encode(item.results).decode()
    return (_call(item.id, "file_search", {"queries": item.queries}), _result(item.id, found))


_TOLD: dict[type, Callable[[Any, Abilities], Told]] = {
    calls.LocalShellCall: lambda item, _: (_call(item.call_id, "local_shell", item.action),),
    calls.LocalShellCallOutput: lambda item, _: (_result(item.call_id or item.id or "", item.output),),
    calls.ShellCall: lambda item, _: (_call(item.call_id, "shell", item.action),),
    calls.ShellCallOutput: lambda item, _: (_shell_output(item),),
    calls.ApplyPatchCall: lambda item, _: (_call(item.call_id, "apply_patch", item.operation),),
    calls.ApplyPatchCallOutput: lambda item, _: (_patch_output(item),),
    calls.ComputerCall: lambda item, _: (_computer_call(item),),
    calls.ComputerCallOutput: _screenshot,
    calls.ToolSearchCall: lambda item, _: _tool_search(item),
    calls.ToolSearchOutput: lambda item, _: _tools_found(item),
    calls.McpCall: lambda item, _: _mcp_call(item),
    calls.CodeInterpreterCall: lambda item, _: _code(item),
    calls.FileSearchCall: lambda item, _: _file_search(item),
    calls.Program: lambda item, _: (_call(item.call_id, "program", {"code": item.code}),),
    calls.ProgramOutput: lambda item, _: (_result(item.call_id, item.result),),
}
