"""
The events of a streamed message, and how they are written.

Source: the Messages reference, "Streaming messages". No `[DONE]` follows the last one.
"""

from collections.abc import Iterable
from typing import TypeAlias, get_args

from antiphon.wire.codec.types import ENCODER, MARKER_BYTE, Tagged, Wire, strip_markers
from antiphon.wire.messages.blocks import ContentBlock
from antiphon.wire.messages.response import MessageError, MessageResponse, MessageUsage, StopReason


class TextPiece(Tagged, kw_only=True, tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingPiece(Tagged, kw_only=True, tag="thinking_delta"):
    """More of the reasoning."""

    thinking: str


class SignaturePiece(Tagged, kw_only=True, tag="signature_delta"):
    """The signature of the reasoning, once, at its end."""

    signature: str


class InputJsonPiece(Tagged, kw_only=True, tag="input_json_delta"):
    """More of the JSON of a tool call's input."""

    partial_json: str


BlockPiece: TypeAlias = TextPiece | ThinkingPiece | SignaturePiece | InputJsonPiece


class MessageStart(Tagged, kw_only=True, tag="message_start"):
    """The message begins; it is empty."""

    message: MessageResponse


class ContentBlockStart(Tagged, kw_only=True, tag="content_block_start"):
    """A block opens; it is empty."""

    index: int
    content_block: ContentBlock


class ContentBlockDelta(Tagged, kw_only=True, tag="content_block_delta"):
    """The open block grows."""

    index: int
    delta: BlockPiece


class ContentBlockStop(Tagged, kw_only=True, tag="content_block_stop"):
    """The open block is complete."""

    index: int


class MessageEnding(Wire, kw_only=True):
    """Why the message ends."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Tagged, kw_only=True, tag="message_delta"):
    """The message ends; `usage` counts all of it."""

    delta: MessageEnding
    usage: MessageUsage


class MessageStop(Tagged, kw_only=True, tag="message_stop"):
    """The stream ends."""


class Ping(Tagged, kw_only=True, tag="ping"):
    """Nothing has happened for a while."""


MessageStreamEvent: TypeAlias = (
    MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop | Ping | MessageError
)

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

MessageEvent: TypeAlias = MessageStreamEvent | MessageResponse
"""What a session sends: the events of a stream, or the whole message."""


class MessageEncoder:
    """
    Writes the events of a stream.

    Attributes:
        stream_end: what follows the last event: nothing.
        is_stateless: whether an event is written in the same way whatever was written before it.
    """

    stream_end = b""
    is_stateless = True

    def encode_sse_into(self, events: Iterable[MessageEvent], buffer: bytearray) -> None:
        """Append `events` to `buffer`, each as one server-sent event."""
        # Without the line `event:` Anthropic's SDK for Python raises, and Claude Code asks again without `stream`.
        for event in events:
            start = len(buffer)
            buffer += _HEADS[type(event)]
            ENCODER.encode_into(event, buffer, -1)
            # Hardly any event has a marker, so the bytes are copied only where one may be.
            if buffer.find(MARKER_BYTE, start) != -1:
                buffer[start:] = strip_markers(bytes(buffer[start:]))
            buffer += b"\n\n"


_HEADS = {kind: f"event: {kind.__struct_config__.tag}\ndata: ".encode() for kind in get_args(MessageEvent)}
