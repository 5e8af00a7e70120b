"""`allennlp worth-it`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_file_friendly_logging, add_overrides


@Subcommand.register("worth-it")
class WorthIt(Subcommand):
    """Says whether early exit beats plain networks of fewer layers."""

    after_interrupt = "the same command goes on"

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = (
            "Is early exit worth it on these data? Trains the config, plain networks (the first layers of its encoder, "
            "each trained for itself), and compares the accuracy of exits, plain networks and cascades at equal cost. "
            "Finished work is kept: the same command continues an interrupted one, and takes further depths or seeds."
        )
        subparser = parser.add_parser(self.name, description=description, help="compare exits with plain networks")
        subparser.add_argument("config", metavar="CONFIG", help="with exits: jsonnet, json or yaml")
        subparser.add_argument(
            "-s", "--serialization-dir", required=True, metavar="DIR", help="where trainings, traces and results go"
        )
        subparser.add_argument("--seeds", type=int, default=3, metavar="N", help="trainings of each network")
        subparser.add_argument(
            "--depths",
            type=int,
            nargs="+",
            metavar="LAYERS",
            help="of the plain networks (default: as fast as the speeds); full depth is always trained",
        )
        subparser.add_argument(
            "--distill", action="store_true", help="also train plain networks that the one of full depth teaches"
        )
        subparser.add_argument(
            "--cascades",
            nargs="*",
            metavar="LAYERS,LAYERS",
            help="depths of cascades: the small network first, the next one where it is not confident (default: all "
            "pairs); without values, none",
        )
        subparser.add_argument(
            "--policies",
            action="append",
            metavar="FILE",
            help="exit policies besides the config's, max_probability and expected_gain: {name: block, ..} or "
            "[block, ..]; repeatable",
        )
        subparser.add_argument(
            "--speeds", type=float, nargs="+", metavar="X", help="layer speed-ups to decide at (default: 1.5 2 2.5 3)"
        )
        subparser.add_argument(
            "--by",
            choices=["layers", "single", "file"],
            default="layers",
            help="what equal cost means: layers, or measured seconds one by one or of a file",
        )
        subparser.add_argument(
            "--no-measure", dest="measure", action="store_false", help="count layers only, measure no seconds"
        )
        subparser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at a time")
        subparser.add_argument(
            "--cuda-device", type=int, metavar="N", help="number of the GPU, -1 for the CPU, in place of the config's"
        )
        subparser.add_argument("--dry-run", action="store_true", help="print the trainings and what they cost")
        subparser.add_argument("-f", "--force", action="store_true", help="delete what is in DIR first")
        add_overrides(subparser, "CONFIG")
        add_file_friendly_logging(subparser)
        subparser.set_defaults(func=worth_it_from_args)
        return subparser


def worth_it_from_args(args: argparse.Namespace) -> int:
    from beem_plugin.comparison.worth_it.run import worth_it_from_args

    return worth_it_from_args(args)
