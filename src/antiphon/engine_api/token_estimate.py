"""
The tokens of a request, estimated where nothing counts them: four bytes of UTF-8 are one, which is about what tokenizers
make of English.
"""

from collections.abc import Iterable, Sequence

import msgspec

from antiphon.audio import INPUT_MS_PER_TOKEN, audio_tokens, duration_ms
from antiphon.engine_api import commands, history

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 in a token: about what tokenizers make of English."""

TOKENS_PER_FILE = 256
"""An image or a document; its content is not looked at."""

AUDIO_FILE_BYTES_PER_TOKEN = 3_200
"""100 ms of uncompressed s16le at 16 kHz; compressed files count for less."""


def estimate_input_tokens(request: commands.Respond) -> int:
    """About how many tokens the instructions, the tools and the history have."""
    parts = [part for item in request.history for part in getattr(item, "parts", ())]
    texts = [request.instructions or "", *(_item_text(item) for item in request.history), *(getattr(part, "text", "") for part in parts)]
    tools = sum(len(msgspec.json.encode(tool)) for tool in (*request.tools, *request.hosted_tools))
    return text_tokens(tools + sum(len(text.encode()) for text in texts)) + media_tokens(parts)


def text_tokens(size_bytes: int) -> int:
    """About how many tokens so many bytes of UTF-8 have."""
    return -(-size_bytes // BYTES_PER_TOKEN)


def media_tokens(parts: Iterable[history.HistoryPart]) -> int:
    """About how many tokens the parts have that are no text."""
    return sum(map(_part_tokens, parts))


def separate_media(conversation: Sequence[history.HistoryItem]) -> tuple[tuple[history.HistoryItem, ...], Sequence[history.HistoryPart]]:
    """A history with the text only, and its other parts."""
    media: list[history.HistoryPart] = []
    texts: list[history.HistoryItem] = []
    for item in conversation:
        if isinstance(item, history.Message | history.ToolResult):
            media += (part for part in item.parts if not _is_text(part))
            parts = tuple(part for part in item.parts if _is_text(part)) or (history.TextPart(""),)
            item = msgspec.structs.replace(item, parts=parts)
        texts.append(item)
    return tuple(texts), media


def _is_text(part: history.HistoryPart) -> bool:
    return isinstance(part, history.TextPart | history.RefusalPart)


def _item_text(history_item: history.HistoryItem) -> str:
    match history_item:
        case history.ReasoningItem(text, summary):
            return text or "".join(summary)
        case history.ToolCall(_, name, arguments):
            return name + arguments
        case history.HostedToolItem(item):
            return msgspec.json.encode(item).decode()
        case _:
            return ""


def _part_tokens(part: history.HistoryPart) -> int:
    match part:
        case history.TextPart() | history.RefusalPart():
            return 0
        case history.SpeechPart(pcm, rate_hz):
            return audio_tokens(duration_ms(len(pcm), rate_hz), INPUT_MS_PER_TOKEN)
        case history.AudioPart(inline):
            # Base64: four characters for three bytes (RFC 4648).
            return len(inline) * 3 // 4 // AUDIO_FILE_BYTES_PER_TOKEN
        case _:
            return TOKENS_PER_FILE
