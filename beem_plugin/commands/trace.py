"""`allennlp trace`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_shared
from beem_plugin.common.outputs import check_outputs


@Subcommand.register("trace")
class Trace(Subcommand):
    """Run an archived model once at full depth and store the outputs of all exits: the input of `replay`."""

    help = "store the outputs of every exit"
    reads = ("archive_file", "input_file", "weights_file")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_shared(parser, "archive_file")
        parser.add_argument("input_file", metavar="INPUT", help="what the archive's dataset reader reads")
        parser.add_argument("--output-file", required=True, metavar="T.npz", help="where the trace goes")
        add_shared(parser, "--batch-size", "--cuda-device", "--weights-file", "--overrides", "--file-friendly-logging")

    def check(self, args: argparse.Namespace) -> None:
        super().check(args)
        check_outputs({"--output-file": args.output_file}, [args.archive_file, args.input_file, args.weights_file])

    def run(self, args: argparse.Namespace) -> Any:
        from beem_plugin.evaluation import trace

        return trace.trace_from_args(args)
