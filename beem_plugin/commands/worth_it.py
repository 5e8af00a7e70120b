"""`allennlp worth-it`"""

from __future__ import annotations

import argparse

from beem_plugin.commands.subcommand import Subcommand, add_overrides, add_shared


@Subcommand.register("worth-it")
class WorthIt(Subcommand):
    """
    Is early exit worth it on these data? Trains the config, plain networks (the first layers of its encoder, each
    trained for itself), and compares the accuracy of exits, plain networks and cascades at equal cost. Finished work is
    kept: the same command continues an interrupted one, and takes further depths or seeds.
    """

    help = "compare exits with plain networks"
    reads = ("config",)
    after_interrupt = "the same command goes on"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("config", metavar="CONFIG", help="with exits: jsonnet, json or yaml")
        parser.add_argument(
            "-s", "--serialization-dir", required=True, metavar="DIR", help="where trainings, traces and results go"
        )
        parser.add_argument("--seeds", type=int, default=3, metavar="N", help="trainings of each network")
        parser.add_argument(
            "--depths",
            type=int,
            nargs="+",
            metavar="LAYERS",
            help="of the plain networks (default: as fast as the speeds); full depth is always trained",
        )
        parser.add_argument(
            "--distill", action="store_true", help="also train plain networks that the one of full depth teaches"
        )
        parser.add_argument(
            "--cascades",
            nargs="*",
            metavar="LAYERS,LAYERS",
            help="depths of cascades: the small network first, the next one where it is not confident (default: all "
            "pairs); without values, none",
        )
        parser.add_argument(
            "--policies",
            action="append",
            metavar="FILE",
            help="exit policies besides the config's, max_probability and expected_gain: {name: block, ..} or "
            "[block, ..]; repeatable",
        )
        parser.add_argument(
            "--speeds", type=float, nargs="+", metavar="X", help="layer speed-ups to decide at (default: 1.5 2 2.5 3)"
        )
        parser.add_argument(
            "--by",
            choices=["layers", "single", "file"],
            default="layers",
            help="what equal cost means: layers, or measured seconds one by one or of a file",
        )
        parser.add_argument(
            "--no-measure", dest="measure", action="store_false", help="count layers only, measure no seconds"
        )
        parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at a time")
        parser.add_argument(
            "--cuda-device", type=int, metavar="N", help="number of the GPU, -1 for the CPU, in place of the config's"
        )
        parser.add_argument("--dry-run", action="store_true", help="print the trainings and what they cost")
        parser.add_argument("-f", "--force", action="store_true", help="delete what is in DIR first")
        add_overrides(parser, "CONFIG")
        add_shared(parser, "--file-friendly-logging")

    def run(self, args: argparse.Namespace) -> int:
        from beem_plugin.comparison.worth_it.run import worth_it_from_args

        return worth_it_from_args(args)
