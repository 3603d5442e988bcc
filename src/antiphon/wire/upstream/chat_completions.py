"""
Chat completions as servers stream them: only the fields that something is made of, and all of them lenient.

No two servers send the same chunk. What is null in one is absent in the next, and what one calls `reasoning` another calls
`reasoning_content`. So nothing here is required, and what has several shapes is left as it came.
"""

from typing import Any

import msgspec
from msgspec import Struct

DONE = b"[DONE]"
"""What stands in place of a chunk at the end of a stream."""


class Function(Struct, gc=False):
    """Part of a call; `arguments` is JSON text, from some servers the object itself."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct, gc=False):
    """Part of the `index`-th call of an answer."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(Struct, gc=False):
    """
    More of the answer, or the whole message where the server did not stream.

    Attributes:
        content: text; from some servers a list of typed parts.
        reasoning: text; objects are seen, and mean nothing here.
        function_call: the form that calls had before there could be several.
    """

    content: str | list[Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    annotations: list[dict[str, Any]] | None = None


class TopLogprob(Struct, gc=False):
    """A token that might have been, and how likely it was; None where JSON has no number for it, as of what is impossible."""

    token: str
    logprob: float | None = None
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob, gc=False):
    """The token that was, and those that might have been."""

    top_logprobs: list[TopLogprob] | None = None


class Logprobs(Struct, gc=False):
    """Log probabilities of the tokens in a chunk."""

    content: list[TokenLogprob] | None = None


class Choice(Struct, gc=False):
    """One of the answers; only the first is ever asked for."""

    index: int | None = 0
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class PromptDetails(Struct, gc=False):
    """What became of the input tokens."""

    cached_tokens: float | None = None


class CompletionDetails(Struct, gc=False):
    """What the output tokens were."""

    reasoning_tokens: float | None = None


class Usage(Struct, gc=False):
    """Tokens counted; in some languages all numbers have a fraction."""

    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    reasoning_tokens: float | None = None


class Chunk(Struct, gc=False):
    """One event of a stream; `error` is what came instead of the rest."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class ListedModel(Struct, gc=False):
    """A model that a server has; who owns it tells what server it is."""

    id: str = ""
    owned_by: str | None = None


class ModelList(Struct, gc=False):
    """Answer to `GET /models`; no models are null to some servers."""

    data: list[ListedModel] | None = None


# On the way of every token, therefore without a function around them.

decode_chunk = msgspec.json.Decoder(Chunk).decode
"""The chunk in an event's data; raises `msgspec.DecodeError` when it is none."""

decode_models = msgspec.json.Decoder(ModelList).decode
"""The models in a body; raises `msgspec.DecodeError` when there are none."""
