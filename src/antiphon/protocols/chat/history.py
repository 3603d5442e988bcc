"""The messages of a chat as a history that any engine understands."""

from collections.abc import Iterator, Sequence

from antiphon.engine_api import history
from antiphon.errors import ClientError, missing_parameter, shorten
from antiphon.protocols.chat.content import ContentContext, to_parts, to_text_parts
from antiphon.wire.chat.messages import (
    ChatAssistantMessage,
    ChatDeveloperMessage,
    ChatFunctionCall,
    ChatFunctionMessage,
    ChatMessage,
    ChatRefusal,
    ChatSystemMessage,
    ChatText,
    ChatToolMessage,
    ChatUserMessage,
)
from antiphon.wire.codec.fields import is_set


class _Translation:
    """One conversation, message by message: a tool's answer needs its call, and a call its answer."""

    def __init__(self, context: ContentContext) -> None:
        self._context = context
        self._call_ids: set[str] = set()
        self._open_calls: dict[str, None] = {}
        self._ids_by_function: dict[str, str] = {}

    def items(self, messages: Sequence[ChatMessage]) -> Iterator[history.HistoryItem]:
        for index, message in enumerate(messages):
            yield from self._message_items(message, f"messages[{index}]")
        # The original's rule. A model that sees half of a round trip makes up the rest.
        if self._open_calls:
            raise ClientError(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
                f"The following tool_call_ids did not have response messages: {shorten(', '.join(self._open_calls))}",
                param="messages",
            )

    def _message_items(self, message: ChatMessage, path: str) -> Iterator[history.HistoryItem]:
        match message:
            case ChatSystemMessage():
                yield history.Message("system", to_text_parts(message.content, f"{path}.content", "system"))
            case ChatDeveloperMessage():
                yield history.Message("developer", to_text_parts(message.content, f"{path}.content", "developer"))
            case ChatUserMessage():
                yield history.Message("user", to_parts(message.content, f"{path}.content", self._context))
            case ChatAssistantMessage():
                yield from self._assistant_items(message, path)
            case ChatToolMessage(tool_call_id=call_id):
                # The original's words, with its spelling.
                if call_id not in self._call_ids:
                    raise ClientError(
                        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
                        param=f"{path}.role",
                    )
                self._open_calls.pop(call_id, None)
                yield history.ToolResult(call_id, to_parts(message.content, f"{path}.content", self._context))
            case ChatFunctionMessage():
                yield self._function_result(message, path)

    def _assistant_items(self, message: ChatAssistantMessage, path: str) -> Iterator[history.HistoryItem]:
        parts = self._assistant_parts(message, path)
        calls = list(self._calls(message, path))
        reasoning = next((text for text in (message.reasoning_content, message.reasoning) if isinstance(text, str) and text), None)
        # Models take reasoning only before the message or the call that it led to.
        if reasoning is not None and (parts or calls):
            yield history.ReasoningItem(reasoning)
        # An empty answer is a turn all the same: without it two messages of the user would follow each other.
        if parts or not calls:
            yield history.Message("assistant", parts or (history.TextPart(""),))
        yield from calls

    def _assistant_parts(self, message: ChatAssistantMessage, path: str) -> tuple[history.HistoryPart, ...]:
        parts: tuple[history.HistoryPart, ...] = ()
        if message.content:
            parts = to_text_parts(message.content, f"{path}.content", "assistant", (ChatText, ChatRefusal))
        if message.refusal:
            parts = (*parts, history.RefusalPart(message.refusal))
        if not parts and is_set(message.audio):
            raise ClientError(
                f"Invalid '{path}.audio': spoken answers are not kept. Send the transcript as the message's 'content'.",
                code="unsupported_parameter",
                param=f"{path}.audio",
            )
        return parts

    def _calls(self, message: ChatAssistantMessage, path: str) -> Iterator[history.ToolCall]:
        for call in message.tool_calls or ():
            self._call_ids.add(call.id)
            self._open_calls[call.id] = None
            if isinstance(call, ChatFunctionCall):
                yield history.ToolCall(call.id, call.function.name, call.function.arguments)
            else:
                yield history.ToolCall(call.id, call.custom.name, call.custom.input, custom=True)
        if function_call := message.function_call:
            # From before tools, when a call had no id: its answer names the function.
            call_id = f"call_{path.removeprefix('messages[').removesuffix(']')}"
            self._ids_by_function[function_call.name] = call_id
            self._open_calls[call_id] = None
            yield history.ToolCall(call_id, function_call.name, function_call.arguments)

    def _function_result(self, message: ChatFunctionMessage, path: str) -> history.ToolResult:
        if not message.name:
            raise missing_parameter(f"{path}.name")
        call_id = self._ids_by_function.get(message.name)
        if call_id is None:
            raise ClientError(
                "Invalid parameter: messages with role 'function' must be a response to a preceeding message with 'function_call'.",
                param=f"{path}.role",
            )
        self._open_calls.pop(call_id, None)
        return history.ToolResult(call_id, to_parts(message.content or "", f"{path}.content", self._context))


def to_history(messages: Sequence[ChatMessage], context: ContentContext) -> tuple[history.HistoryItem, ...]:
    """
    The messages as history, in order; instructions stay where they stand.

    Raises:
        ClientError: the engine can't read a part, or calls and their answers don't match.
    """
    return tuple(_Translation(context).items(messages))
