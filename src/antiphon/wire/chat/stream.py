"""
The stream of a chat completion: its events, and how they are written.

All chunks of a stream begin and end alike, so these bytes are made once, and a token costs no more than its text.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from antiphon.wire.chat.response import ChatChunkChoice, ChatCompletion, ChatDelta, ChatUsage
from antiphon.wire.codec.types import ENCODER, Opt

STREAM_END = b"data: [DONE]\n\n"


class ContentDelta(Struct, frozen=True, gc=False):
    """More of a choice's text: nearly every event of a stream."""

    index: int
    text: str


class RoleChunk(Struct, frozen=True, gc=False):
    """The first chunk of a choice, before anything that the model says: openai-node's stream helper needs it."""

    index: int


class ChoiceChunk(Struct, frozen=True):
    """A chunk of a choice. `length` is how many characters it adds; None where its size reveals nothing that needs padding."""

    choice: ChatChunkChoice
    length: int | None = None


class UsageChunk(Struct, frozen=True):
    """The usage of the whole completion, in a chunk without choices."""

    usage: ChatUsage


class StreamError(Struct, frozen=True):
    """Why the stream ends early; `body` is that of an error response."""

    body: dict[str, Any]


ChatStreamEvent = ContentDelta | RoleChunk | ChoiceChunk | UsageChunk | StreamError
ChatEvent = ChatStreamEvent | ChatCompletion
"""What a session sends: the events of a stream, or a whole completion."""


class ChunkEncoder:
    """
    Writes the events of one stream.

    Args:
        includes_usage: whether it ends with the usage; the other chunks then say null.
        service_tier: what each chunk says of it; `UNSET` for nothing.
        paddings: values of `obfuscation`, by the length of a text modulo their number: each fills the text up to a multiple
            of that. None for no `obfuscation`.

    Attributes:
        stream_end: what follows the last event.
        is_stateless: whether an event is written in the same way whatever was written before it.
    """

    is_stateless = True

    def __init__(
        self,
        id: str,
        created_at: int,
        model: str,
        *,
        choice_count: int = 1,
        includes_usage: bool = False,
        service_tier: Opt[str] = UNSET,
        paddings: Sequence[str] | None = None,
    ) -> None:
        self.stream_end = STREAM_END
        fields = {"id": id, "object": "chat.completion.chunk", "created": created_at, "model": model}
        if service_tier is not UNSET:
            fields["service_tier"] = service_tier
        self._head = b'data: %b,"choices":[' % msgspec.json.encode(fields)[:-1]
        self._tail = b'],"usage":null' if includes_usage else b"]"
        self._paddings = paddings
        self._content_heads = [b'%b{"index":%d,"delta":{"content":' % (self._head, index) for index in range(choice_count)]
        self._content_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def encode_sse_into(self, events: Iterable[ChatEvent], buffer: bytearray) -> None:
        """Append `events` to `buffer`, each as one server-sent event."""
        for event in events:
            # Nearly every event: only its text is encoded, between bytes that were made once.
            if type(event) is ContentDelta:
                buffer += self._content_heads[event.index]
                ENCODER.encode_into(event.text, buffer, -1)
                buffer += self._content_tail
                buffer += b"}\n\n" if self._paddings is None else self._ending(len(event.text))
            else:
                self._encode_unusual_into(event, buffer, events)

    def _encode_unusual_into(self, event: ChatEvent, buffer: bytearray, batch: Iterable[ChatEvent]) -> None:
        match event:
            # With the original's null `refusal`, and its `content`: empty, and null before a call.
            case RoleChunk(index):
                delta = ChatDelta(role="assistant", content=None if _begins_with_call(batch, index) else "", refusal=None)
                self._encode_choice_into(ChatChunkChoice(index=index, delta=delta), None, buffer)
            case ChoiceChunk(choice, length):
                self._encode_choice_into(choice, length, buffer)
            case UsageChunk(usage):
                buffer += b'%b],"usage":%b}\n\n' % (self._head, ENCODER.encode(usage))
            case StreamError(body):
                buffer += b"data: %b\n\n" % msgspec.json.encode(body)
            case _:
                raise TypeError(f"{type(event).__name__} is no event of a stream")

    def _encode_choice_into(self, choice: ChatChunkChoice, length: int | None, buffer: bytearray) -> None:
        buffer += self._head + ENCODER.encode(choice) + self._tail + self._ending(length)

    def _ending(self, length: int | None) -> bytes:
        if self._paddings is None or length is None:
            return b"}\n\n"
        return b',"obfuscation":"%b"}\n\n' % self._paddings[length % len(self._paddings)].encode()


def _begins_with_call(batch: Iterable[ChatEvent], index: int) -> bool:
    """Whether the first that a choice says is a call, as far as it is known when its first chunk is written."""
    for event in batch if isinstance(batch, Sequence) else ():
        if isinstance(event, ContentDelta) and event.index == index:
            return False
        if isinstance(event, ChoiceChunk) and event.choice.index == index:
            delta = event.choice.delta
            return delta.tool_calls is not UNSET or delta.function_call is not UNSET
    return False
