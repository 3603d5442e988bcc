"""
What an answer came to in tokens, as limits count it.

An engine says so with its last word. Of an answer that was interrupted, or whose engine doesn't count, it is estimated from what was asked
and what was said. An estimate is for limits alone: no client is told it as `usage`.
"""

from antiphon.audio import duration_ms
from antiphon.engine_api import commands, history
from antiphon.protocols.output import OutputItem, OutputMachine
from antiphon.wire.codec.types import encode

BYTES_PER_TOKEN = 4
"""Of UTF-8: about what tokenizers make of English."""

INPUT_AUDIO_MS_PER_TOKEN, OUTPUT_AUDIO_MS_PER_TOKEN = 100, 50
"""Sound, as the Realtime API counts it."""

TOKENS_PER_FILE = 256
"""A picture or a document, which nobody here has looked into."""

AUDIO_FILE_BYTES_PER_TOKEN = 3_200
"""100 ms of a recording at 16 kHz; what is compressed counts for less."""


def response_tokens(output: OutputMachine, request: commands.Respond, rate_hz: int) -> int:
    """
    Input and output of an answer that is over.

    Args:
        rate_hz: of its sound.

    Returns:
        What the engine said; else an estimate, which is nothing for an answer that failed before it said anything, or never began.
    """
    if (used := output.usage) is not None:
        return max(0, used.input_tokens) + max(0, used.output_tokens)
    text_bytes, sound_ms = sum(map(_output_text_bytes, output.items)), duration_ms(output.audio_bytes, rate_hz)
    if output.outcome in (None, "failed") and not text_bytes and not sound_ms:
        return 0
    return _input_tokens(request) + _text_tokens(text_bytes) + -int(-sound_ms // OUTPUT_AUDIO_MS_PER_TOKEN)


def _output_text_bytes(item: OutputItem) -> int:
    parts = [text for part in (*item.parts, *item.summaries) for text in part.chunks]
    return sum(len(text.encode()) for text in (*parts, *item.chunks))


def _input_tokens(request: commands.Respond) -> int:
    parts = [part for turn in request.history for part in getattr(turn, "parts", ())]
    texts = [request.instructions or "", *(_item_text(turn) for turn in request.history), *(getattr(part, "text", "") for part in parts)]
    tools = sum(len(encode(tool)) for tool in (*request.tools, *request.hosted_tools))
    return _text_tokens(tools + sum(len(text.encode()) for text in texts)) + sum(map(_part_tokens, parts))


def _item_text(history_item: history.HistoryItem) -> str:
    """What a turn says outside of its parts."""
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
            return -int(-duration_ms(len(pcm), rate_hz) // INPUT_AUDIO_MS_PER_TOKEN)
        case history.AudioPart(inline):
            return len(inline) * 3 // 4 // AUDIO_FILE_BYTES_PER_TOKEN
        case _:
            return TOKENS_PER_FILE
