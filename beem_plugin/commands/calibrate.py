"""`allennlp calibrate`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_overrides, add_shared, batch_size


@Subcommand.register("calibrate")
class Calibrate(Subcommand):
    """
    Fit the weights, temperatures and thresholds of an exit policy on a trace, or on data that an archive's model is run
    on, and write a new archive, a policy file, and a report. The calibration data must not be the data that results are
    reported on.
    """

    help = "fit an exit policy"
    reads = ("archive_file", "trace", "data")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "archive_file",
            nargs="?",
            metavar="ARCHIVE",
            help="model.tar.gz; may be left out with --trace; alone, its own calibration trace is used",
        )
        source = parser.add_mutually_exclusive_group()
        source.add_argument("--trace", metavar="T.npz", help="what `trace` or a training run stored")
        source.add_argument(
            "--data", metavar="FILE", help="what the archive's dataset reader reads; the model is run on it"
        )
        parser.add_argument(
            "--policy", required=True, metavar="P", help="a policy's name, or a json or jsonnet file with its block"
        )
        parser.add_argument(
            "--speedup",
            type=float,
            metavar="X",
            help="choose the thresholds with the least error at this layer speed-up; short for "
            "-o '{thresholds: {type: \"budget\", speedup: X}}'",
        )
        parser.add_argument("--output-archive", metavar="NEW.tar.gz", help="the archive with the calibrated policy")
        parser.add_argument("--output-policy", metavar="P.json", help="the calibrated policy, every number resolved")
        parser.add_argument("--report-dir", metavar="DIR", help="where report.json and report.html go")
        parser.add_argument(
            "--plain",
            nargs="+",
            metavar="ARCHIVE|PLAIN.npz",
            help="networks of fewer layers without exits, on the same samples, as points of the report's plot: "
            "archives, which are run, or traces",
        )
        parser.add_argument(
            "--batch-size", type=batch_size, metavar="N", help="with --data: instead of the data loader's"
        )
        parser.add_argument(
            "--dtype",
            default="float32",
            choices=["float32", "bfloat16", "float16", "int8"],
            help="with --data: the precision in which the model is to predict later",
        )
        add_shared(parser, "--cuda-device")
        add_overrides(parser, "the policy", '{"thresholds.speedup": 2}')
        add_shared(parser, "--file-friendly-logging")

    def run(self, args: argparse.Namespace) -> Any:
        from beem_plugin.comparison.calibrate import calibrate_from_args

        return calibrate_from_args(args)
