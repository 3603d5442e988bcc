"""Ends responses from outside their session: what is stored of them then, and what their streams end with."""

from collections.abc import Sequence

import msgspec

from antiphon.engine_api import events as engine_events
from antiphon.errors import ApiError, ServerError
from antiphon.protocols.responses.response_object import failure_note, output_records, response_error
from antiphon.records import ResponseRecord
from antiphon.wire.codec.types import encode
from antiphon.wire.responses import events
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.response import ResponseError, ResponseStatus, read_response
from antiphon.wire.responses.summary import ResponseNotes, decode_notes

INTERRUPTED_MESSAGE = "The server stopped, or could not store this response, before it was finished."
"""Why a response failed whose server died, was taken for dead, or failed to store the end."""


def fail_record(record: ResponseRecord, error: ApiError, output: Sequence[Item] = ()) -> ResponseRecord:
    """The record of a response that ends as `failed`, with the output that it has had."""
    failure = engine_events.ResponseFailed.from_error(record.id, error)
    notes = ResponseNotes() if record.notes is None else decode_notes(record.notes)
    notes = msgspec.structs.replace(notes, failure=failure_note(failure))
    return msgspec.structs.replace(_end_record(record, "failed", output, response_error(failure)), notes=encode(notes))


def fail_interrupted_record(record: ResponseRecord) -> ResponseRecord:
    """The record of a response whose server died: its status is `failed`."""
    return fail_record(record, ServerError(INTERRUPTED_MESSAGE))


def cancel_record(record: ResponseRecord, output: Sequence[Item] = ()) -> ResponseRecord:
    """The record of a response that ends as `cancelled`, with the output that it has had."""
    return _end_record(record, "cancelled", output)


def _end_record(
    record: ResponseRecord, status: ResponseStatus, output: Sequence[Item], error: ResponseError | None = None
) -> ResponseRecord:
    # Responses: only a response that completed has a `completed_at`.
    response = msgspec.structs.replace(read_response(record.body), status=status, error=error, completed_at=None, output=[*output])
    item_records = (*record.items, *output_records(output))
    return msgspec.structs.replace(record, status=status, body=encode(response), items=item_records)


def closing_events(record: ResponseRecord, first: int, error: ApiError | None = None) -> list[StreamEvent]:
    """
    The last events of a background response that was ended from outside its session.

    A cancelled one ends with `response.failed`, whose response says `cancelled`: no event of the API is named after
    that, and SDKs raise at types that they don't know.

    Args:
        first: the sequence number of the first of them.
        error: why it failed; None for a response that was cancelled.
    """
    # An `error` event comes before it and has the first number.
    terminal_event = events.ResponseFailed(sequence_number=first + (error is not None), response=read_response(record.body))
    if error is None:
        return [terminal_event]
    code = error.code or "server_error"
    return [events.error_event(first, message=error.message, type=error.type, code=code, param=error.param), terminal_event]
