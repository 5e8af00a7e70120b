"""What a server does with texts: tokenize them, queue them, and count what comes out."""

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.concurrency import run_in_threadpool

from beem_plugin.common.errors import DataError, check_at_least, check_number
from beem_plugin.data.instance import Instance
from beem_plugin.data.table_file import TableRow
from beem_plugin.pipeline import EarlyExitPipeline
from beem_plugin.predictors.text_page import TextPage
from beem_plugin.serving.batcher import Batcher, ClosedError, QueueFullError
from beem_plugin.serving.requests import RequestError


@dataclass
class ServingOptions:
    """
    # Parameters

    max_batch : `int`, optional (default = `256`)
        Inputs of a request, and of a run of the engine.
    latency_budget_ms : `float`, optional (default = `5`)
        How long a request may wait for others to be computed with.
    max_queue : `int`, optional (default = `4096`)
        Inputs that may wait; further requests are answered with 503.
    max_body_mb : `float`, optional (default = `4`)
    timeout_s : `float`, optional (default = `30`)
        For a request to arrive, and again for its answer.
    """

    max_batch: int = 256
    latency_budget_ms: float = 5.0
    max_queue: int = 4096
    max_body_mb: float = 4.0
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_at_least(1, max_batch=self.max_batch, max_queue=self.max_queue)
        check_number("max_body_mb", self.max_body_mb, open_low=True)
        check_number("timeout_s", self.timeout_s, open_low=True)
        check_number("latency_budget_ms", self.latency_budget_ms)

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 2**20)


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


class Service:
    """A pipeline behind a queue. One thread runs the engine; texts are tokenized in others before they are queued."""

    def __init__(self, pipeline: EarlyExitPipeline, options: ServingOptions) -> None:
        pipeline.model.exit_policy.check_calibrated()
        self.pipeline, self.options = pipeline, options
        self.predictor = pipeline.new_predictor()
        self.batcher: Batcher[Instance, dict[str, Any]] | None = None
        is_tagger = pipeline.model.encoder.output_per_token
        self.page: TextPage | None = None if is_tagger else self.predictor.text_page  # type: ignore[attr-defined]
        self._explaining = asyncio.Lock()
        self.metrics = ServingMetrics(pipeline.model.encoder.exit_layers, self.queued)

    @property
    def is_running(self) -> bool:
        return self.batcher is not None and self.batcher.is_alive

    def queued(self) -> int:
        return 0 if self.batcher is None else self.batcher.queued

    def start(self) -> None:
        options = self.options
        self.batcher = Batcher(
            self.predictor.predict_batch_instance,
            options.max_batch,
            options.latency_budget_ms / 1000,
            options.max_queue,
            self.metrics.batch,
        )

    def stop(self) -> None:
        """Returns when all queued requests have their answers."""
        if self.batcher is not None:
            self.batcher.close()

    async def predict(self, rows: Sequence[TableRow]) -> list[dict[str, Any]]:
        """Predictions as `EarlyExitPipeline` gives them; a `RequestError` if there are none."""
        try:
            return await asyncio.wait_for(self._predict(rows), self.options.timeout_s)
        except asyncio.TimeoutError:
            raise RequestError(504, f"no answer within {self.options.timeout_s:g} s (--timeout-s)") from None

    async def _predict(self, rows: Sequence[TableRow]) -> list[dict[str, Any]]:
        try:
            instances = await run_in_threadpool(self._tokenized, rows)
        except DataError as error:
            raise RequestError(422, str(error)) from None
        if self.batcher is None:
            raise RequestError(503, "the server has not started")
        try:
            answer = self.batcher.submit(instances)
        except QueueFullError:
            raise RequestError(503, f"{self.queued()} inputs wait, allowed: {self.options.max_queue}") from None
        except ClosedError:
            raise RequestError(503, "the server is stopping") from None
        found = await asyncio.wrap_future(answer)
        self.metrics.predictions(found)
        return [self.pipeline.named(prediction) for prediction in found]

    async def explain(self, row: TableRow) -> dict[str, Any]:
        """What each exit gives for one input, for the page; one at a time, since all exits are computed."""
        page = self.page
        assert page is not None, "not of tags"
        async with self._explaining:
            try:
                return await run_in_threadpool(lambda: page.entries(self._tokenized([row]))[0])
            except DataError as error:
                raise RequestError(422, str(error)) from None

    def _tokenized(self, rows: Sequence[TableRow]) -> list[Instance]:
        return [instance for part in self.predictor.instances_of(rows) for instance in part]
