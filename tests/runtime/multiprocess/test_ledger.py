"""What several processes use and count is counted once."""

import pytest

from antiphon.records import KeyRecord
from antiphon.runtime.core.metrics import Metrics, Snapshot
from antiphon.runtime.multiprocess.ledger import UsageLedger
from antiphon.runtime.multiprocess.link import AddTokens, BeginRequest, BeginStream, EndStream, GetLimits

ONE, OTHER = 1, 2


def key(**limits: int) -> KeyRecord:
    return KeyRecord(id="key_1", hash=b"", prefix="", name="", tenant="", scopes=(), created_at=0, **limits)


@pytest.fixture
def ledger() -> UsageLedger:
    made = UsageLedger(monotonic=lambda: 0.0)
    made.add_process(ONE)
    made.add_process(OTHER)
    return made


def counted(**numbers: int) -> Snapshot:
    metrics = Metrics()
    metrics.active = metrics.connections = 1
    metrics.stream_events = numbers["events"]
    metrics.on_upstream_state("up", "open")
    return metrics.snapshot()


def test_requests_to_either_process_come_from_one_bucket(ledger: UsageLedger) -> None:
    limited = key(requests_per_minute=3)
    answers = [ledger.judge(process, BeginRequest(limited)) for process in (ONE, OTHER, ONE, OTHER)]
    assert [answer.states["requests"].remaining for answer in answers] == [2, 1, 0, 0]
    assert [answer.refusal is None for answer in answers] == [True, True, True, False]


def test_streams_of_either_process_are_one_number(ledger: UsageLedger) -> None:
    limited = key(streams=2)
    for process in (ONE, OTHER):
        assert ledger.judge(process, BeginStream(limited, 1)).refusal is None
    refusal = ledger.judge(ONE, BeginStream(limited, 2)).refusal
    assert refusal is not None and refusal.to_error().code == "rate_limit_exceeded"
    ledger.end_stream(OTHER, EndStream(1, 0))
    assert ledger.judge(ONE, BeginStream(limited, 3)).refusal is None


def test_the_end_of_what_was_never_begun_counts_for_nothing(ledger: UsageLedger) -> None:
    limited = key(streams=1, tokens_per_minute=10)
    ledger.judge(ONE, BeginStream(limited, 1))
    assert ledger.judge(ONE, BeginStream(limited, 2)).refusal
    ledger.end_stream(ONE, EndStream(2, 5))
    assert ledger.judge(ONE, BeginStream(limited, 3)).refusal
    assert ledger.judge(ONE, GetLimits(limited)).states["tokens"].remaining == 10


def test_tokens_are_taken_when_an_answer_ends(ledger: UsageLedger) -> None:
    limited = key(tokens_per_minute=10)
    ledger.judge(OTHER, BeginStream(limited, 1))
    ledger.end_stream(OTHER, EndStream(1, 8))
    assert ledger.judge(ONE, GetLimits(limited)).states["tokens"].remaining == 2


def test_tokens_are_taken_while_something_is_under_way_too(ledger: UsageLedger) -> None:
    limited = key(tokens_per_minute=10, streams=1)
    ledger.judge(ONE, BeginStream(limited, 1))
    ledger.add_tokens(AddTokens(limited, 7))
    assert ledger.judge(OTHER, GetLimits(limited)).states["tokens"].remaining == 3
    ledger.add_tokens(AddTokens(key(streams=1), 7))  # where there is no limit, nothing is counted
    assert ledger.judge(OTHER, BeginStream(limited, 1)).refusal is not None


def test_the_streams_of_a_process_end_with_it(ledger: UsageLedger) -> None:
    limited = key(streams=1)
    ledger.judge(ONE, BeginStream(limited, 1))
    ledger.remove_process(ONE)
    assert ledger.judge(OTHER, BeginStream(limited, 1)).refusal is None


def test_what_a_process_counted_stays_when_it_is_gone_and_what_it_had_does_not(ledger: UsageLedger) -> None:
    ledger.set_snapshot(ONE, counted(events=5))
    ledger.set_snapshot(OTHER, counted(events=7))
    ledger.set_snapshot(OTHER, counted(events=8))
    assert (ledger.total().stream_events, ledger.total().active, ledger.total().upstreams) == (13, 2, {("up", "open"): 2})
    ledger.remove_process(ONE)
    ledger.set_snapshot(ONE, counted(events=6))
    total = ledger.total()
    assert (total.stream_events, total.active, total.connections, total.upstreams) == (13, 1, 1, {("up", "open"): 1})
