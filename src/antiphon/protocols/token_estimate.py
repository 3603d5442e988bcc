"""
What an answer came to in tokens, as limits count it.

An engine says so with its last word. Of an answer that was interrupted, or whose engine doesn't count, it is estimated from what was asked
and what was said. An estimate is for limits alone: no client is told it as `usage`.
"""

from antiphon.audio import ms_of
from antiphon.engine_api import commands, history as turns
from antiphon.protocols.output import Item, Response
from antiphon.wire.codec.types import encode

BYTES_PER_TOKEN = 4
"""Of UTF-8: about what tokenizers make of English."""

HEARD_MS_PER_TOKEN, SAID_MS_PER_TOKEN = 100, 50
"""Sound, as the Realtime API counts it."""

TOKENS_OF_A_FILE = 256
"""A picture or a document, which nobody here has looked into."""

RECORDED_BYTES_PER_TOKEN = 3_200
"""100 ms of a recording at 16 kHz; what is compressed counts for less."""


def tokens_of(response: Response, ask: commands.Respond, rate_hz: int) -> int:
    """
    Input and output of an answer that is over.

    Args:
        rate_hz: of its sound.

    Returns:
        What the engine said; else an estimate, which is nothing for an answer that failed before it said anything, or never began.
    """
    if (used := response.used) is not None:
        return max(0, used.input_tokens) + max(0, used.output_tokens)
    text_bytes, sound_ms = sum(map(_said_bytes, response.items)), ms_of(response.sound_bytes, rate_hz)
    if response.outcome in (None, "failed") and not text_bytes and not sound_ms:
        return 0
    return _asked(ask) + _of_text(text_bytes) + -int(-sound_ms // SAID_MS_PER_TOKEN)


def _said_bytes(item: Item) -> int:
    parts = [text for part in (*item.parts, *item.summaries) for text in part.chunks]
    return sum(len(text.encode()) for text in (*parts, *item.chunks))


def _asked(ask: commands.Respond) -> int:
    parts = [part for turn in ask.history for part in getattr(turn, "parts", ())]
    texts = [ask.instructions or "", *(_text_of(turn) for turn in ask.history), *(getattr(part, "text", "") for part in parts)]
    tools = sum(len(encode(tool)) for tool in (*ask.tools, *ask.hosted))
    return _of_text(tools + sum(len(text.encode()) for text in texts)) + sum(map(_of_part, parts))


def _text_of(turn: turns.Turn) -> str:
    """What a turn says outside of its parts."""
    match turn:
        case turns.Thought(text, summary):
            return text or "".join(summary)
        case turns.ToolCall(_, name, arguments):
            return name + arguments
        case turns.Hosted(item):
            return encode(item).decode()
        case _:
            return ""


def _of_text(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)


def _of_part(part: turns.Part) -> int:
    match part:
        case turns.TextPart() | turns.RefusalPart():
            return 0
        case turns.SpeechPart(pcm, rate_hz):
            return -int(-ms_of(len(pcm), rate_hz) // HEARD_MS_PER_TOKEN)
        case turns.AudioPart(inline):
            return len(inline) * 3 // 4 // RECORDED_BYTES_PER_TOKEN
        case _:
            return TOKENS_OF_A_FILE
