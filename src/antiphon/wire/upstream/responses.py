"""
The Responses API as servers stream it: only the fields that are used, all of them lenient.

`wire.responses.events` has what OpenAI sends. Other servers leave out ids and indexes, add fields of their own, or send
null for a text. So no field is required, and those of several shapes stay untyped.
"""

import msgspec
from msgspec import Raw, Struct

from antiphon.wire.codec.types import JsonDict, JsonValue
from antiphon.wire.upstream.chat_completions import TokenLogprob


class Event(Struct, gc=False):
    """
    One event of a stream, of any type; or, with `object`, a whole response where the server did not stream.

    Attributes:
        delta: text; some servers send objects, which are ignored.
        arguments: JSON text, from some servers the object itself.
        error: an object or a text; flat errors have `code`, `message` and `param` instead.
        response: left as it came, as only that of the last event matters; `decode_response` reads it.
    """

    type: str = ""
    delta: JsonValue = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    logprobs: list[TokenLogprob] | None = None
    text: JsonValue = None
    refusal: JsonValue = None
    arguments: JsonValue = None
    input: JsonValue = None
    name: str | None = None
    part: JsonValue = None
    annotation: JsonValue = None
    item: JsonValue = None
    response: Raw = Raw()
    error: JsonValue = None
    code: JsonValue = None
    message: JsonValue = None
    param: JsonValue = None
    object: str | None = None


class InputDetails(Struct, gc=False):
    """Input tokens by kind."""

    cached_tokens: float | None = None
    cache_write_tokens: float | None = None


class OutputDetails(Struct, gc=False):
    """Output tokens by kind."""

    reasoning_tokens: float | None = None


class Usage(Struct, gc=False):
    """Token counts; floats, as some servers send `12.0`."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class Incomplete(Struct, gc=False):
    """Why a response is incomplete."""

    reason: str | None = None


class Response(Struct, gc=False):
    """A response at its end."""

    status: str | None = None
    error: JsonValue = None
    incomplete_details: Incomplete | None = None
    usage: Usage | None = None
    output: list[JsonValue] | None = None


# On the path of every token, so without a function around it.

decode_event = msgspec.json.Decoder(Event).decode
"""Decodes an event's data; raises `msgspec.DecodeError`."""

decode_response = msgspec.json.Decoder(Response).decode
"""Decodes a response object; raises `msgspec.DecodeError`."""

decode_fields = msgspec.json.Decoder(JsonDict).decode
"""Decodes all fields of an event as plain values."""
