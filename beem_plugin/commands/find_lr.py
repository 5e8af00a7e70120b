"""`allennlp find-lr`"""

from __future__ import annotations

import argparse

from beem_plugin.commands.subcommand import Subcommand, add_overrides, add_shared


@Subcommand.register("find-lr")
class FindLearningRate(Subcommand):
    """Find the learning rates at which the loss falls: train a little while the rate rises."""

    help = "find a learning rate"
    reads = ("param_path",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("param_path", help="the config of a training run")
        parser.add_argument("-s", "--serialization-dir", required=True, metavar="DIR", help="where losses and plot go")
        add_overrides(parser)
        parser.add_argument("--start-lr", type=float, default=1e-5, metavar="RATE", help="the first learning rate")
        parser.add_argument("--end-lr", type=float, default=10.0, metavar="RATE", help="the last one")
        parser.add_argument("--num-batches", type=int, default=100, metavar="N", help="optimizer steps")
        parser.add_argument(
            "--stopping-factor", type=float, metavar="X", help="stop when a loss is X times the lowest one"
        )
        parser.add_argument("--linear", action="store_true", help="raise the rate by differences, not by ratios")
        parser.add_argument("-f", "--force", action="store_true", help="delete DIR first if it exists")
        add_shared(parser, "--file-friendly-logging")

    def run(self, args: argparse.Namespace) -> None:
        from beem_plugin.training.find_learning_rate import find_learning_rate_from_args

        find_learning_rate_from_args(args)
