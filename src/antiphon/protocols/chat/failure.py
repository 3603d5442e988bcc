"""Errors of engines in the words of Chat Completions."""

from antiphon.errors import ApiError, ClientError

CONTEXT_CODE = "context_length_exceeded"
CONTEXT_PHRASE = "This model's maximum context length is"

_FIELDS = {
    "input": "messages",
    "text.format": "response_format",
    "max_output_tokens": "max_completion_tokens",
    "reasoning.effort": "reasoning_effort",
    "text.verbosity": "verbosity",
}
"""Fields of the Responses API, which engines name in errors, and what they are called here."""


def to_chat_error(error: ApiError, context_window: int | None) -> ApiError:
    """
    The error as a client of Chat Completions knows it.

    Args:
        context_window: of the model, in tokens; None if unknown.
    """
    param = None if error.param is None else _FIELDS.get(error.param, error.param)
    if error.code == CONTEXT_CODE:
        return ClientError(_context_message(error.message, context_window), code=CONTEXT_CODE, param=param or "messages")
    if param == error.param:
        return error
    kind = type(error)
    return kind(error.message, code=error.code, param=param, status=error.status, type=error.type, retry_after_s=error.retry_after_s)


def _context_message(message: str, context_window: int | None) -> str:
    """
    The message, with both texts that programs look for: LiteLLM for the original's sentence, LangChain for the code,
    and openai-python from 3 on shows no more of an error than its message.
    """
    if CONTEXT_PHRASE not in message:
        size = "exceeded" if context_window is None else f"{context_window} tokens"
        message = f"{message.rstrip()} {CONTEXT_PHRASE} {size}."
    return message if CONTEXT_CODE in message else f"{message} ({CONTEXT_CODE})"
