"""`allennlp evaluate`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_shared


@Subcommand.register("evaluate")
class Evaluate(Subcommand):
    """Evaluate an archived model with early exit, as it is executed."""

    help = "evaluate a trained model"
    reads = ("archive_file", "input_file", "weights_file")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_shared(parser, "archive_file")
        parser.add_argument(
            "input_file",
            help="a file, FILE[test] or a split, as the dataset reader reads it; several are separated by a comma, and "
            "metrics get their name",
        )
        parser.add_argument("--output-file", metavar="FILE", help="where the metrics go, as JSON; several: comma")
        parser.add_argument(
            "--predictions-output-file", metavar="FILE", help="where predictions go, as JSON lines; several: comma"
        )
        add_shared(parser, "--weights-file", "--cuda-device")
        parser.add_argument("--html", metavar="E.html", help="where a page with metrics, exits and classes goes")
        add_shared(parser, "--overrides", "--batch-size")
        parser.add_argument("--batch-weight-key", default="", metavar="KEY", help="not with these models")
        add_shared(parser, "--engine")
        parser.add_argument("--extend-vocab", action="store_true", help="not with these models: labels are fixed")
        parser.add_argument("--embedding-sources-mapping", default="", metavar="JSON", help="not with these models")
        add_shared(parser, "--file-friendly-logging")
        parser.add_argument(
            "--auto-names",
            default="NONE",
            choices=["NONE", "METRICS", "PREDS", "ALL"],
            help="which output files are named after the input files by themselves",
        )

    def run(self, args: argparse.Namespace) -> Any:
        from beem_plugin.evaluation.evaluate import evaluate_from_args

        return evaluate_from_args(args)
