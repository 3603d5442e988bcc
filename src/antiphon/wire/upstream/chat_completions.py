"""
Chat completions as servers stream them: only the fields that are used, all of them lenient.

No two servers send the same chunk. What is null in one is absent in the next, and what one calls `reasoning` another
calls `reasoning_content`. So no field is required, and those of several shapes stay untyped.

Every token makes some of these structs, and none is ever part of a cycle, so the garbage collector leaves them alone
(`gc=False`).
"""

import msgspec
from msgspec import Struct

from antiphon.wire.codec.types import JsonDict, JsonValue


class Function(Struct, gc=False):
    """Part of a call; `arguments` is JSON text, from some servers the object itself."""

    name: str | None = None
    arguments: str | JsonDict | None = None


class ToolCall(Struct, gc=False):
    """Part of the `index`-th call of a response."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(Struct, gc=False):
    """
    More of the message, or all of it where the server did not stream.

    Attributes:
        content: text; from some servers a list of typed parts.
        reasoning: text; some servers send objects, which are ignored.
        function_call: the old form of calls, from before `tool_calls`.
    """

    content: str | list[JsonValue] | None = None
    reasoning_content: JsonValue = None
    reasoning: JsonValue = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    annotations: list[JsonDict] | None = None


class TopLogprob(Struct, gc=False):
    """An alternative token; `logprob` is None if it is minus infinity, for which JSON has no number."""

    token: str
    logprob: float | None = None
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob, gc=False):
    """The generated token, with its alternatives."""

    top_logprobs: list[TopLogprob] | None = None


class Logprobs(Struct, gc=False):
    """Log probabilities of the tokens in a chunk."""

    content: list[TokenLogprob] | None = None


class Choice(Struct, gc=False):
    """One of `n` answers; only one is ever requested. `stop_reason` is the stop sequence that ended it, at vLLM."""

    index: int | None = 0
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    stop_reason: JsonValue = None


class PromptDetails(Struct, gc=False):
    """Input tokens by kind."""

    cached_tokens: float | None = None


class CompletionDetails(Struct, gc=False):
    """Output tokens by kind."""

    reasoning_tokens: float | None = None


class Usage(Struct, gc=False):
    """Token counts; floats, as some servers send `12.0`."""

    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    reasoning_tokens: float | None = None


class Chunk(Struct, gc=False):
    """One event of a stream; `error` comes instead of the rest."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: JsonValue = None


class ListedModel(Struct, gc=False):
    """A model of a server; `owned_by` tells the kind of server."""

    id: str = ""
    owned_by: str | None = None


class ModelList(Struct, gc=False):
    """Response to `GET /models`; some servers send null for an empty list."""

    data: list[ListedModel] | None = None


# On the path of every token, so without a function around them.

decode_chunk = msgspec.json.Decoder(Chunk).decode
"""Decodes an event's data; raises `msgspec.DecodeError`."""

decode_models = msgspec.json.Decoder(ModelList).decode
"""Decodes a response to `GET /models`; raises `msgspec.DecodeError`."""
