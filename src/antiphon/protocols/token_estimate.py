"""
The tokens of a response, as rate limits count them.

Engines report them at the end. If a response was interrupted, or its engine doesn't count, they are estimated from the
request and the output. Estimates are for limits only: no client sees one as `usage`.
"""

from antiphon.audio import INPUT_MS_PER_TOKEN, OUTPUT_MS_PER_TOKEN, audio_tokens, duration_ms
from antiphon.engine_api import commands, history
from antiphon.protocols.output import OutputItem, OutputMachine
from antiphon.wire.codec.types import encode

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 in a token: about what tokenizers make of English."""

TOKENS_PER_FILE = 256
"""An image or a document; its content is not looked at."""

AUDIO_FILE_BYTES_PER_TOKEN = 3_200
"""100 ms of uncompressed s16le at 16 kHz; compressed files count for less."""


def response_tokens(output: OutputMachine, request: commands.Respond, rate_hz: int) -> int:
    """
    Input and output tokens of a response that is over.

    Args:
        rate_hz: of its audio.

    Returns:
        What the engine reported, or else an estimate: 0 if the response failed before any output, or never began.
    """
    if (usage := output.usage) is not None:
        return max(0, usage.input_tokens) + max(0, usage.output_tokens)
    text_bytes, audio_ms = sum(map(_output_text_bytes, output.items)), duration_ms(output.audio_bytes, rate_hz)
    if output.outcome in (None, "failed") and not text_bytes and not audio_ms:
        return 0
    return _input_tokens(request) + _text_tokens(text_bytes) + audio_tokens(audio_ms, OUTPUT_MS_PER_TOKEN)


def _output_text_bytes(item: OutputItem) -> int:
    parts = [text for part in (*item.parts, *item.summaries) for text in part.chunks]
    return sum(len(text.encode()) for text in (*parts, *item.chunks))


def _input_tokens(request: commands.Respond) -> int:
    parts = [part for item in request.history for part in getattr(item, "parts", ())]
    texts = [request.instructions or "", *(_item_text(item) for item in request.history), *(getattr(part, "text", "") for part in parts)]
    tools = sum(len(encode(tool)) for tool in (*request.tools, *request.hosted_tools))
    return _text_tokens(tools + sum(len(text.encode()) for text in texts)) + sum(map(_part_tokens, parts))


def _item_text(history_item: history.HistoryItem) -> str:
    match history_item:
        case history.ReasoningItem(text, summary):
            return text or "".join(summary)
        case history.ToolCall(_, name, arguments):
            return name + arguments
        case history.HostedToolItem(item):
            return encode(item).decode()
        case _:
            return ""


def _text_tokens(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)


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
