"""
Ends background responses from outside their session.

Any server may write the end, also one that doesn't make the response: it is final, and the server that makes the
response finds out when it stores more of it, or is told.
"""

from antiphon.errors import ApiError
from antiphon.protocols.responses.ending import cancel_record, closing_events, fail_record
from antiphon.records import ResponseRecord
from antiphon.runtime.background.journal import encode_run
from antiphon.stores.base import Store
from antiphon.wire.responses.events import ResponseCompleted, ResponseFailed, ResponseIncomplete, StreamEvent
from antiphon.wire.responses.response import read_response


async def cancel_response(store: Store, record: ResponseRecord) -> None:
    """End a response as `cancelled`; one that has ended stays as it is."""
    cancelled_record = cancel_record(record)
    await store.background.end(cancelled_record, lambda first: encode_run(first, closing_events(cancelled_record, first)))


async def fail_response(store: Store, record: ResponseRecord, error: ApiError, *, is_orphan: bool = False) -> None:
    """
    End a response as `failed`; one that has ended stays as it is.

    Args:
        is_orphan: whether it is only ended if no living server works on it.
    """
    failed_record = fail_record(record, error)
    events = lambda first: encode_run(first, closing_events(failed_record, first, error))  # noqa: E731
    await store.background.end(failed_record, events, is_orphan=is_orphan)


def terminal_event(record: ResponseRecord, number: int) -> StreamEvent:
    """The last event of a response that has ended, as its record tells it; one that was cancelled ends as failed."""
    kinds: dict[str, type[ResponseCompleted | ResponseIncomplete | ResponseFailed]] = {
        "completed": ResponseCompleted,
        "incomplete": ResponseIncomplete,
    }
    return kinds.get(record.status, ResponseFailed)(sequence_number=number, response=read_response(record.body))
