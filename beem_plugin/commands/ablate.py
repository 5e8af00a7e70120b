"""`allennlp ablate`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_file_friendly_logging, add_overrides


@Subcommand.register("ablate")
class Ablate(Subcommand):
    """Compares a config with variants of it."""

    after_interrupt = "the same command goes on"

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = (
            "Compare a config with variants of it, on one table. Variants that differ only in the exit policy, its "
            "calibration or the engine share one training. Finished work is kept: the same command continues an "
            "interrupted ablation, and takes further variants and seeds."
        )
        subparser = parser.add_parser(self.name, description=description, help="compare a config with variants of it")
        subparser.add_argument("base", metavar="BASE", help="the config: jsonnet, json or yaml")
        subparser.add_argument(
            "variants",
            metavar="VARIANTS",
            help="a file with an object, name -> what differs from BASE: blocks are merged, dotted keys change one "
            'value; {"grid": {KEY: [VALUES]}, "select": "best" or "all"} tries all combinations; '
            '"plain": [4, 6, 8] trains networks of so many layers without exits',
        )
        subparser.add_argument(
            "-s", "--serialization-dir", required=True, metavar="DIR", help="where trainings, traces and tables go"
        )
        subparser.add_argument(
            "--seeds", type=int, default=1, metavar="N", help="trainings of each variant, counted from its own seeds"
        )
        subparser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at a time")
        subparser.add_argument(
            "-r", "--recover", action="store_true", help="DIR must hold an ablation; to continue it is the default"
        )
        subparser.add_argument("-f", "--force", action="store_true", help="delete the ablation in DIR first")
        subparser.add_argument(
            "--measure", action="store_true", help="also time each variant on its engine, on the data it is judged on"
        )
        add_overrides(subparser, "BASE")
        add_file_friendly_logging(subparser)
        subparser.set_defaults(func=ablate_from_args)
        return subparser


def ablate_from_args(args: argparse.Namespace) -> int:
    from beem_plugin.comparison.ablation.ablate import ablate_from_args

    return ablate_from_args(args)
