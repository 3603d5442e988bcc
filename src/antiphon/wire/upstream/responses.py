"""
The Responses API as servers stream it: only the fields that something is made of, and all of them lenient.

What `wire.responses_events` reads is what the original sends. Other servers leave out ids and indexes, add fields of their own or give
null where a text belongs, so nothing here is required, and what has several shapes is left as it came.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from antiphon.wire.upstream.chat_completions import TokenLogprob

DONE = b"[DONE]"
"""What some servers send in place of an event at the end of a stream."""


class Event(Struct, gc=False):
    """
    One event of a stream, whatever its type; or, with `object`, a whole response where the server did not stream.

    Attributes:
        delta: text; objects are seen, and mean nothing here.
        arguments: JSON text, from some servers the object itself.
        error: an object or a text; flat errors have `code`, `message` and `param` instead.
        response: read by `decode_response` where it matters.
    """

    type: str = ""
    delta: Any = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    logprobs: list[TokenLogprob] | None = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    input: Any = None
    name: str | None = None
    part: Any = None
    annotation: Any = None
    item: Any = None
    response: Raw = Raw()
    error: Any = None
    code: Any = None
    message: Any = None
    param: Any = None
    object: str | None = None


class InputDetails(Struct, gc=False):
    """What became of the input tokens."""

    cached_tokens: float | None = None
    cache_write_tokens: float | None = None


class OutputDetails(Struct, gc=False):
    """What the output tokens were."""

    reasoning_tokens: float | None = None


class Usage(Struct, gc=False):
    """Tokens counted; in some languages all numbers have a fraction."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class Incomplete(Struct, gc=False):
    """Why a response is not whole."""

    reason: str | None = None


class Response(Struct, gc=False):
    """A response at its end."""

    status: str | None = None
    error: Any = None
    incomplete_details: Incomplete | None = None
    usage: Usage | None = None
    output: list[Any] | None = None


# On the way of every token, therefore without a function around it.

decode_event = msgspec.json.Decoder(Event).decode
"""The event in some data; raises `msgspec.DecodeError` when it is none."""

decode_response = msgspec.json.Decoder(Response).decode
"""The response in a body; raises `msgspec.DecodeError` when it is none."""

decode_fields = msgspec.json.Decoder(dict[str, Any]).decode
"""All that an event has, as plain values."""
