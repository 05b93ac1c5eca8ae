"""What a gateway counts, as Prometheus text. One registry a gateway; labels are bounded by config."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

UNRESOLVED = ""
"""Model label of a request that named no known model."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """Counts of one role's gateway."""

    def __init__(self, role: str) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "rolecall_gateway_requests",
            "Requests ended, by HTTP status; 499: the caller left.",
            ["role", "model", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "rolecall_gateway_request_seconds",
            "From a request's arrival to the last byte of its answer.",
            ["role", "model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        in_flight = Gauge(
            "rolecall_gateway_in_flight",
            "Requests at engines, including abandoned ones whose engine has not confirmed the abort.",
            ["role"],
            registry=self._registry,
        )
        self._in_flight = in_flight.labels(role)
        self._role = role

    def sent(self) -> None:
        """A request goes to an engine."""
        self._in_flight.inc()

    def settled(self) -> None:
        """An engine is done with a request."""
        self._in_flight.dec()

    def ended(self, model: str, status: int, seconds: float) -> None:
        """A request has been answered or given up."""
        self._requests.labels(self._role, model, str(status)).inc()
        self._seconds.labels(self._role, model).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)
