"""What writes the events of a protocol as server-sent events."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

EventT_contra = TypeVar("EventT_contra", contravariant=True)


class StreamEncoder(Protocol[EventT_contra]):
    """Writes the events of one stream."""

    @property
    def stream_end(self) -> bytes:
        """What follows the last event."""

    @property
    def is_stateless(self) -> bool:
        """Whether an event is written alike whatever was written before it."""

    def encode_sse_into(self, events: Iterable[EventT_contra], buffer: bytearray) -> None:
        """Append `events` to `buffer`, each as one server-sent event."""
