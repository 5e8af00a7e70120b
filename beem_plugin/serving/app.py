"""The HTTP application: `/predict`, `/health`, `/metrics`, and its documentation at `/docs`."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from beem_plugin import __version__
from beem_plugin.common.strict_json import json_line
from beem_plugin.pipeline import EarlyExitPipeline
from beem_plugin.serving.api_schema import prediction_schema, request_schema, responses
from beem_plugin.serving.requests import RequestError, parse_body, read_body
from beem_plugin.serving.service import Service, ServingOptions

logger = logging.getLogger(__name__)

RETRY_SECONDS = "1"


def create_app(pipeline: EarlyExitPipeline, options: ServingOptions | None = None) -> FastAPI:
    """
    The application for any ASGI server; it starts and stops its worker thread with the server.

    # Parameters

    pipeline : `EarlyExitPipeline`
    options : `ServingOptions`, optional
    """
    service = Service(pipeline, options or ServingOptions())
    names = pipeline.archive.validation_dataset_reader.text_fields
    answer = service.predictor.task.answer  # type: ignore[attr-defined]
    prediction = prediction_schema(answer, pipeline.labels, service.metrics.exit_layers)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    app = FastAPI(
        title="beem_plugin",
        version=__version__,
        description="Text classification with early exit: easy inputs leave the network at an early layer.",
        lifespan=lifespan,
    )

    @app.middleware("http")
    async def observe(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        started = time.perf_counter()
        response = await call_next(request)
        path = request.url.path if request.url.path in known_paths else "other"
        service.metrics.request(path, response.status_code, time.perf_counter() - started)
        return response

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: RequestError) -> Response:
        headers = {"Retry-After": RETRY_SECONDS} if error.status == 503 else None
        return as_json({"detail": error.detail}, error.status, headers)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        logger.error("%s: %s", type(error).__name__, error)
        return as_json({"detail": f"{type(error).__name__} in the server; its log says more"}, 500)

    @app.post(
        "/predict",
        responses=responses(prediction),
        openapi_extra={"requestBody": request_schema(names)},
        summary="Predict one input or a batch",
    )
    async def predict(request: Request) -> Response:
        body = await read_body(request, service.options.max_body_bytes, service.options.timeout_s)
        rows, is_batch = parse_body(body, names, service.options.max_batch)
        found = await service.predict(rows)
        return as_json({"predictions": found} if is_batch else found[0])

    @app.get("/health", summary="Whether the worker runs, and what is served")
    async def health() -> Response:
        is_running = service.is_running
        found = {
            "status": "ok" if is_running else "stopped",
            "version": __version__,
            "inputs": list(names),
            "labels": pipeline.labels,
            "exit_layers": service.metrics.exit_layers,
            "exit_policy": pipeline.policy,
            "queued": service.queued(),
        }
        return as_json(found, 200 if is_running else 503)

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    known_paths = {route.path for route in app.routes if hasattr(route, "path")}
    return app


def as_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Strict JSON, as the lines of `predict`."""
    return Response(json_line(content), status, headers, media_type="application/json")
