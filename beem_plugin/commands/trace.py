"""`allennlp trace`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_archive_overrides, add_file_friendly_logging, batch_size


@Subcommand.register("trace")
class Trace(Subcommand):
    """Stores the outputs of every exit for every sample."""

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = (
            "Run an archived model once at full depth and store the outputs of all exits: the input of `replay`."
        )
        subparser = parser.add_parser(self.name, description=description, help="store the outputs of every exit")
        subparser.add_argument("archive_file", metavar="ARCHIVE", help="model.tar.gz, or the directory of a run")
        subparser.add_argument("input_file", metavar="INPUT", help="what the archive's dataset reader reads")
        subparser.add_argument("--output-file", required=True, metavar="T.npz", help="where the trace goes")
        subparser.add_argument("--batch-size", type=batch_size, metavar="N", help="instead of the data loader's")
        subparser.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU, -1 for the CPU")
        subparser.add_argument("--weights-file", metavar="FILE", help="weights to use instead of the archive's")
        add_archive_overrides(subparser)
        add_file_friendly_logging(subparser)
        subparser.set_defaults(func=trace_from_args)
        return subparser


def trace_from_args(args: argparse.Namespace) -> Any:
    from beem_plugin.common.outputs import check_outputs
    from beem_plugin.evaluation import trace

    check_outputs({"--output-file": args.output_file}, [args.archive_file, args.input_file, args.weights_file])
    return trace.trace_from_args(args)
