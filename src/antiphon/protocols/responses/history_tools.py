"""
Items of hosted tools in a conversation, for engines that know plain tool calls only.

A client sends its whole history again, and some of it may come from another model: shell commands, patches, MCP calls.
Each such item becomes a plain call with its result, which every model understands.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.engine_api import history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.protocols.dispatch import convert, table
from antiphon.protocols.responses.approvals import mcp_result_text
from antiphon.tool_api import mcp_function_name
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.types import JsonDict, Tagged, Wire, encode
from antiphon.wire.responses import hosted_calls as calls, items

HistoryItems = tuple[history.HistoryItem, ...]

_ITEM_TYPE_SUFFIX = re.compile(r"_(call|output|call_output|list_tools|approval_request|approval_response)\Z")


def hosted_history_item(item: Tagged, capabilities: Capabilities) -> history.HostedToolItem | None:
    """The item unchanged, for an engine that has its tool; None for others."""
    if not is_item_of(item, capabilities.hosted):
        return None
    return history.HostedToolItem(msgspec.json.decode(encode(item)))


def is_item_of(item: Tagged, tool_types: Iterable[str]) -> bool:
    """Whether a tool of one of these types leaves such items."""
    family = _ITEM_TYPE_SUFFIX.sub("", item.type)
    return bool(family) and any(kind.startswith(family) for kind in tool_types)


def plain_history_items(item: Tagged, capabilities: Capabilities) -> HistoryItems:
    """The item as plain calls and results; empty if it has no such form."""
    return _CONVERTERS[type(item)](item, capabilities) if type(item) in _CONVERTERS else ()


def shell_call_ids(conversation: Sequence[tuple[str, items.Item]]) -> Mapping[str, str]:
    """The call id of each local shell call by its item's id: outputs may name either (see `LocalShellCallOutput`)."""
    return {item.id: item.call_id for _, item in conversation if isinstance(item, calls.LocalShellCall)}


def _call(call_id: str, name: str, arguments: object, namespace: str | None = None) -> history.ToolCall:
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    return history.ToolCall(call_id, name, text, namespace=namespace)


def _result(call_id: str, text: str) -> history.ToolResult:
    return history.ToolResult(call_id, (history.TextPart(text),))


def _action_call(call_id: str, name: str, action: Tagged | Wire) -> history.ToolCall:
    """A call with the arguments that the model gave, which has the same tool as a function."""
    fields: JsonDict = msgspec.json.decode(encode(action))
    return _call(call_id, name, {name: value for name, value in fields.items() if value is not None and (name, value) != ("type", "exec")})


def _computer_call(item: calls.ComputerCall) -> history.ToolCall:
    # OpenAI's types have both: a list of `actions`, or a single `action`.
    return _call(item.call_id, "computer", {"actions": item.actions} if item.actions else {"action": value_or(item.action, None)})


def _computer_output(item: calls.ComputerCallOutput, capabilities: Capabilities) -> HistoryItems:
    if capabilities.images and item.output.image_url:
        return (history.ToolResult(item.call_id, (history.ImagePart(item.output.image_url),)),)
    return (_result(item.call_id, "Done. The screenshot can't be shown here."),)


def _shell_output(item: calls.ShellCallOutput) -> history.ToolResult:
    return _result(item.call_id, "\n".join(encode(output).decode() for output in item.output))


def _patch_output(item: calls.ApplyPatchCallOutput) -> history.ToolResult:
    return _result(item.call_id, item.output or item.status)


def _tool_search_call(item: calls.ToolSearchCall) -> HistoryItems:
    # Only a search that the client ran has a `call_id`, by which its output is found.
    return (_call(item.call_id, "tool_search", item.arguments),) if item.call_id else ()


def _tool_search_output(item: calls.ToolSearchOutput) -> HistoryItems:
    names = [str(getattr(tool, "name", tool.type)) for tool in item.tools]
    return (_result(item.call_id, f"Tools found: {', '.join(names) or 'none'}."),) if item.call_id else ()


def _mcp_call(item: calls.McpCall) -> HistoryItems:
    # Responses: the item of a call that a server ran holds its result too, so both get the item's id.
    name = mcp_function_name(item.server_label, item.name)
    return (_call(item.id, name, item.arguments, item.server_label), _result(item.id, mcp_result_text(item)))


def _code_interpreter_call(item: calls.CodeInterpreterCall) -> HistoryItems:
    logs = [output.logs if isinstance(output, calls.LogsOutput) else "(a picture)" for output in item.outputs or ()]
    return (_call(item.id, "python", {"code": item.code or ""}), _result(item.id, "\n".join(logs)))


def _web_search_call(item: calls.WebSearchCall) -> HistoryItems:
    match item.action:
        case calls.SearchAction(queries=queries, query=query, sources=sources):
            urls = [source.url for source in sources or () if isinstance(source, calls.ActionSearchSource)]
            call = _call(item.id, "web_search", {"queries": queries or [query or ""]})
            return (call, _result(item.id, _page_texts(item) or "\n".join(["Found:", *urls] if urls else ["Done."])))
        case calls.OpenPageAction(url=url):
            return (_call(item.id, "open_page", {"url": url or ""}), _result(item.id, _page_texts(item) or "Read."))
        case calls.FindAction(url=url, pattern=pattern):
            call = _call(item.id, "find_in_page", {"url": url, "pattern": pattern})
            return (call, _result(item.id, _page_texts(item) or "Done."))


def _page_texts(item: calls.WebSearchCall) -> str:
    """What the pages said, which is stored with a search that this server made."""
    results = item.extra.get("results") if item.extra else None
    pages = [page for page in results if isinstance(page, dict)] if isinstance(results, list) else []
    return "\n\n".join("\n".join(str(page[name]) for name in ("title", "url", "text") if page.get(name)) for page in pages)


def _image_generation_call(item: calls.ImageGenerationCall, capabilities: Capabilities) -> HistoryItems:
    call = _call(item.id, "image_generation", {"prompt": item.revised_prompt or ""})
    if not item.result:
        return (call, _result(item.id, "No image was made."))
    if not capabilities.images:
        return (call, _result(item.id, "The image was made, and the user sees it."))
    url = f"data:image/{item.output_format or 'png'};base64,{item.result}"
    return (call, history.ToolResult(item.id, (history.TextPart("The image was made, and the user sees it."), history.ImagePart(url))))


def _file_search_call(item: calls.FileSearchCall) -> HistoryItems:
    # Responses: results are in the item only if the request asked for them with `include`.
    if not item.results:
        return ()
    results = encode(item.results).decode()
    return (_call(item.id, "file_search", {"queries": item.queries}), _result(item.id, results))


_CONVERTERS: dict[type, Callable[[Any, Capabilities], HistoryItems]] = table(
    convert(calls.LocalShellCall, lambda item, _: (_action_call(item.call_id, "local_shell", item.action),)),
    convert(calls.LocalShellCallOutput, lambda item, _: (_result(item.call_id or item.id or "", item.output),)),
    convert(calls.ShellCall, lambda item, _: (_action_call(item.call_id, "shell", item.action),)),
    convert(calls.ShellCallOutput, lambda item, _: (_shell_output(item),)),
    convert(calls.ApplyPatchCall, lambda item, _: (_call(item.call_id, "apply_patch", item.operation),)),
    convert(calls.ApplyPatchCallOutput, lambda item, _: (_patch_output(item),)),
    convert(calls.ComputerCall, lambda item, _: (_computer_call(item),)),
    convert(calls.ComputerCallOutput, _computer_output),
    convert(calls.ToolSearchCall, lambda item, _: _tool_search_call(item)),
    convert(calls.ToolSearchOutput, lambda item, _: _tool_search_output(item)),
    convert(calls.McpCall, lambda item, _: _mcp_call(item)),
    convert(calls.CodeInterpreterCall, lambda item, _: _code_interpreter_call(item)),
    convert(calls.FileSearchCall, lambda item, _: _file_search_call(item)),
    convert(calls.WebSearchCall, lambda item, _: _web_search_call(item)),
    convert(calls.ImageGenerationCall, _image_generation_call),
    convert(calls.Program, lambda item, _: (_call(item.call_id, "program", {"code": item.code}),)),
    convert(calls.ProgramOutput, lambda item, _: (_result(item.call_id, item.result),)),
)
