"""`GET /metrics` in Prometheus text format. `docs/reference/metrics.md` has a row for every name."""

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from antiphon.runtime.core.metrics import Histogram, Snapshot
from antiphon.runtime.multiprocess.link import ServerTotals
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.operation import Operation

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import CollectorRegistry

K = TypeVar("K", bound=tuple[str, ...])
T = TypeVar("T")

LabelledValues: TypeAlias = Mapping[K, T]
"""Metric values by their label values, as a tuple."""

HTTP_LABELS = ("http_route", "http_request_method", "http_response_status_code")
MODEL_LABEL = "gen_ai_request_model"


_METRICS = Operation("getMetrics", "Server", "Metrics for Prometheus", media_types=("text/plain",))


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/metrics`."""

    async def metrics(_request: Request) -> Response:
        from prometheus_client import exposition  # noqa: PLC0415 - loads in 50 ms, and many servers are never scraped

        registry = _registry(await _sum_processes(service))
        return Response(exposition.generate_latest(registry), headers={"content-type": exposition.CONTENT_TYPE_PLAIN_0_0_4})

    return [GuardedRoute("/metrics", metrics, service=service, access="admin", operation=_METRICS)]


async def _sum_processes(service: Service) -> ServerTotals:
    """The totals of all processes of this server: a scraper reaches any one of them, never a certain one."""
    mine = service.metrics.snapshot()
    return ServerTotals(mine, (os.getpid(),), 0) if service.peers is None else await service.peers.totals(mine)


def _registry(totals: ServerTotals) -> "CollectorRegistry":
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - as above

    registry = CollectorRegistry()
    registry.register(_server_collector(totals.snapshot))
    registry.register(_process_collector(totals.pids, totals.gone_cpu_s))
    return registry


class _Collector:
    """
    What a registry collects from. It is no subclass of the library's `Collector`: as the library is loaded late, that
    class would be made anew for every scrape, and only a full garbage collection frees a class.
    """

    def __init__(self, collect: Callable[[], Iterator["Metric"]]) -> None:
        self.collect = collect


def _process_collector(pids: Sequence[int], exited_cpu_s: float) -> _Collector:
    """CPU, memory and file numbers, added up over all processes; the start time is the earliest one."""
    from prometheus_client import ProcessCollector  # noqa: PLC0415 - as above

    def collect() -> Iterator["Metric"]:
        # `registry=None`: by default each would join the library's global registry, and stay there after the scrape.
        # One that has just exited has no entry in `/proc`, and then no sample here.
        each = [ProcessCollector(pid=partial(int, pid), registry=None).collect() for pid in pids]
        families_by_name: defaultdict[str, list[Metric]] = defaultdict(list)
        for family in itertools.chain(*each):
            families_by_name[family.name].append(family)
        for name, families in families_by_name.items():
            values = [sample.value for family in families for sample in family.samples]
            # A counter never falls, so what exited processes used stays in it.
            if name == "process_cpu_seconds":
                values.append(exited_cpu_s)
            first = families[0]
            first.samples = [first.samples[0]._replace(value=min(values) if name == "process_start_time_seconds" else sum(values))]
            yield first

    return _Collector(collect)


class _Families:
    """Builds metric families of Prometheus' client, which is loaded only when `/metrics` is called."""

    def __init__(self, core: ModuleType) -> None:
        self._core = core

    def counter(self, name: str, documentation: str, labels: tuple[str, ...], values: LabelledValues[K, float]) -> "Metric":
        """A counter with one sample for each label tuple."""
        return self._with_samples(self._core.CounterMetricFamily(name, documentation, labels=labels), values)

    def gauge(self, name: str, documentation: str, labels: tuple[str, ...], values: LabelledValues[K, float]) -> "Metric":
        """A gauge with one sample for each label tuple."""
        return self._with_samples(self._core.GaugeMetricFamily(name, documentation, labels=labels), values)

    def histogram(self, name: str, documentation: str, labels: tuple[str, ...], values: LabelledValues[K, Histogram]) -> "Metric":
        """A histogram for each label tuple."""
        family: HistogramMetricFamily = self._core.HistogramMetricFamily(name, documentation, labels=labels)
        for key, value in values.items():
            family.add_metric(key, _buckets(value), value.total)
        return family

    def _with_samples(self, family: "CounterMetricFamily | GaugeMetricFamily", values: LabelledValues[K, float]) -> "Metric":
        for key, value in values.items():
            family.add_metric(key, value)
        return family


def _server_collector(metrics: Snapshot) -> _Collector:
    from prometheus_client import core  # noqa: PLC0415 - as above

    families = _Families(core)

    def collect() -> Iterator["Metric"]:
        for collect_part in (_http, _responses, _sessions, _minicpmo, _queue, _backends):
            yield from collect_part(metrics, families)

    return _Collector(collect)


def _http(metrics: Snapshot, families: _Families) -> Iterator["Metric"]:
    yield families.histogram(
        "http_server_request_duration_seconds",
        "Duration of requests, from their head to the end of the response.",
        HTTP_LABELS,
        {(route, method, str(status)): value for (route, method, status), value in metrics.requests.items()},
    )
    yield families.gauge("http_server_active_requests", "Requests in progress.", (), {(): metrics.active})
    yield families.gauge("antiphon_connections", "Open connections.", (), {(): metrics.connections})
    yield families.counter("antiphon_dropped_connections", "Connections closed by the server.", ("reason",), _by_label(metrics.dropped))


def _responses(metrics: Snapshot, families: _Families) -> Iterator["Metric"]:
    yield families.counter("antiphon_stream_events", "Events sent in streamed responses.", (), {(): metrics.stream_events})
    yield families.counter("antiphon_tokens", "Tokens of responses.", (MODEL_LABEL, "gen_ai_token_type"), metrics.tokens)
    yield families.counter("antiphon_audio_tokens", "Audio tokens of responses.", (MODEL_LABEL, "gen_ai_token_type"), metrics.audio_tokens)
    yield families.counter(
        "antiphon_routes",
        "Requests that were given to a model by a route.",
        ("route", MODEL_LABEL, "category", "source"),
        metrics.routes,
    )
    yield families.histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "Time from a request's head to the first event with output.",
        (MODEL_LABEL,),
        _by_label(metrics.first_token),
    )
    yield families.histogram(
        "gen_ai_server_request_duration_seconds",
        "Duration of responses, from the request's head to their end.",
        (MODEL_LABEL, "outcome"),
        metrics.answers,
    )


def _sessions(metrics: Snapshot, families: _Families) -> Iterator["Metric"]:
    yield families.gauge("antiphon_realtime_sessions", "Open Realtime sessions.", (), {(): metrics.sessions})
    yield families.counter("antiphon_realtime_sessions_ended", "Ended Realtime sessions.", (MODEL_LABEL, "reason"), metrics.sessions_ended)
    yield families.counter("antiphon_realtime_events", "Events of Realtime sessions.", ("direction",), _by_label(metrics.session_events))
    yield families.counter(
        "antiphon_realtime_responses", "Responses in Realtime sessions.", (MODEL_LABEL, "status"), metrics.session_responses
    )
    yield families.counter(
        "antiphon_realtime_audio_seconds", "Audio of Realtime sessions, in seconds.", ("direction",), _by_label(metrics.session_audio_s)
    )
    yield families.histogram(
        "antiphon_realtime_time_to_first_audio_seconds",
        "Time from the end of speech to the first audio of the response.",
        (MODEL_LABEL,),
        _by_label(metrics.time_to_first_audio),
    )
    yield families.counter(
        "antiphon_speculations", "Responses started before the user's turn was over.", ("outcome",), _by_label(metrics.speculations)
    )


def _minicpmo(metrics: Snapshot, families: _Families) -> Iterator["Metric"]:
    yield families.gauge("antiphon_minicpmo_sessions", "Open MiniCPM-o sessions.", ("mode",), _by_label(metrics.minicpmo_sessions))
    yield families.counter(
        "antiphon_minicpmo_sessions_ended", "Ended MiniCPM-o sessions.", (MODEL_LABEL, "mode", "reason"), metrics.minicpmo_sessions_ended
    )
    yield families.counter(
        "antiphon_minicpmo_resumes", "Attempts to resume a MiniCPM-o session.", ("outcome",), _by_label(metrics.minicpmo_resumes)
    )


def _queue(metrics: Snapshot, families: _Families) -> Iterator["Metric"]:
    yield families.gauge("antiphon_queue_waiting", "Conversations waiting for a worker.", (MODEL_LABEL,), _by_label(metrics.queue_waiting))
    yield families.gauge(
        "antiphon_queue_serving", "Conversations being served by a worker.", (MODEL_LABEL,), _by_label(metrics.queue_serving)
    )
    yield families.histogram("antiphon_queue_wait_seconds", "Time until a worker was free.", (MODEL_LABEL,), _by_label(metrics.queue_waits))
    yield families.counter("antiphon_queue_tickets", "Ended tickets.", (MODEL_LABEL, "kind", "outcome"), metrics.queue_tickets)
    yield families.gauge("antiphon_workers", "Workers by state.", (MODEL_LABEL, "state"), metrics.workers)


def _backends(metrics: Snapshot, families: _Families) -> Iterator["Metric"]:
    yield families.counter("antiphon_store_writes", "Responses written to the store.", ("outcome",), _by_label(metrics.store_writes))
    yield families.counter("antiphon_recordings", "Recordings of ended sessions.", ("outcome",), _by_label(metrics.recordings))
    waiting_bytes = {(): metrics.recordings_waiting_bytes}
    yield families.gauge("antiphon_recordings_waiting_bytes", "Recordings that wait to be stored, in bytes.", (), waiting_bytes)
    yield families.gauge(
        "antiphon_upstream_state",
        "Server processes by the state of the upstream's circuit breaker.",
        ("upstream", "state"),
        metrics.upstreams,
    )
    yield families.counter("antiphon_rewrites", "Rewrites of answers.", ("rewrite", "outcome"), metrics.rewrites)
    yield families.counter("antiphon_webhook_attempts", "Attempts to deliver webhooks.", ("endpoint", "outcome"), metrics.webhook_attempts)
    yield families.gauge("antiphon_webhooks_pending", "Webhooks that wait.", ("endpoint",), _by_label(metrics.webhooks_pending))
    yield families.counter(
        "antiphon_upstream_attempts",
        "Requests sent to one of a model's upstreams, by outcome.",
        ("upstream", "outcome"),
        metrics.upstream_attempts,
    )
    yield families.counter(
        "antiphon_upstream_choices", "Why one of a model's upstreams was chosen.", ("upstream", "kind"), metrics.upstream_choices
    )
    yield families.gauge(
        "antiphon_upstream_outstanding",
        "Requests that one of a model's upstreams has.",
        ("upstream",),
        _by_label(metrics.upstream_outstanding),
    )
    yield families.counter(
        "antiphon_fallbacks", "Responses that another model made.", (MODEL_LABEL, "fallback", "reason"), metrics.fallbacks
    )
    yield families.counter("antiphon_upstream_failures", "Failed requests to upstreams.", ("upstream", "reason"), metrics.upstream_failures)
    yield families.counter(
        "antiphon_upstream_repairs", "Answers passed on that lacked something.", ("upstream", "repair"), metrics.upstream_mends
    )


def _by_label(values: Mapping[str, T]) -> LabelledValues[tuple[str], T]:
    return {(key,): value for key, value in values.items()}


def _buckets(values: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus expects them."""
    total = 0
    buckets = []
    for upper_bound, count in zip((*map(str, values.bounds), "+Inf"), values.counts, strict=True):
        total += count
        buckets.append((upper_bound, float(total)))
    return buckets
