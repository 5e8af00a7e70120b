"""`allennlp benchmark`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_archive_overrides, add_file_friendly_logging


@Subcommand.register("benchmark")
class Benchmark(Subcommand):
    """Measures the speed of a trained model."""

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = (
            "Measure an archived model in seconds: each engine with its exits, at full depth and with exits at which "
            "no sample exits, and transformers, in turns, beside layers and multiply-accumulates counted; "
            "of a captioning model: decoding under its policy, at full depth, and transformers' generate."
        )
        subparser = parser.add_parser(self.name, description=description, help="measure the speed of a trained model")
        subparser.add_argument("archive_file", metavar="ARCHIVE", help="model.tar.gz, or the directory of a run")
        subparser.add_argument("input_file", metavar="DATA", help="what the archive's dataset reader reads")
        subparser.add_argument("--batch-sizes", default="1,32", metavar="N,N", help="sizes, separated by commas")
        subparser.add_argument(
            "--engines",
            metavar="E,E",
            help="engines of a classifier, separated by commas (default: single,compaction,depth_pools); single always "
            "runs at batch size 1",
        )
        subparser.add_argument(
            "--skipped-blocks",
            metavar="S,S",
            help="of a captioning model: how skipped blocks are filled in (default: the model's own); the policy is "
            "measured with each of these",
        )
        subparser.add_argument("--num-beams", type=int, metavar="N", help="of a captioning model: 1 is greedy")
        subparser.add_argument(
            "--max-length", type=int, metavar="N", help="of a captioning model: maximum number of tokens"
        )
        subparser.add_argument("--repeats", type=int, default=5, metavar="N", help="timed runs of each case")
        subparser.add_argument(
            "--time-budget",
            type=float,
            metavar="SECONDS",
            help="of each batch size: no further repeat begins after this time (at least one is made)",
        )
        subparser.add_argument("--max-instances", type=int, metavar="N", help="read no more of the data than this")
        subparser.add_argument(
            "--dtype",
            default="float32",
            choices=["float32", "bfloat16", "float16", "int8"],
            help="precision of the layers",
        )
        subparser.add_argument("--output-file", metavar="B.json", help="JSON; B.csv and B.svg are written beside it")
        subparser.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU, -1 for the CPU")
        subparser.add_argument("--weights-file", metavar="FILE", help="weights to use instead of the archive's")
        add_archive_overrides(subparser)
        add_file_friendly_logging(subparser)
        subparser.set_defaults(func=benchmark_from_args)
        return subparser


def benchmark_from_args(args: argparse.Namespace) -> int:
    from beem_plugin.evaluation.benchmark import benchmark_from_args

    benchmark_from_args(args)
    return 0
