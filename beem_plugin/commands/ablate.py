"""`allennlp ablate`"""

from __future__ import annotations

import argparse

from beem_plugin.commands.subcommand import Subcommand, add_overrides, add_shared


@Subcommand.register("ablate")
class Ablate(Subcommand):
    """
    Compare a config with variants of it, on one table. Variants that differ only in the exit policy, its calibration or
    the engine share one training. Finished work is kept: the same command continues an interrupted ablation, and takes
    further variants and seeds.
    """

    help = "compare a config with variants of it"
    reads = ("base", "variants")
    after_interrupt = "the same command goes on"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("base", metavar="BASE", help="the config: jsonnet, json or yaml")
        parser.add_argument(
            "variants",
            metavar="VARIANTS",
            help="a file with an object, name -> what differs from BASE: blocks are merged, dotted keys change one "
            'value; {"grid": {KEY: [VALUES]}, "select": "best" or "all"} tries all combinations; '
            '"plain": [4, 6, 8] trains networks of so many layers without exits',
        )
        parser.add_argument(
            "-s", "--serialization-dir", required=True, metavar="DIR", help="where trainings, traces and tables go"
        )
        parser.add_argument(
            "--seeds", type=int, default=1, metavar="N", help="trainings of each variant, counted from its own seeds"
        )
        parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at a time")
        parser.add_argument(
            "-r", "--recover", action="store_true", help="DIR must hold an ablation; to continue it is the default"
        )
        parser.add_argument("-f", "--force", action="store_true", help="delete the ablation in DIR first")
        parser.add_argument(
            "--measure", action="store_true", help="also time each variant on its engine, on the data it is judged on"
        )
        add_overrides(parser, "BASE")
        add_shared(parser, "--file-friendly-logging")

    def run(self, args: argparse.Namespace) -> int:
        from beem_plugin.comparison.ablation.ablate import ablate_from_args

        return ablate_from_args(args)
