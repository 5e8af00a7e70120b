import argparse
from typing import Any

from beem_plugin.commands.subcommand import Argument, Subcommand, count
from beem_plugin.common.errors import ConfigurationError


@Subcommand.register("serve")
class Serve(Subcommand):
    """
    Serve an archived text model over HTTP: POST /predict, GET /health, /metrics (Prometheus) and /docs (OpenAPI).
    Requests that arrive together are computed together, each input up to its exit. SIGTERM and Ctrl-C stop the server
    after it has answered the open requests.
    """

    help = "answer HTTP requests with a model"
    reads = ("archive_file",)
    only_predicts = True
    arguments = (
        "archive_file",
        Argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all"),
        Argument("--port", type=int, default=8000, help="0 for any free port, which is printed"),
        Argument("--engine", metavar="NAME", help="default: the archive's, or else auto"),
        Argument(
            "--policy",
            metavar="P",
            help="another exit policy: name, file or block {..}; fitted on the calibration trace",
        ),
        Argument(
            "--speedup",
            type=float,
            metavar="X",
            help="choose thresholds for this layer speed-up over all layers of this network, on that trace",
        ),
        Argument(
            "--latency-budget-ms",
            type=float,
            default=5.0,
            metavar="MS",
            help="how long a request may wait for others to be computed with; a single client does not wait",
        ),
        count("--max-batch", default=256, help="inputs of a request, and of a run of the engine"),
        count("--max-queue", default=4096, help="inputs that may wait; then requests get 503"),
        Argument("--max-body-mb", type=float, default=4.0, metavar="MB", help="larger bodies get 413"),
        Argument("--timeout-s", type=float, default=30.0, metavar="S", help="then a request gets 408 or 504"),
        "--cuda-device",
        "--dtype",
        "--overrides",
    )

    def run(self, args: argparse.Namespace) -> Any:
        try:
            from beem_plugin.serving.app import serve_from_args
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("beem_plugin"):
                raise
            raise ConfigurationError(f'serve: {error}; install the extra: pip install "beem_plugin[serve]"') from error
        return serve_from_args(args)
