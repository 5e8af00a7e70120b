"""`allennlp serve`: an archive behind HTTP, until it is stopped."""

import argparse
import gc
import logging
import socket
import sys
from dataclasses import fields

import uvicorn

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.engine import check_engine
from beem_plugin.pipeline import EarlyExitPipeline
from beem_plugin.serving.app import create_app
from beem_plugin.serving.service import ServingOptions

logger = logging.getLogger(__name__)

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
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"--host, --port: cannot listen on {host}:{port}: {error.strerror or error}") from None
