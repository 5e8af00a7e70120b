"""`allennlp replay`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_overrides


@Subcommand.register("replay")
class Replay(Subcommand):
    """Judges exit policies on a stored trace."""

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = "Judge exit policies on a stored trace, without running the network."
        subparser = parser.add_parser(self.name, description=description, help="judge exit policies on a trace")
        subparser.add_argument("trace", metavar="TRACE.npz", help="what `trace` or a training run stored")
        subparser.add_argument(
            "--policy",
            action="append",
            required=True,
            metavar="POLICY",
            help="a json or jsonnet file with an exit policy's block; repeatable",
        )
        subparser.add_argument(
            "--calibrate-on", metavar="OTHER.npz", help="the trace on which weights and thresholds are calibrated"
        )
        subparser.add_argument("--output-file", metavar="R.json", help="where the metrics go, as JSON")
        subparser.add_argument(
            "--predictions-output-file", metavar="P.jsonl", help="where exit and label of each sample go, as JSON lines"
        )
        add_overrides(subparser, "every policy")
        subparser.set_defaults(func=replay_from_args)
        return subparser


def replay_from_args(args: argparse.Namespace) -> Any:
    import beem_plugin.reports.replay as replay

    return replay.replay_from_args(args)
