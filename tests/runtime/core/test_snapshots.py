"""Numbers of several processes add up, and travel."""

from msgspec import msgpack

from antiphon.runtime.core.metrics import Metrics, Snapshot


def counted(seconds: float, model: str) -> Metrics:
    metrics = Metrics()
    metrics.requests["/v1/responses", "POST", 200].observe(seconds)
    metrics.answers[model, "completed"].observe(seconds)
    metrics.first_token[model].observe(seconds)
    metrics.tokens[model, "output"] += 3
    metrics.dropped["backlog"] += 1
    metrics.store_writes["stored"] += 2
    metrics.sessions = 1
    metrics.sessions_ended[model, "left"] += 1
    metrics.session_events["in"] += 4
    metrics.session_responses[model, "completed"] += 1
    metrics.session_audio_s["out"] += seconds
    metrics.time_to_first_audio[model].observe(seconds)
    metrics.audio_tokens[model, "input"] += 5
    metrics.webhook_attempts["hook", "delivered"] += 6
    metrics.rewrites["spelling", "failed"] += 2
    metrics.webhooks_pending = {"hook": int(10 * seconds), model: 1}
    metrics.on_upstream_state("up", "closed")
    metrics.on_upstream_error("up", "timeout")
    return metrics


def test_counters_histograms_and_gauges_are_added() -> None:
    total = counted(0.5, "a").snapshot() + counted(2.0, "b").snapshot()
    requests = total.requests["/v1/responses", "POST", 200]
    assert (sum(requests.counts), requests.total) == (2, 2.5)
    assert {key: value.total for key, value in total.answers.items()} == {("a", "completed"): 0.5, ("b", "completed"): 2.0}
    assert total.tokens == {("a", "output"): 3, ("b", "output"): 3}
    assert (total.dropped, total.store_writes) == ({"backlog": 2}, {"stored": 4})
    assert (total.sessions, total.sessions_ended) == (2, {("a", "left"): 1, ("b", "left"): 1})
    assert (total.session_events, total.session_audio_s) == ({"in": 8}, {"out": 2.5})
    assert total.session_responses == {("a", "completed"): 1, ("b", "completed"): 1}
    assert total.audio_tokens == {("a", "input"): 5, ("b", "input"): 5}
    assert {model: value.total for model, value in total.time_to_first_audio.items()} == {"a": 0.5, "b": 2.0}
    assert total.webhook_attempts == {("hook", "delivered"): 12}
    assert total.rewrites == {("spelling", "failed"): 4}
    assert total.webhooks_pending == {"hook": 20, "a": 1, "b": 1}  # all processes count the same store
    assert total.without_gauges().sessions == 0
    assert (total.upstreams, total.upstream_failures) == ({("up", "closed"): 2}, {("up", "timeout"): 2})


def test_adding_changes_neither() -> None:
    one, other = counted(0.5, "a"), counted(2.0, "a")
    one.snapshot() + other.snapshot()
    assert (one.answers["a", "completed"].total, other.answers["a", "completed"].total) == (0.5, 2.0)


def test_numbers_travel_whole() -> None:
    snapshot = counted(0.5, "a").snapshot()
    arrived = msgpack.decode(msgpack.encode(snapshot), type=Snapshot)
    total, nothing = arrived + snapshot, Snapshot() + snapshot
    assert total.answers["a", "completed"].total == 1.0
    assert nothing.tokens == arrived.tokens and nothing.upstreams == arrived.upstreams
