import argparse
import os
from pathlib import Path

from beem_plugin.commands.subcommand import Argument, Subcommand
from beem_plugin.common.errors import ConfigurationError, is_number
from beem_plugin.common.strict_json import read_json_object


@Subcommand.register("print-results")
class PrintResults(Subcommand):
    """Print metrics of all runs below a directory, comma-separated, a line a run."""

    help = "print the results of many runs"
    requires_plugins = False
    arguments = (
        Argument("path", help="a directory with runs in it"),
        Argument(
            "-k", "--keys", nargs="+", default=[], metavar="KEY", help="metrics to print; if not given, every number"
        ),
        Argument("-m", "--metrics-filename", default="metrics.json", metavar="NAME", help="the files to look for"),
    )

    def run(self, args: argparse.Namespace) -> None:
        if not Path(args.path).is_dir():
            raise ConfigurationError(f"{args.path}: no such directory")
        files = sorted(os.path.join(root, name) for root, _, names in os.walk(args.path) for name in names)
        wanted = [file for file in files if os.path.basename(file) == args.metrics_filename]
        results = {file: read_json_object(Path(file)) for file in wanted}
        keys = args.keys or sorted(
            {key for metrics in results.values() for key, value in metrics.items() if is_number(value)}
        )
        print(f"model_run, {', '.join(keys)}")
        for run, metrics in results.items():
            print(f"{run}, {', '.join(str(metrics.get(key, 'N/A')) for key in keys)}")
