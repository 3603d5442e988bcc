"""The rows of background responses and their events, written with the responses in one transaction."""

import time
from collections.abc import Iterable

from sqlalchemy import bindparam, delete, func, insert, null, select, update

from antiphon.records import BackgroundRecord, EventRun
from antiphon.stores.base import UNFINISHED_STATUSES
from antiphon.stores.sql.connection import TimedConnection
from antiphon.stores.sql.schema import background_responses, response_events


class BackgroundRows:
    """
    What a batch of writes adds to the rows of background responses, by number of the response.

    Attributes:
        new: background responses.
        events: to add.
        repeats: the first events of those that may be stored already.
        statuses: of responses that have begun or ended.
    """

    def __init__(self) -> None:
        self.new: list[tuple[int, BackgroundRecord]] = []
        self.events: list[tuple[int, EventRun]] = []
        self.repeats: list[tuple[int, int]] = []
        self.statuses: list[tuple[int, str]] = []

    async def write(self, connection: TimedConnection) -> None:
        """Write them, within a transaction."""
        if self.new:
            await connection.execute(_INSERT, [_row(number, background) for number, background in self.new])
        for number, first in self.repeats:
            await connection.execute(_DELETE_FROM, {"of_number": number, "of_first": first})
        if self.events:
            await connection.execute(_INSERT_EVENTS, [event_row(number, events) for number, events in self.events])
        await note_status(connection, self.statuses)


async def note_status(connection: TimedConnection, changes: Iterable[tuple[int, str]]) -> None:
    """Note that responses, by number, have begun or ended."""
    for number, status in changes:
        if status in UNFINISHED_STATUSES:
            await connection.execute(_BEGIN, {"of_number": number})
        else:
            await connection.execute(_END, {"of_number": number, "now": int(time.time())})


def event_row(number: int, events: EventRun) -> dict[str, object]:
    """The row of events of the response with that number."""
    return {"response_number": number, "first": events.first, "event_count": events.count, "body": events.body}


def _row(number: int, background: BackgroundRecord) -> dict[str, object]:
    return {
        "response_number": number,
        "key_id": background.key_id,
        "request": background.request,
        "is_streamed": background.is_streamed,
        "is_expired": False,
        "event_bytes": 0,
        "ended_at": None,
    }


_INSERT = insert(background_responses)
_INSERT_EVENTS = insert(response_events)
_DELETE_FROM = delete(response_events).where(
    response_events.c.response_number == bindparam("of_number"), response_events.c.first >= bindparam("of_first")
)
_ONE = update(background_responses).where(background_responses.c.response_number == bindparam("of_number"))
_BEGIN = _ONE.values(request=null())
_event_bytes = (
    select(func.coalesce(func.sum(func.length(response_events.c.body)), 0))
    .where(response_events.c.response_number == bindparam("of_number"))
    .scalar_subquery()
)
_END = _ONE.values(request=null(), ended_at=bindparam("now"), event_bytes=_event_bytes)
