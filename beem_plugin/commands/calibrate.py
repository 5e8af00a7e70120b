"""`allennlp calibrate`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_file_friendly_logging, add_overrides, batch_size


@Subcommand.register("calibrate")
class Calibrate(Subcommand):
    """Fits an exit policy and shows the evidence."""

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = (
            "Fit the weights, temperatures and thresholds of an exit policy on a trace, or on data that an archive's "
            "model is run on, and write a new archive, a policy file, and a report. The calibration data must not be "
            "the data that results are reported on."
        )
        subparser = parser.add_parser(self.name, description=description, help="fit an exit policy")
        subparser.add_argument(
            "archive_file",
            nargs="?",
            metavar="ARCHIVE",
            help="model.tar.gz; may be left out with --trace; alone, its own calibration trace is used",
        )
        source = subparser.add_mutually_exclusive_group()
        source.add_argument("--trace", metavar="T.npz", help="what `trace` or a training run stored")
        source.add_argument(
            "--data", metavar="FILE", help="what the archive's dataset reader reads; the model is run on it"
        )
        subparser.add_argument(
            "--policy", required=True, metavar="P", help="a policy's name, or a json or jsonnet file with its block"
        )
        subparser.add_argument(
            "--speedup",
            type=float,
            metavar="X",
            help="choose the thresholds with the least error at this layer speed-up; short for "
            "-o '{thresholds: {type: \"budget\", speedup: X}}'",
        )
        subparser.add_argument("--output-archive", metavar="NEW.tar.gz", help="the archive with the calibrated policy")
        subparser.add_argument("--output-policy", metavar="P.json", help="the calibrated policy, every number resolved")
        subparser.add_argument("--report-dir", metavar="DIR", help="where report.json and report.html go")
        subparser.add_argument(
            "--plain",
            nargs="+",
            metavar="ARCHIVE|PLAIN.npz",
            help="networks of fewer layers without exits, on the same samples, as points of the report's plot: "
            "archives, which are run, or traces",
        )
        subparser.add_argument(
            "--batch-size", type=batch_size, metavar="N", help="with --data: instead of the data loader's"
        )
        subparser.add_argument(
            "--dtype",
            default="float32",
            choices=["float32", "bfloat16", "float16", "int8"],
            help="with --data: the precision in which the model is to predict later",
        )
        subparser.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU, -1 for the CPU")
        add_overrides(subparser, "the policy", '{"thresholds.speedup": 2}')
        add_file_friendly_logging(subparser)
        subparser.set_defaults(func=calibrate_from_args)
        return subparser


def calibrate_from_args(args: argparse.Namespace) -> Any:
    from beem_plugin.comparison import calibrate

    return calibrate.calibrate_from_args(args)
