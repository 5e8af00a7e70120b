import argparse

from beem_plugin.commands.subcommand import Argument, Subcommand
from beem_plugin.common.outputs import check_outputs


@Subcommand.register("trace")
class Trace(Subcommand):
    """Run an archived model once at full depth and store the outputs of all exits: the input of `replay`."""

    help = "store the outputs of every exit"
    reads = ("archive_file", "input_file", "weights_file")
    arguments = (
        "archive_file",
        Argument("input_file", metavar="INPUT", help="what the archive's dataset reader reads"),
        Argument("--output-file", required=True, metavar="T.npz", help="where the trace goes"),
        "--batch-size",
        "--cuda-device",
        "--weights-file",
        "--overrides",
        "--file-friendly-logging",
    )

    def check(self, args: argparse.Namespace) -> None:
        super().check(args)
        check_outputs({"--output-file": args.output_file}, [args.archive_file, args.input_file, args.weights_file])

    runs = "beem_plugin.evaluation.trace:trace_from_args"
