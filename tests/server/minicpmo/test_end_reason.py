"""What a session's end counts as."""

import pytest

from antiphon.errors import ClientError, ServerError
from antiphon.runtime.core.taps import combine
from antiphon.server.minicpmo.client import MinicpmoClient
from antiphon.server.minicpmo.resume import ResumableSessions


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ClientError("Too many errors.", code="too_many_errors"), "refused"), (ServerError("A defect."), "failed"), (None, "left")],
)
def test_who_is_at_fault_is_what_counts(error, reason):
    client = MinicpmoClient("chat", "tenant", combine([]), ResumableSessions(), 0)
    client.close(error)
    assert client.end_reason == reason
