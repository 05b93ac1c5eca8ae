"""What a gateway counts, as Prometheus text. One registry a gateway; labels are bounded by config.

Counting is on every request's way, so it is plain additions; Prometheus' own objects are made when somebody
asks for the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from attrs import define, field
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

UNRESOLVED = ""
"""Model label of a request that named no known model."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@define
class _Times:
    """How long a model's requests took: how many in each bucket of ``_SECONDS`` and above, and the sum."""

    counts: list[int] = field(factory=lambda: [0] * (len(_SECONDS) + 1))
    sum: float = 0.0


class GatewayMetrics(Collector):
    """Counts of one role's gateway; used from one event loop."""

    def __init__(self, role: str, queued: Callable[[], Mapping[str, int]] = dict) -> None:
        """``queued`` tells how many requests wait for a replica, by model."""
        self._role = role
        self._queued = queued
        self._requests: dict[tuple[str, int], int] = {}
        self._times: dict[str, _Times] = {}
        self._in_flight = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def sent(self) -> None:
        """A request goes to an engine."""
        self._in_flight += 1

    def settled(self) -> None:
        """An engine is done with a request."""
        self._in_flight -= 1

    def refused(self, status: int) -> None:
        """Whoever asked was not let in; what for was not looked at."""
        key = (UNRESOLVED, status)
        self._requests[key] = self._requests.get(key, 0) + 1

    def ended(self, model: str, status: int, seconds: float) -> None:
        """A request has been answered or given up."""
        key = (model, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        times = self._times.get(model)
        if times is None:
            times = self._times[model] = _Times()
        times.counts[bisect_left(_SECONDS, seconds)] += 1
        times.sum += seconds

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily | GaugeMetricFamily]:
        """For the registry: everything as it is now."""
        requests = CounterMetricFamily(
            "rolecall_gateway_requests",
            "Requests ended, by HTTP status; 499: the caller left.",
            labels=["role", "model", "status"],
        )
        for (model, status), count in self._requests.items():
            requests.add_metric([self._role, model, str(status)], count)
        yield requests
        seconds = HistogramMetricFamily(
            "rolecall_gateway_request_seconds",
            "From a request's arrival to the last byte of its answer.",
            labels=["role", "model"],
        )
        bounds = [*map(str, map(float, _SECONDS)), "+Inf"]
        for model, times in self._times.items():
            buckets = list(zip(bounds, accumulate(times.counts), strict=True))
            seconds.add_metric([self._role, model], buckets, times.sum)
        yield seconds
        in_flight = GaugeMetricFamily(
            "rolecall_gateway_in_flight",
            "Requests at engines, including abandoned ones whose engine has not confirmed the abort.",
            labels=["role"],
        )
        in_flight.add_metric([self._role], self._in_flight)
        yield in_flight
        queued = GaugeMetricFamily(
            "rolecall_gateway_queued",
            "Requests that wait because their replica has as many as it may have.",
            labels=["role", "model"],
        )
        for model, count in self._queued().items():
            queued.add_metric([self._role, model], count)
        yield queued
