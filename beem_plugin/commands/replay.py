"""`allennlp replay`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_overrides


@Subcommand.register("replay")
class Replay(Subcommand):
    """Judge and compare exit policies on stored traces, without running the network."""

    help = "judge exit policies on traces"
    reads = ("trace", "calibrate_on")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", nargs="*", metavar="TRACE.npz", help="what `trace` or a training run stored")
        parser.add_argument(
            "--policy",
            action="append",
            metavar="POLICY",
            help="a policy's name, or a json or jsonnet file with its block; repeatable. Keys may have several values: "
            "'patience: [2, 3, 4]' where it takes one, or anywhere {grid: [..]}, {linspace: [from, to, count]}; "
            "thresholds also {quantiles: count}",
        )
        parser.add_argument(
            "--policies",
            action="append",
            metavar="VARIANTS",
            help="a json or jsonnet file with many: {name: block, ..} or [block, ..]; repeatable",
        )
        parser.add_argument(
            "--calibrate-on",
            nargs="+",
            metavar="OTHER.npz",
            help="the trace on which weights and thresholds are calibrated: one for all, or one for each trace in the "
            "same order",
        )
        parser.add_argument(
            "--plain",
            nargs="+",
            metavar="ARCHIVE|PLAIN.npz",
            help="networks of fewer layers without exits, on the same samples: archives, which are run, or traces; of "
            "each network one for each trace. The deepest, if no exits are deeper, is what speeds and paired tests "
            "are relative to",
        )
        parser.add_argument(
            "--metric",
            help="what curves and the order of the table are about: accuracy (the default), f1, accuracy_f1, macro_f1, "
            "matthews; pearson_spearman of a regression",
        )
        parser.add_argument(
            "--curve",
            action="store_true",
            help="sweep the threshold, patience, ... of every policy with a score over all values that make a "
            "difference; without, curves go through the settings that were given",
        )
        parser.add_argument(
            "--edge-layers",
            type=int,
            metavar="N",
            help="split the network after layer N: report the share of samples that go on to a second machine, and "
            "the mean cost on the first one, in layers",
        )
        parser.add_argument(
            "--offload-cost", type=float, default=1.0, metavar="L", help="of sending a sample on, in layers"
        )
        parser.add_argument("--output-file", metavar="R.json", help="where the metrics go, as JSON")
        parser.add_argument("--csv", metavar="R.csv", help="where they go as a table, one row a setting")
        parser.add_argument("--plot", metavar="P.png|P.svg", help="where the curves go; needs matplotlib")
        parser.add_argument(
            "--predictions-output-file",
            metavar="P.jsonl",
            help="where exit and label (or value) of each sample go, as JSON lines; needs one trace, no grid",
        )
        parser.add_argument(
            "--table", metavar="T.md|T.tex|T.csv|T.json", help="where the table of results goes, in the name's format"
        )
        add_overrides(parser, "every policy", '{"thresholds": 0.9}')

    def run(self, args: argparse.Namespace) -> Any:
        import beem_plugin.comparison.replay as replay

        return replay.replay_from_args(args)
