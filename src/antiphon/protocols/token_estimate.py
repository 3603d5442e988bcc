"""
The tokens of a response, as rate limits count them.

Engines report them at the end. If a response was interrupted, or its engine doesn't count, they are estimated from the
request and the output. Estimates are for limits only: no client sees one as `usage`.
"""

from antiphon.audio import OUTPUT_MS_PER_TOKEN, audio_tokens, duration_ms
from antiphon.engine_api import commands
from antiphon.engine_api.token_estimate import estimate_input_tokens, text_tokens
from antiphon.protocols.output import OutputItem, OutputMachine


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
    return estimate_input_tokens(request) + text_tokens(text_bytes) + audio_tokens(audio_ms, OUTPUT_MS_PER_TOKEN)


def _output_text_bytes(item: OutputItem) -> int:
    parts = [text for part in (*item.parts, *item.summaries) for text in part.chunks]
    return sum(len(text.encode()) for text in (*parts, *item.chunks))
