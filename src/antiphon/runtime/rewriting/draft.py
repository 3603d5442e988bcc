"""The events of a response that may be rewritten: which go to the client at once, and which wait."""

from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.engine_api import events

_CLOSING_EVENTS = (events.ItemBoundary, events.EncryptedReasoning, events.ToolCallStarted, events.HostedToolStarted)
"""Events that end the message before them; so does a delta of reasoning or of a refusal that is not empty."""

_OUTPUT_EVENTS = (
    events.ReasoningBoundary,
    events.ToolArgumentsDelta,
    events.ToolCallDone,
    events.HostedToolProgress,
    events.HostedToolDone,
)
"""Events of an earlier item that came after text, and keep their place after it."""


_AFTER_BOUNDARY = (events.ItemBoundary, events.Usage, events.ResponseEnded, events.ResponseFailed)
"""Events that don't begin another item after the message."""


class Draft:
    """
    The draft of one response: only a message of text that ends it is rewritten. What comes before a tool call stays as it
    is, and so does a message with a refusal in it.

    Args:
        holds: whether the text is kept back until it is known whether it is rewritten.
        max_chars: a longer text is not rewritten, and kept back no longer.

    Attributes:
        annotations: of the text.
        end: the response's end, once it waits for the rewrite.
        usage: the tokens of the draft; None if the engine did not report them.
    """

    def __init__(self, holds: bool, max_chars: int) -> None:
        self.annotations: list[dict[str, Any]] = []
        self.end: events.ResponseEnded | None = None
        self.usage: events.Usage | None = None
        self._holds = holds
        self._max_chars = max_chars
        self._chunks: list[str] = []
        self._size = 0
        self._has_refusal = False
        self._held_events: list[events.EngineEvent] = []
        self._boundaries: list[events.ItemBoundary] = []

    @property
    def text(self) -> str:
        """The text of the open message."""
        return "".join(self._chunks)

    @property
    def has_held_events(self) -> bool:
        """Whether the text is held, so that the client has nothing of it yet."""
        return bool(self._held_events)

    def take(self, event: events.EngineEvent) -> Sequence[events.EngineEvent]:
        """The events to deliver now that this one has come; none of it any more once `end` is set."""
        if self._boundaries and not isinstance(event, _AFTER_BOUNDARY):
            return (*self._close(), *self.take(event))
        if isinstance(event, events.ItemBoundary) and self._is_rewritable:
            self._boundaries.append(event)  # The response may be about to end: some engines also say where its last item ends.
            return ()
        return self._take_at_once(event)

    def _take_at_once(self, event: events.EngineEvent) -> Sequence[events.EngineEvent]:
        match event:
            case events.TextDelta() | events.AudioTranscriptDelta():  # Without a voice in the request, a transcript is the text.
                return self._add_text(event)
            case events.AnnotationAdded():
                self.annotations.append(event.annotation)
                return self._pass_or_hold(event)
            case events.Usage():
                self.usage = event
                return (event,)
            case events.ResponseEnded(_, "stop" | "length") if self._is_rewritable:
                self.end = event
                return ()
            case events.ResponseEnded() | events.ResponseFailed():
                return (*self.release(), event)
            case events.ReasoningDelta(_, text) | events.RefusalDelta(_, text) if text:
                return (*self._close(has_refusal=isinstance(event, events.RefusalDelta)), event)
            case _ if isinstance(event, _CLOSING_EVENTS):
                return (*self._close(), event)
            case _ if self._held_events and isinstance(event, _OUTPUT_EVENTS):
                return self._pass_or_hold(event)
            case _:
                return (event,)

    def release(self) -> Sequence[events.EngineEvent]:
        """The events that were held, for delivery."""
        released_events = (*self._held_events, *self._boundaries)
        self._held_events, self._boundaries = [], []
        return released_events

    def replace(self, text: Iterable[events.EngineEvent]) -> Sequence[events.EngineEvent]:
        """The events that were held, with `text` in place of the draft's."""
        return (*text, *(event for event in self.release() if isinstance(event, (*_OUTPUT_EVENTS, events.ItemBoundary))))

    @property
    def _is_rewritable(self) -> bool:
        return not self._has_refusal and self._size <= self._max_chars and any(chunk.strip() for chunk in self._chunks)

    def _add_text(self, event: events.TextDelta | events.AudioTranscriptDelta) -> Sequence[events.EngineEvent]:
        self._size += len(event.text)
        if self._size > self._max_chars:
            # Too long to be rewritten: what was held has no more reason to wait.
            self._chunks.clear()
            return (*self.release(), event)
        if event.text:
            self._chunks.append(event.text)
        return self._pass_or_hold(event)

    def _pass_or_hold(self, event: events.EngineEvent) -> Sequence[events.EngineEvent]:
        if not self._holds or self._has_refusal or self._size > self._max_chars:
            return (event,)
        self._held_events.append(event)
        return ()

    def _close(self, *, has_refusal: bool = False) -> Sequence[events.EngineEvent]:
        self._chunks, self._size, self.annotations = [], 0, []
        self._has_refusal = has_refusal
        return self.release()
