"""What in a request of the Messages API decides which model it goes to, and what its client calls the conversation."""

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct
from starlette.types import Scope

from antiphon.engine_api.token_estimate import TOKENS_PER_FILE
from antiphon.protocols.messages.client_tools import known_tool
from antiphon.runtime.routing.features import TOKENS_PER_IMAGE, RouteFeatures, estimate_tokens, last_user_text, lasting_names
from antiphon.server.http.session_id import MAX_SESSION_ID_CHARACTERS, session_id_of
from antiphon.wire.codec.fields import value_or
from antiphon.wire.codec.types import encode
from antiphon.wire.messages import blocks
from antiphon.wire.messages.request import CountTokensRequest, JsonOutputFormat, MessageParam, MessagesRequest, ToolParam

_OLD_USER_ID = re.compile(r"_session_([\w-]+)\Z")
"""The form of older versions of Claude Code: `user_…_account_…_session_…`."""


class _UserId(Struct):
    """What newer versions of Claude Code have in `metadata.user_id`, as JSON in a string."""

    session_id: str = ""


def session_id_in(scope: Scope, request: CountTokensRequest) -> str:
    """
    What the client calls its conversation, in a header or, as Claude Code does, in `metadata.user_id`; empty where it has
    no name for it. Any other id there is a user's, who may have many conversations.
    """
    if session_id := session_id_of(scope):
        return session_id
    metadata = request.metadata if isinstance(request, MessagesRequest) else None
    user_id = value_or(metadata.user_id, None) if metadata else None
    if not user_id:
        return ""
    if old := _OLD_USER_ID.search(user_id):
        return old[1][:MAX_SESSION_ID_CHARACTERS]
    try:
        return msgspec.json.decode(user_id, type=_UserId).session_id[:MAX_SESSION_ID_CHARACTERS]
    except (msgspec.MsgspecError, RecursionError):
        return ""


def message_features(request: CountTokensRequest, session_id: str = "", *, may_omit_tools: bool = True) -> RouteFeatures:
    """What decides which model a request goes to. One that only counts tokens is no turn, so `begins` is empty."""
    tools = request.tools or ()
    # Tools of the original's servers: a model may lack them, where one that the client runs is a function to it.
    hosted_tools = [tool for tool in tools if not _is_function(tool)]
    content = [block for message in request.messages for block in _blocks(message)]
    config = request.output_config
    continues, begins = _names(request, session_id)
    return RouteFeatures(
        text=last_user_text(_text(message.content) for message in reversed(request.messages) if message.role == "user"),
        input_tokens=_count_tokens(request, content),
        output_tokens=request.max_tokens if isinstance(request, MessagesRequest) else 0,
        has_tools=bool(tools),
        has_function_tools=len(tools) > len(hosted_tools),
        hosted_tools=tuple(dict.fromkeys(str(tool.type) for tool in hosted_tools)),
        may_omit_tools=may_omit_tools,
        has_images=any(isinstance(block, blocks.ImageBlockParam) for block in content),
        has_files=any(isinstance(block, blocks.DocumentBlockParam) and isinstance(block.source, _FILE_SOURCES) for block in content),
        json_schema=bool(config) and isinstance(config.format, JsonOutputFormat),  # type: ignore[union-attr]
        continues=continues,
        begins=begins if isinstance(request, MessagesRequest) else (),
    )


_FILE_SOURCES = (blocks.Base64Source, blocks.UrlSource, blocks.FileSource)


def _is_function(tool: ToolParam) -> bool:
    kind = value_or(tool.type, "custom")
    return kind == "custom" or known_tool(kind, tool.extra or {}) is not None


def _names(request: CountTokensRequest, session_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What identifies the conversation so far, and what its next turn may be identified by."""
    first_text = next((text for message in request.messages if message.role == "user" and (text := _text(message.content))), "")
    tool_names = [value_or(tool.name, None) or "" for tool in request.tools or ()]
    names = lasting_names(_text(request.system or ""), first_text, tool_names, session_id=session_id)
    # The first turn is a new conversation, even where another began with the same words.
    is_first = all(message.role != "assistant" for message in request.messages)
    return () if is_first else tuple(names), tuple(names)


def _blocks(message: MessageParam) -> Iterator[object]:
    """The blocks of a message, and those within the output of a tool."""
    for block in message.content if isinstance(message.content, list) else ():
        yield block
        if isinstance(block, blocks.ToolResultBlockParam) and isinstance(block.content, list):
            yield from block.content


def _text(content: str | Sequence[object]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block, blocks.TextBlockParam))


def _count_tokens(request: CountTokensRequest, content: Sequence[object]) -> int:
    """About how many tokens the engine's prompt has."""
    texts = [_text(request.system or ""), *(message.content for message in request.messages if isinstance(message.content, str))]
    tokens = sum(map(estimate_tokens, texts)) + sum(map(_block_tokens, content))
    return tokens + (estimate_tokens(encode(request.tools).decode()) if request.tools else 0)


def _block_tokens(block: object) -> int:
    match block:
        case blocks.TextBlockParam(text=text) | blocks.ToolResultBlockParam(content=str(text)):
            return estimate_tokens(text)
        case blocks.ImageBlockParam():
            return TOKENS_PER_IMAGE
        case blocks.DocumentBlockParam(source=blocks.PlainTextSource(data=text)):
            return estimate_tokens(text)
        case blocks.DocumentBlockParam(source=blocks.Base64Source() | blocks.UrlSource() | blocks.FileSource()):
            return TOKENS_PER_FILE
        case blocks.DocumentBlockParam() | blocks.SearchResultBlockParam() | blocks.ToolUseBlockParam():
            return estimate_tokens(encode(block).decode())
        case _:  # reasoning, of which models read little or nothing in later turns, and unknown blocks
            return 0
