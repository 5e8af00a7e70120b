"""`allennlp serve`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_archive_overrides


@Subcommand.register("serve")
class Serve(Subcommand):
    """Answers HTTP requests with a trained model."""

    only_predicts = True

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = (
            "Serve an archived text model over HTTP: POST /predict, GET /health, /metrics (Prometheus) and /docs "
            "(OpenAPI). Requests that arrive together are computed together, each input up to its exit. SIGTERM and "
            "Ctrl-C stop the server after it has answered the open requests."
        )
        subparser = parser.add_parser(self.name, description=description, help="answer HTTP requests with a model")
        subparser.add_argument("archive_file", metavar="ARCHIVE", help="model.tar.gz, or the directory of a run")
        subparser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
        subparser.add_argument("--port", type=int, default=8000, help="0 for any free port, which is printed")
        subparser.add_argument("--engine", metavar="NAME", help="default: the archive's, or else depth_pools")
        subparser.add_argument(
            "--policy", metavar="P", help="another exit policy: a name, or a file; fitted on the calibration trace"
        )
        subparser.add_argument(
            "--speedup", type=float, metavar="X", help="choose thresholds for this layer speed-up, on that trace"
        )
        subparser.add_argument(
            "--latency-budget-ms",
            type=float,
            default=5.0,
            metavar="MS",
            help="how long a request may wait for others to be computed with; a single client does not wait",
        )
        subparser.add_argument(
            "--max-batch", type=int, default=256, metavar="N", help="inputs of a request, and of a run of the engine"
        )
        subparser.add_argument(
            "--max-queue", type=int, default=4096, metavar="N", help="inputs that may wait; then requests get 503"
        )
        subparser.add_argument("--max-body-mb", type=float, default=4.0, metavar="MB", help="larger bodies get 413")
        subparser.add_argument(
            "--timeout-s", type=float, default=30.0, metavar="S", help="then a request gets 408 or 504"
        )
        subparser.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU, -1 for the CPU")
        subparser.add_argument(
            "--dtype",
            default="float32",
            choices=["float32", "bfloat16", "float16", "int8"],
            help="precision of the layers; exits are decided in double precision",
        )
        add_archive_overrides(subparser)
        subparser.set_defaults(func=serve_from_args)
        return subparser


def serve_from_args(args: argparse.Namespace) -> Any:
    from beem_plugin.common.errors import ConfigurationError

    try:
        from beem_plugin.serving import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("beem_plugin"):
            raise
        raise ConfigurationError(f'serve: {error}; install the extra: pip install "beem_plugin[serve]"') from error
    return serve.serve_from_args(args)
