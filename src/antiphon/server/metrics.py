"""`GET /metrics`: what is counted, as Prometheus reads it. `docs/reference/metrics.md` has a row for every name."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.runtime.metrics import Histogram, Metrics
from antiphon.runtime.service import Service
from antiphon.server.auth import GuardedRoute

if TYPE_CHECKING:
    from prometheus_client.registry import Collector, CollectorRegistry

T = TypeVar("T")

Labelled: TypeAlias = Mapping[Any, T]
"""Numbers by the values of their labels, as tuples."""

HTTP_LABELS = ("http_route", "http_request_method", "http_response_status_code")
MODEL = "gen_ai_request_model"


def routes(service: Service) -> list[Route]:
    """`/metrics`."""
    made: list[CollectorRegistry] = []

    async def metrics(_request: Request) -> Response:
        from prometheus_client import exposition  # noqa: PLC0415 - takes 50 ms to load, and many servers are never asked

        if not made:
            made.append(_registry(service.metrics))
        return Response(exposition.generate_latest(made[0]), headers={"content-type": exposition.CONTENT_TYPE_PLAIN_0_0_4})

    return [GuardedRoute("/metrics", metrics, service=service, access="admin", methods=["GET"])]


def _registry(metrics: Metrics) -> "CollectorRegistry":
    from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415 - as above

    registry = CollectorRegistry()
    registry.register(_collector(metrics))
    ProcessCollector(registry=registry)
    return registry


def _collector(metrics: Metrics) -> "Collector":
    from prometheus_client import core  # noqa: PLC0415 - as above
    from prometheus_client.registry import Collector  # noqa: PLC0415 - as above

    def counter(name: str, told: str, labels: tuple[str, ...], values: Labelled[float]) -> core.Metric:
        family = core.CounterMetricFamily(name, told, labels=labels)
        for key, value in values.items():
            family.add_metric(key, value)
        return family

    def histogram(name: str, told: str, labels: tuple[str, ...], values: Labelled[Histogram]) -> core.Metric:
        family = core.HistogramMetricFamily(name, told, labels=labels)
        for key, value in values.items():
            family.add_metric(key, _buckets(value), value.total)
        return family

    class Told(Collector):
        """The server's numbers, at the moment they are asked for."""

        def collect(self) -> Iterator[core.Metric]:
            """Every family of numbers."""
            yield histogram(
                "http_server_request_duration_seconds",
                "Requests, from their head to the end of their answer.",
                HTTP_LABELS,
                {(route, method, str(status)): value for (route, method, status), value in metrics.requests.items()},
            )
            yield core.GaugeMetricFamily("http_server_active_requests", "Requests under way.", metrics.active)
            yield core.GaugeMetricFamily("antiphon_connections", "Connections open.", metrics.connections)
            yield counter("antiphon_dropped_connections", "Connections closed by the server.", ("reason",), _single(metrics.dropped))
            yield counter("antiphon_stream_events", "Events sent to clients that stream.", (), {(): metrics.stream_events})
            yield counter("antiphon_tokens", "Tokens of answers.", (MODEL, "gen_ai_token_type"), metrics.tokens)
            yield histogram(
                "gen_ai_server_time_to_first_token_seconds",
                "From a request's head to the first event that says something.",
                (MODEL,),
                {(model,): value for model, value in metrics.first_token.items()},
            )
            yield histogram(
                "gen_ai_server_request_duration_seconds",
                "Answers, from a request's head to their end.",
                (MODEL, "outcome"),
                metrics.answers,
            )
            yield counter("antiphon_store_writes", "Responses written to the store.", ("outcome",), _single(metrics.store_writes))
            upstreams = core.GaugeMetricFamily("antiphon_upstream_state", "1 for the state of its breaker.", labels=("upstream", "state"))
            for name, state in metrics.upstreams.items():
                upstreams.add_metric((name, state), 1)
            yield upstreams
            yield counter(
                "antiphon_upstream_failures",
                "Upstreams that did not answer as they should.",
                ("upstream", "reason"),
                metrics.upstream_failures,
            )

    return Told()


def _single(values: Mapping[str, float]) -> "Labelled[float]":
    return {(key,): value for key, value in values.items()}


def _buckets(values: Histogram) -> list[tuple[str, float]]:
    """Counts up to each bound, as Prometheus has them."""
    total = 0
    buckets = []
    for bound, count in zip((*map(str, values.bounds), "+Inf"), values.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
