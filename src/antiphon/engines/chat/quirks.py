"""
How chat completion servers differ in what they accept: a row for each server, a column for each difference.

Their responses need no table: what any of them sends is understood from all of them.
"""

from typing import Literal

from msgspec import Struct

from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.wire.upstream.chat_completions import decode_models


class Quirks(Struct, frozen=True, kw_only=True):
    """
    What one kind of server accepts.

    Attributes:
        developer_role: it knows the role `developer`.
        system_anywhere: system messages may stand in the middle of a conversation, and more than once at its start. The
            chat templates of many open models break on both.
        max_tokens_field: the name of the output limit.
        tool_choice: which forms of `tool_choice` it takes: all of OpenAI's; a word or one tool's name; a word only;
            none.
        parallel_tool_calls: its default for that setting; None if it doesn't know the setting.
        json_object: it takes this response format; else it is sent a schema that any object fits.
        reasoning_field: the field of a message in which earlier reasoning is sent back; None where that is refused or
            ignored.
        thinking_switch: reasoning is turned off by an argument of the chat template, besides `reasoning_effort`.
        logprobs: it reports log probabilities.
        image_urls: it can fetch images by URL; else they must be in the request.
        files: it takes documents.
        tokenizer: whose endpoints it counts the tokens of a prompt with; None where it has none.
    """

    developer_role: bool = False
    system_anywhere: bool = False
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    tool_choice: Literal["openai", "named", "word", "none"] = "named"
    parallel_tool_calls: bool | None = True
    json_object: bool = True
    reasoning_field: str | None = None
    thinking_switch: bool = False
    logprobs: bool = True
    image_urls: bool = True
    files: bool = False
    tokenizer: Literal["vllm", "llamacpp"] | None = None


QUIRKS: dict[str, Quirks] = {
    "openai": Quirks(developer_role=True, system_anywhere=True, max_tokens_field="max_completion_tokens", tool_choice="openai", files=True),
    "vllm": Quirks(max_tokens_field="max_completion_tokens", reasoning_field="reasoning", thinking_switch=True, tokenizer="vllm"),
    "sglang": Quirks(max_tokens_field="max_completion_tokens", reasoning_field="reasoning_content", thinking_switch=True),
    "llamacpp": Quirks(
        tool_choice="word", parallel_tool_calls=False, reasoning_field="reasoning_content", thinking_switch=True, tokenizer="llamacpp"
    ),
    "ollama": Quirks(tool_choice="none", parallel_tool_calls=None, reasoning_field="reasoning", image_urls=False),
    "lmstudio": Quirks(tool_choice="word", parallel_tool_calls=None, json_object=False, logprobs=False, image_urls=False),
    "generic": Quirks(),
}
"""
Source: for vLLM and Ollama their request types (`protocol.py`, `openai.go`), for LM Studio its error messages
(lmstudio-bug-tracker 189, 307, 670), for llama.cpp, OpenAI and SGLang their documents. `tests/support/engines/recorded`
has exchanges with each.
"""

_KIND_BY_OWNER = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "library": "ollama",
    "organization_owner": "lmstudio",
    "openai": "openai",
    "openai-internal": "openai",
    "system": "openai",
}
"""The kind of server by `owned_by` in its list of models."""

PROBE_TIMEOUT_S = 2.0
PROBE_INTERVAL_S = 5.0
"""The pause after a probe without result."""


async def detect_quirks(upstream: UpstreamClient) -> Quirks | None:
    """
    The quirks of the server behind `upstream`, by its list of models; None if there is no list yet, or it can't be
    reached.
    """
    body = await upstream.fetch("/models", PROBE_TIMEOUT_S)
    if isinstance(body, UpstreamFailure):
        # An error status is an answer too: of a server without such a list.
        return QUIRKS["generic"] if body.reason.isdecimal() and not body.counts_against_upstream else None
    try:
        owners = {model.owned_by for model in decode_models(body).data or ()}
    except (ValueError, RecursionError):
        return QUIRKS["generic"]
    if not owners:  # no models are loaded yet
        return None
    kinds = {_KIND_BY_OWNER[owner] for owner in owners if owner in _KIND_BY_OWNER}
    return QUIRKS[kinds.pop()] if len(kinds) == 1 else QUIRKS["generic"]
