"""
How events are written: each profile says how one flavour of the API differs from another.

Source: the OpenAI API's streams; the Open Responses specification of 2026-04-24. What was chosen where they disagree,
and why: docs/decisions/0004.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from msgspec import UNSET, UnsetType, structs

from antiphon.wire.codec.types import ENCODER, MARKER_BYTE, Unknown, encode, strip_markers
from antiphon.wire.responses.events import UNNUMBERED_EVENTS, ErrorEvent, StreamEvent

ErrorShape = Literal["both", "flat", "nested"]


class Profile(NamedTuple):
    """
    A flavour of the API.

    Attributes:
        event_line: what the `event:` line of a server-sent event says: the event's `type`, or always `message`.
        done_marker: whether `data: [DONE]` ends a stream.
        event_names: other names for the `type` of some events.
        error_shape: where the `error` event has its details: in itself, in its `error`, or in both.
    """

    name: str
    event_line: Literal["type", "message"] = "type"
    done_marker: bool = False
    event_names: Mapping[str, str] = {}
    error_shape: ErrorShape = "both"


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("openai"),
        Profile(
            "openresponses",
            done_marker=True,  # its text demands it of every stream; OpenAI's streams have none
            event_names={
                "response.reasoning_text.delta": "response.reasoning.delta",
                "response.reasoning_text.done": "response.reasoning.done",
            },
            error_shape="nested",
        ),
    )
}

_SHAPE_CHANGES: dict[ErrorShape, dict[str, UnsetType]] = {
    "both": {},
    "flat": {"error": UNSET},
    "nested": {"code": UNSET, "message": UNSET, "param": UNSET},
}


class EventEncoder:
    """
    Writes events in the form of a profile; build one for each profile.

    Args:
        profile: a row of `PROFILES`.

    Attributes:
        stream_end: what follows the last server-sent event of a stream.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.stream_end = b"data: [DONE]\n\n" if profile.done_marker else b""
        unusual = {Unknown, ErrorEvent, *UNNUMBERED_EVENTS}
        self._sse_heads = {
            kind: self._sse_head(str(kind.__struct_config__.tag))
            for kind in get_args(StreamEvent)
            if kind not in unusual and kind.__struct_config__.tag not in profile.event_names
        }

    def encode_sse_into(self, events: Iterable[StreamEvent], buffer: bytearray) -> None:
        """Append `events` to `buffer`, each as one server-sent event."""
        for event in events:
            head = self._sse_heads.get(type(event))
            if head is None:
                if not isinstance(event, UNNUMBERED_EVENTS):
                    self._encode_unusual_into(event, buffer)
                continue
            start = len(buffer)
            buffer += head
            ENCODER.encode_into(event, buffer, -1)
            if buffer.find(MARKER_BYTE, start) != -1:
                buffer[start:] = strip_markers(bytes(buffer[start:]))
            buffer += b"\n\n"

    def encode_json(self, event: StreamEvent) -> bytes:
        """`event` as JSON, for one message of a WebSocket."""
        if isinstance(event, ErrorEvent) and event.error and event.message is not UNSET:
            event = structs.replace(event, **_SHAPE_CHANGES[self.profile.error_shape])
        json = encode(event)
        if name := self.profile.event_names.get(event.type):
            # Every event starts with its type.
            json = json.replace(f'"type":"{event.type}"'.encode(), f'"type":"{name}"'.encode(), 1)
        return json

    def _sse_head(self, type: str) -> bytes:
        name = "message" if self.profile.event_line == "message" else " ".join(type.split())
        return f"event: {name}\ndata: ".encode()

    def _encode_unusual_into(self, event: StreamEvent, buffer: bytearray) -> None:
        name = self.profile.event_names.get(event.type, event.type)
        buffer += b"%b%b\n\n" % (self._sse_head(name), self.encode_json(event))
