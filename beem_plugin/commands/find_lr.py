"""`allennlp find-lr`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_file_friendly_logging, add_overrides


@Subcommand.register("find-lr")
class FindLearningRate(Subcommand):
    """Finds a range of learning rates."""

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = "Find the learning rates at which the loss falls: train a little while the rate rises."
        subparser = parser.add_parser(self.name, description=description, help="find a learning rate")
        subparser.add_argument("param_path", help="the config of a training run")
        subparser.add_argument(
            "-s", "--serialization-dir", required=True, metavar="DIR", help="where losses and plot go"
        )
        add_overrides(subparser)
        subparser.add_argument("--start-lr", type=float, default=1e-5, metavar="RATE", help="the first learning rate")
        subparser.add_argument("--end-lr", type=float, default=10.0, metavar="RATE", help="the last one")
        subparser.add_argument("--num-batches", type=int, default=100, metavar="N", help="optimizer steps")
        subparser.add_argument(
            "--stopping-factor", type=float, metavar="X", help="stop when a loss is X times the lowest one"
        )
        subparser.add_argument("--linear", action="store_true", help="raise the rate by differences, not by ratios")
        subparser.add_argument("-f", "--force", action="store_true", help="delete DIR first if it exists")
        add_file_friendly_logging(subparser)
        subparser.set_defaults(func=find_lr_from_args)
        return subparser


def find_lr_from_args(args: argparse.Namespace) -> None:
    from beem_plugin.training.find_learning_rate import find_learning_rate_from_args

    find_learning_rate_from_args(args)
