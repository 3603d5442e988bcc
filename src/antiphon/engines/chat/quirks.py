"""
How servers of chat completions differ, as a table: a row for each server, a column for each thing that has to be known to ask it.

What servers answer needs no table: whatever any of them sends is understood from all of them.
"""

from typing import Literal

from msgspec import Struct

from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.wire.upstream.chat_completions import decode_models


class Quirks(Struct, frozen=True, kw_only=True):
    """
    What one kind of server wants.

    Attributes:
        developer: whether it knows the role `developer`.
        system_anywhere: whether instructions may stand in the middle of a conversation, and more than once at its beginning. Chat
            templates of many open models break on both.
        max_tokens: the name of the limit.
        choice: how it takes the choice of a tool: OpenAI's forms, all of them; a word or one tool's name; a word only; not at all.
        parallel: what it does about parallel calls when it is told nothing; None when it doesn't know the setting.
        json_object: whether it takes this format; else it is sent a schema that any object fits.
        reasoning: the name under which earlier reasoning is given back to the model; None where that is refused or ignored.
        thinking_switch: whether reasoning is turned off by an argument of the chat template, besides `reasoning_effort`.
        logprobs: whether it reports log probabilities.
        image_urls: whether it can fetch pictures by address; else they must be in the request.
        files: whether it takes documents.
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


QUIRKS: dict[str, Quirks] = {
    "openai": Quirks(developer_role=True, system_anywhere=True, max_tokens_field="max_completion_tokens", tool_choice="openai", files=True),
    "vllm": Quirks(max_tokens_field="max_completion_tokens", reasoning_field="reasoning", thinking_switch=True),
    "sglang": Quirks(max_tokens_field="max_completion_tokens", reasoning_field="reasoning_content", thinking_switch=True),
    "llamacpp": Quirks(tool_choice="word", parallel_tool_calls=False, reasoning_field="reasoning_content", thinking_switch=True),
    "ollama": Quirks(tool_choice="none", parallel_tool_calls=None, reasoning_field="reasoning", image_urls=False),
    "lmstudio": Quirks(tool_choice="word", parallel_tool_calls=None, json_object=False, logprobs=False, image_urls=False),
    "generic": Quirks(),
}
"""
Source: for vLLM and Ollama their request types (`protocol.py`, `openai.go`), for LM Studio its error messages (lmstudio-bug-tracker 189,
307, 670), for llama.cpp, OpenAI and SGLang their documents. `tests/engines/recorded` has exchanges with each.
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
"""What `owned_by` in a server's list of models says about the server."""

PROBE_TIMEOUT_S = 2.0
PROBE_INTERVAL_S = 5.0
"""How long after a try that told nothing the next one is made."""


async def detect_quirks(upstream: UpstreamClient) -> Quirks | None:
    """The row of the server behind `upstream`, by its list of models; None when it could not be asked."""
    listed = await upstream.fetch("/models", PROBE_TIMEOUT_S)
    if isinstance(listed, UpstreamFailure):
        # A status is an answer too: that of a server without such a list.
        return QUIRKS["generic"] if listed.reason.isdecimal() and not listed.counts_against_upstream else None
    try:
        owners = {model.owned_by for model in decode_models(listed).data or ()}
    except (ValueError, RecursionError):
        return QUIRKS["generic"]
    if not owners:  # not yet
        return None
    known = {_KIND_BY_OWNER[owner] for owner in owners if owner in _KIND_BY_OWNER}
    return QUIRKS[known.pop()] if len(known) == 1 else QUIRKS["generic"]
