"""
The output audio buffer of a session whose server plays the audio itself, as over WebRTC: what is heard when.

The law: audio plays in real time, part after part in the order in which they began, and without a pause while there is
any. So it is known at every moment how much was heard, and the player need not report it.
"""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from antiphon.wire.realtime import server_events as events


class BufferedPart(Struct):
    """
    A part of a response whose audio plays or waits; times are in Unix seconds.

    Attributes:
        length_ms: of its audio so far.
        ends_at: when that will have been played; without meaning before it starts to play.
        closed_at: when its audio became complete; None before.
    """

    response_id: str
    item_id: str
    content_index: int
    length_ms: float = 0.0
    ends_at: float = 0.0
    closed_at: float | None = None


class UnheardPart(Struct, frozen=True):
    """A part that was dropped when only `heard_ms` of it had been played."""

    item_id: str
    content_index: int
    heard_ms: int


class OutputBuffer:
    """
    The buffer; `at` is the time of each call, in Unix seconds.

    Args:
        send: sends the client an event, given its class and its fields.
    """

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._parts: deque[BufferedPart] = deque()
        self._open_responses: set[str] = set()
        self._started_responses: list[str] = []
        self._dropped_responses: set[str] = set()
        self._last_response_id = ""

    @property
    def next_end_at(self) -> float | None:
        """When the part that plays will end; None if none plays or its audio is not complete."""
        if not self._parts or self._parts[0].closed_at is None:
            return None
        return self._parts[0].ends_at

    def begin_response(self, response_id: str) -> None:
        """A response starts, which may have audio."""
        self._open_responses.add(response_id)

    def append_audio(self, response_id: str, item_id: str, content_index: int, length_ms: float, at: float) -> bool:
        """
        Add audio to a part.

        Returns:
            Whether it will be played: not once its response was dropped.
        """
        if response_id in self._dropped_responses:
            return False
        part = self._find(item_id, content_index)
        if part is None:
            part = BufferedPart(response_id, item_id, content_index)
            self._parts.append(part)
            if len(self._parts) == 1:
                self._start(at)
        part.length_ms += length_ms
        if part is self._parts[0]:
            part.ends_at = max(part.ends_at, at) + length_ms / 1000
        return True

    def close_part(self, item_id: str, content_index: int, at: float) -> None:
        """The audio of a part is complete."""
        part = self._find(item_id, content_index)
        if part is not None:
            part.closed_at = at
            self.advance(at)

    def finish_response(self, response_id: str, at: float) -> None:
        """A response is over; what is left of its audio still plays."""
        self._open_responses.discard(response_id)
        self._dropped_responses.discard(response_id)
        self.advance(at)
        self._stop(response_id)

    def advance(self, at: float) -> None:
        """Send the events of what has ended or started to play meanwhile."""
        while self._parts and (first := self._parts[0]).closed_at is not None and first.ends_at <= at:
            self._parts.popleft()
            self._stop(first.response_id)
            if self._parts:
                self._start(max(first.ends_at, first.closed_at))

    def drop(self, at: float) -> list[UnheardPart]:
        """Drop everything not yet played, and all audio that its responses still produce."""
        unheard = [UnheardPart(part.item_id, part.content_index, self._heard_ms(part, at)) for part in self._parts]
        self._dropped_responses |= self._open_responses & {*self._started_responses, *(part.response_id for part in self._parts)}
        self._parts.clear()
        response_ids, self._started_responses = self._started_responses, []
        for response_id in response_ids:
            self._send(events.OutputAudioBufferCleared, response_id=response_id)
        return unheard

    def clear(self, at: float) -> list[UnheardPart]:
        """
        Like `drop`, for `output_audio_buffer.clear`: that gets its `cleared` event even if there is nothing to drop.
        """
        if not self._started_responses:
            self._send(events.OutputAudioBufferCleared, response_id=self._last_response_id)
        return self.drop(at)

    def _find(self, item_id: str, content_index: int) -> BufferedPart | None:
        # Audio belongs to the last part, unless several responses are active at once.
        key = (item_id, content_index)
        return next((part for part in reversed(self._parts) if (part.item_id, part.content_index) == key), None)

    def _heard_ms(self, part: BufferedPart, at: float) -> int:
        if part is not self._parts[0]:
            return 0
        # As far as the server has sent it: the player differs by a packet of 20 ms, and by what the client holds back
        # (docs/decisions/0017).
        return int(max(0.0, part.length_ms - max(0.0, part.ends_at - at) * 1000))

    def _start(self, at: float) -> None:
        first = self._parts[0]
        first.ends_at = at + first.length_ms / 1000
        if first.response_id not in self._started_responses:
            self._started_responses.append(first.response_id)
            self._last_response_id = first.response_id
            self._send(events.OutputAudioBufferStarted, response_id=first.response_id)

    def _stop(self, response_id: str) -> None:
        # Realtime: `stopped` comes after `response.done`, once all of the audio was played.
        has_more = response_id in self._open_responses or any(part.response_id == response_id for part in self._parts)
        if response_id in self._started_responses and not has_more:
            self._started_responses.remove(response_id)
            self._send(events.OutputAudioBufferStopped, response_id=response_id)
