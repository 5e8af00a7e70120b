"""`allennlp evaluate`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_archive_overrides, add_file_friendly_logging, batch_size


@Subcommand.register("evaluate")
class Evaluate(Subcommand):
    """Evaluates a trained model on labelled data."""

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = "Evaluate an archived model with early exit, as it is executed."
        subparser = parser.add_parser(self.name, description=description, help="evaluate a trained model")
        subparser.add_argument("archive_file", help="model.tar.gz, or the directory of a run")
        subparser.add_argument(
            "input_file",
            help="a file, FILE[test] or a split, as the dataset reader reads it; several are separated by a comma, and "
            "metrics get their name",
        )
        subparser.add_argument("--output-file", metavar="FILE", help="where the metrics go, as JSON; several: comma")
        subparser.add_argument(
            "--predictions-output-file", metavar="FILE", help="where predictions go, as JSON lines; several: comma"
        )
        subparser.add_argument("--weights-file", metavar="FILE", help="weights to use instead of the archive's")
        subparser.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU, -1 for the CPU")
        subparser.add_argument("--html", metavar="E.html", help="where a page with metrics, exits and classes goes")
        add_archive_overrides(subparser)
        subparser.add_argument("--batch-size", type=batch_size, metavar="N", help="instead of the data loader's")
        subparser.add_argument(
            "--batch-weight-key",
            default="",
            metavar="KEY",
            help="not with these models",
        )
        subparser.add_argument(
            "--engine",
            metavar="NAME",
            help="how early exit is executed; default: the archive's, or else depth_pools. One with options of its own "
            """is an override: -o '{"model.engine": {"type": "compaction", "capture": false}}'""",
        )
        subparser.add_argument("--extend-vocab", action="store_true", help="not with these models: labels are fixed")
        subparser.add_argument("--embedding-sources-mapping", default="", metavar="JSON", help="not with these models")
        add_file_friendly_logging(subparser)
        subparser.add_argument(
            "--auto-names",
            default="NONE",
            choices=["NONE", "METRICS", "PREDS", "ALL"],
            help="which output files are named after the input files by themselves",
        )
        subparser.set_defaults(func=evaluate_from_args)
        return subparser


def evaluate_from_args(args: argparse.Namespace) -> Any:
    from beem_plugin.evaluation import evaluate

    return evaluate.evaluate_from_args(args)
