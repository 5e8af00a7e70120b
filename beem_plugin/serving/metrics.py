"""Prometheus metrics of a server."""

from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServingMetrics:
    """`exit_layers` are the layers that the exits read; `queued` gives the inputs that wait now."""

    def __init__(self, exit_layers: Sequence[int], queued: Callable[[], int]) -> None:
        self.exit_layers = list(exit_layers)
        self.registry = CollectorRegistry()
        given: Any = {"registry": self.registry}
        ProcessCollector(registry=self.registry)  # CPU seconds and memory, on Linux
        self.requests = Counter("beem_requests", "Requests by path and HTTP status", ["path", "status"], **given)
        self.latency = Histogram(
            "beem_request_seconds", "From the head of a request to its answer", ["path"], buckets=SECONDS, **given
        )
        self.batches = Histogram("beem_batch_inputs", "Inputs of a batch", buckets=SIZES, **given)
        self.waited = Histogram("beem_queue_seconds", "Wait of the oldest request of a batch", buckets=SECONDS, **given)
        self.exits = Counter("beem_exits", "Inputs by exit", ["exit", "layer"], **given)
        self.computed = Counter("beem_layers_computed", "Layers computed, one for each input", **given)
        self.saved = Counter("beem_layers_saved", "Layers after the inputs' exits", **given)
        Gauge("beem_queued_inputs", "Inputs that wait", **given).set_function(queued)
        for number, layer in enumerate(self.exit_layers, 1):
            self.exits.labels(number, layer)  # 0 until a sample exits there

    def batch(self, size: int, waited: float) -> None:
        self.batches.observe(size)
        self.waited.observe(waited)

    def predictions(self, predictions: Sequence[Mapping[str, Any]]) -> None:
        depth = self.exit_layers[-1]
        for number, count in Tally(prediction["exit"] for prediction in predictions).items():
            layer = self.exit_layers[number - 1]
            self.exits.labels(number, layer).inc(count)
            self.computed.inc(count * layer)
            self.saved.inc(count * (depth - layer))

    def request(self, path: str, status: int, seconds: float) -> None:
        self.requests.labels(path, status).inc()
        self.latency.labels(path).observe(seconds)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
