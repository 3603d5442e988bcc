"""
Ends background responses from outside their session.

Any server may write the end, also one that doesn't make the response: it is final, and the server that makes the
response finds out when it stores more of it, or is told.
"""

import contextlib
from collections.abc import Callable, Sequence

from antiphon.errors import ApiError
from antiphon.offload import offload
from antiphon.protocols.responses.ending import cancel_record, closing_events, fail_record
from antiphon.records import EventRun, ResponseRecord
from antiphon.runtime.background.journal import encode_run
from antiphon.runtime.background.partial_output import PartialOutput
from antiphon.stores.base import Store
from antiphon.wire.responses.events import ResponseCompleted, ResponseFailed, ResponseIncomplete, StreamEvent
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.profiles import read_journal
from antiphon.wire.responses.response import read_response

PAGE_RUNS = 16
"""Rows of events that are read at once."""

MAX_ATTEMPTS = 8
"""How often the last events are read before a response is ended without them, as new ones come faster."""


class _NewEventsError(Exception):
    """More events were stored than had been read."""


async def cancel_response(store: Store, record: ResponseRecord) -> None:
    """End a response as `cancelled`; one that has ended stays as it is."""
    await _end(store, record, lambda output: cancel_record(record, output))


async def fail_response(store: Store, record: ResponseRecord, error: ApiError, *, is_orphan: bool = False) -> None:
    """
    End a response as `failed`; one that has ended stays as it is.

    Args:
        is_orphan: whether it is only ended if no living server works on it.
    """
    stored_record = await store.get(record.tenant, record.id)  # with its items
    if stored_record is not None:
        await _end(store, stored_record, lambda output: fail_record(stored_record, error, output), error, is_orphan=is_orphan)


async def _end(
    store: Store,
    record: ResponseRecord,
    end_record: Callable[[Sequence[Item]], ResponseRecord],
    error: ApiError | None = None,
    *,
    is_orphan: bool = False,
) -> None:
    """End a response with the output that its stored events tell, and close what is open in them."""
    output, number = PartialOutput(record.id), 0
    for attempt in range(MAX_ATTEMPTS):
        number = await _read_events(store, record, output, number)
        ended_record = end_record(output.all_items())
        closing_run = _closing_run(ended_record, output, error, number if attempt < MAX_ATTEMPTS - 1 else None)
        with contextlib.suppress(_NewEventsError):
            await store.background.end(ended_record, closing_run, is_orphan=is_orphan)
            return


async def _read_events(store: Store, record: ResponseRecord, output: PartialOutput, number: int) -> int:
    """Read what is stored from an event on; returns the number of the first that is not."""
    while page := await store.background.events(record.tenant, record.id, number - 1, PAGE_RUNS):
        if not page.runs:
            break
        body = b"".join(run.body for run in page.runs)
        await offload(len(body), lambda body: output.read(read_journal(body)), body)
        number = page.runs[-1].first + page.runs[-1].count
    return number


def _closing_run(
    record: ResponseRecord, output: PartialOutput, error: ApiError | None, expected_number: int | None
) -> Callable[[int], EventRun]:
    """The last events, where they are to have a number; None for any."""

    def encode_closing(first: int) -> EventRun:
        if expected_number is not None and first != expected_number:
            raise _NewEventsError
        item_events = output.closing_events(first)
        return encode_run(first, [*item_events, *closing_events(record, first + len(item_events), error)])

    return encode_closing


def terminal_event(record: ResponseRecord, number: int) -> StreamEvent:
    """The last event of a response that has ended, as its record tells it; one that was cancelled ends as failed."""
    kinds: dict[str, type[ResponseCompleted | ResponseIncomplete | ResponseFailed]] = {
        "completed": ResponseCompleted,
        "incomplete": ResponseIncomplete,
    }
    return kinds.get(record.status, ResponseFailed)(sequence_number=number, response=read_response(record.body))
