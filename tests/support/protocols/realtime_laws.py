"""The rules of every Realtime session, checked event by event."""

from typing import Any

from antiphon.engine_api import commands
from antiphon.wire.realtime import server_events as events

DELTAS = {
    events.ResponseOutputTextDelta: "text",
    events.ResponseOutputAudioTranscriptDelta: "audio",
    events.ResponseOutputAudioDelta: "audio",
}
WORDS = {
    events.ResponseOutputTextDelta,
    events.ResponseOutputAudioTranscriptDelta,
    events.ResponseFunctionCallArgumentsDelta,
}
WHOLE = {
    events.ResponseOutputTextDone: "text",
    events.ResponseOutputAudioTranscriptDone: "transcript",
    events.ResponseFunctionCallArgumentsDone: "arguments",
}


class ResponseInProgress:
    """A response, by its events."""

    def __init__(self, response: Any) -> None:
        self.is_aside = response.conversation_id is None
        self.metadata = response.metadata
        self.output: list[Any] = []
        self.item: Any = None
        self.part: str | None = None
        self.parts = 0
        self.words = ""


class Laws:
    """
    The rules of a session, and the state to check them.

    Attributes:
        live: the responses in progress, by their ids.
        order: the items of the conversation, in the order of a client that inserts each after its previous one.
    """

    def __init__(self) -> None:
        self.live: dict[str, ResponseInProgress] = {}
        self.over: set[str] = set()
        self.order: list[str] = []
        self.undone: set[str] = set()
        self.speaking: str | None = None
        self.started_ms = 0
        self.event_ids: set[str] = set()
        self.asked: set[str] = set()
        self.cancelled: set[str] = set()
        self.turns: set[str] = set()
        self.playing: set[str] = set()
        self.played: list[str] = [""]

    def see(self, event: Any) -> None:
        """An event was sent."""
        assert event.event_id not in self.event_ids
        self.event_ids.add(event.event_id)
        response_id = getattr(event, "response_id", None)
        if isinstance(event, events.OutputAudioBufferEvent):
            self._is_played(event)
            return
        if response_id is not None:
            assert response_id in self.live, "nothing is sent of a response before it is created, or after it is done"
        name = f"_{type(event).__name__}"
        if hasattr(self, name):
            getattr(self, name)(event)
        elif type(event) in DELTAS or type(event) in WORDS:
            self._grows(event)
        elif type(event) in WHOLE:
            self._is_whole(event)

    def _is_played(self, event: Any) -> None:
        id = event.response_id
        match event:
            case events.OutputAudioBufferStarted():
                assert (id in self.live or id in self.over) and id not in self.played, "it is played once"
                self.playing.add(id)
                self.played.append(id)
            case events.OutputAudioBufferStopped():
                assert id in self.over and id in self.playing, "it was played to its end after all of it had been sent"
                self.playing.remove(id)
            case events.OutputAudioBufferCleared():
                assert id in self.playing or id == self.played[-1], "what is cleared is what is played, or was last"
                self.playing.discard(id)

    def check_command(self, command: Any) -> None:
        """The engine was sent a command."""
        match command:
            case commands.Respond(id=id):
                assert id in self.live and id not in self.asked
                self.asked.add(id)
            case commands.Cancel(id):
                assert id in self.asked and id not in self.cancelled
                self.cancelled.add(id)
            case commands.CommitAudio(id):
                assert id not in self.turns or not id.startswith("turn_"), "an id of ours is given once"
                self.turns.add(id)

    # Responses

    def _ResponseCreated(self, event: Any) -> None:
        id, response = event.response.id, event.response
        assert id not in self.live and id not in self.over
        assert (response.status, response.output) == ("in_progress", [])
        self.live[id] = ResponseInProgress(response)
        assert sum(not record.is_aside for record in self.live.values()) <= 1, "one response at a time answers the conversation"

    def _ResponseDone(self, event: Any) -> None:
        response = event.response
        record = self.live.pop(response.id)
        self.over.add(response.id)
        assert record.item is None, "every item is closed before its response"
        assert response.status != "in_progress"
        assert response.output == record.output
        assert response.metadata == record.metadata
        assert (response.status_details is None) == (response.status == "completed")

    def _ResponseOutputItemAdded(self, event: Any) -> None:
        record = self.live[event.response_id]
        assert record.item is None
        assert event.output_index == len(record.output)
        record.item, record.parts, record.words = event.item, 0, ""
        assert event.item.status == "in_progress"

    def _ResponseOutputItemDone(self, event: Any) -> None:
        record = self.live[event.response_id]
        assert record.part is None, "every part is closed before its item"
        assert event.item.id == record.item.id
        assert event.item.status in ("completed", "incomplete")
        assert len(getattr(event.item, "content", [])) == record.parts
        assert event.item.id not in self.undone, "an item is done in the conversation first"
        record.output.append(event.item)
        record.item = None

    def _ResponseContentPartAdded(self, event: Any) -> None:
        record = self._at(event)
        assert record.part is None
        assert event.content_index == record.parts
        record.part, record.words, record.parts = event.part.type, "", record.parts + 1

    def _ResponseContentPartDone(self, event: Any) -> None:
        record = self._at(event)
        assert record.part == event.part.type
        record.part = None

    def _at(self, event: Any) -> ResponseInProgress:
        record = self.live[event.response_id]
        assert record.item is not None
        assert (record.item.id, len(record.output)) == (event.item_id, event.output_index)
        return record

    def _grows(self, event: Any) -> None:
        record = self._at(event)
        assert record.part == DELTAS.get(type(event))
        assert event.delta
        if type(event) in WORDS:
            record.words += event.delta

    def _is_whole(self, event: Any) -> None:
        assert getattr(event, WHOLE[type(event)]) == self._at(event).words

    # Items

    def _ConversationItemAdded(self, event: Any) -> None:
        at = 0 if event.previous_item_id is None else self.order.index(event.previous_item_id) + 1
        assert event.item.id not in self.order
        self.order.insert(at, event.item.id)
        self.undone.add(event.item.id)

    def _ConversationItemDone(self, event: Any) -> None:
        self.undone.remove(event.item.id)
        at = self.order.index(event.item.id)
        assert event.previous_item_id == (self.order[at - 1] if at else None)

    def _ConversationItemDeleted(self, event: Any) -> None:
        self.order.remove(event.item_id)
        self.undone.discard(event.item_id)

    def _ConversationItemTruncated(self, event: Any) -> None:
        assert event.item_id in self.order

    def _InputAudioBufferCommitted(self, event: Any) -> None:
        assert event.item_id not in self.order
        assert event.previous_item_id == (self.order[-1] if self.order else None)

    # Speech

    def _InputAudioBufferSpeechStarted(self, event: Any) -> None:
        assert self.speaking is None
        assert event.item_id not in self.order
        self.speaking, self.started_ms = event.item_id, event.audio_start_ms

    def _InputAudioBufferSpeechStopped(self, event: Any) -> None:
        assert self.speaking == event.item_id
        assert self.started_ms <= event.audio_end_ms
        self.speaking = None
