"""`allennlp serve`: a page at `/`, `/predict`, `/explain`, `/health`, `/metrics`, documentation at `/docs`."""

import argparse
import gc
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beem_plugin import __version__
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.strict_json import json_line
from beem_plugin.execution.engine import check_engine
from beem_plugin.pipeline import EarlyExitPipeline
from beem_plugin.predictors.text_page import TextPage
from beem_plugin.rendering.pages import render_page
from beem_plugin.serving.requests import RequestError, parse_body, read_body, request_schema, responses
from beem_plugin.serving.service import Service, ServingMetrics, ServingOptions

logger = logging.getLogger(__name__)

RETRY_SECONDS = "1"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""The pages load nothing from elsewhere."""


def create_app(pipeline: EarlyExitPipeline, options: ServingOptions | None = None) -> FastAPI:
    """The application for any ASGI server; it starts and stops its worker thread with the server."""
    service = Service(pipeline, options or ServingOptions())
    reader = pipeline.archive.validation_dataset_reader
    names = reader.text_fields
    answer = service.predictor.task.answer  # type: ignore[attr-defined]

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
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
    )

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
        responses=responses(answer, pipeline.labels, service.metrics.exit_layers),
        openapi_extra={"requestBody": request_schema(names)},
        summary="Predict one input or a batch",
    )
    async def predict(request: Request) -> Response:
        body = await read_body(request, service.options.max_body_bytes, service.options.timeout_s)
        rows, is_batch = parse_body(body, names, service.options.max_batch, reader.text_types)
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

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(render_page("api.html", api=app.openapi()), headers=PAGE_HEADERS, media_type="text/html")

    if service.page is not None:
        add_page(app, service, service.page, names)
    known_paths = {route.path for route in app.routes if hasattr(route, "path")}
    app.add_middleware(Observed, metrics=service.metrics, known_paths=known_paths)
    return app


class Observed:
    """Counts and times requests; paths that are not the application's count as one, `other`."""

    def __init__(self, app: ASGIApp, metrics: ServingMetrics, known_paths: Collection[str]) -> None:
        self.app, self.metrics, self.known_paths = app, metrics, known_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def observe(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, observe)
        finally:
            path = scope["path"] if scope["path"] in self.known_paths else "other"
            self.metrics.request(path, status, time.perf_counter() - started)


def add_page(app: FastAPI, service: Service, page: TextPage, names: Sequence[str]) -> None:
    """`/`, where texts are typed in, and `/explain`, which it asks."""

    @app.post(
        "/explain", openapi_extra={"requestBody": request_schema(names)}, summary="What each exit gives for a text"
    )
    async def explain(request: Request) -> Response:
        body = await read_body(request, service.options.max_body_bytes, service.options.timeout_s)
        rows, _ = parse_body(body, names, max_inputs=1)
        return as_json(await service.explain(rows[0]))

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(page.html([], is_served=True), headers=PAGE_HEADERS, media_type="text/html")


def as_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Strict JSON, as the lines of `predict`."""
    return Response(json_line(content), status, headers, media_type="application/json")


SWITCH_SECONDS = 0.0005
"""The engine's thread gets the interpreter after this time while requests are read; Python's default is 5 ms."""


def serve_from_args(args: argparse.Namespace) -> int:
    """Runs the command; `args` as `commands/serve.py` parses them. Ends with status 0 at SIGINT or SIGTERM."""
    options = ServingOptions(**{field.name: getattr(args, field.name) for field in fields(ServingOptions)})
    if args.engine:
        check_engine(args.engine, "--engine")
    listener = listening(args.host, args.port)
    with listener:
        pipeline = EarlyExitPipeline.from_pretrained(
            args.archive_file, args.cuda_device, args.overrides, engine=args.engine, dtype=args.dtype
        )
        if args.policy or args.speedup is not None:
            pipeline = pipeline.with_policy(args.policy, args.speedup)
        app = create_app(pipeline, options)
        gc.freeze()  # the collector would traverse the libraries' objects again and again
        sys.setswitchinterval(SWITCH_SECONDS)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=int(options.timeout_s) + 1
        )
        host, port = listener.getsockname()[:2]
        print(f"serving {args.archive_file} on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # raised again by uvicorn after it has answered what was in flight
            print("stopped", flush=True)
    return 0


def listening(host: str, port: int) -> socket.socket:
    """A socket at the address, before the model is loaded: a wrong one shows at once."""
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"--port: found {port}, allowed: 0 (any free one) to 65535")
    try:
        found = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Connections inherit it. Without, the body of an answer waits until the client acknowledges the headers, 40 ms;
        # asyncio sets it only for sockets that name their protocol.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    except OSError as error:
        raise ConfigurationError(f"--host, --port: cannot listen on {host}:{port}: {error.strerror or error}") from None
