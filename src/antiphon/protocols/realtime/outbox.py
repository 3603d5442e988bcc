"""What a Realtime session sends: events with an id each."""

from collections.abc import Mapping

from antiphon.protocols.outbox import Outbox
from antiphon.protocols.session import NewId
from antiphon.wire.realtime import server_events as events


class RealtimeOutbox(Outbox[events.ServerEvent]):
    """The effects of a Realtime session."""

    def __init__(self, new_id: NewId) -> None:
        super().__init__()
        self._new_id = new_id

    def stamp(self) -> Mapping[str, object]:
        return {"event_id": self._new_id("event")}
