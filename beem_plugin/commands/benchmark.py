"""`allennlp benchmark`"""

from __future__ import annotations

import argparse

from beem_plugin.commands.subcommand import Subcommand, add_shared


@Subcommand.register("benchmark")
class Benchmark(Subcommand):
    """
    Measure an archived model in seconds: each engine with its exits, at full depth and with exits at which no sample
    exits, and transformers, in turns, beside layers and multiply-accumulates counted; of a captioning model: decoding
    under its policy, at full depth, and transformers' generate.
    """

    help = "measure the speed of a trained model"
    reads = ("archive_file", "input_file", "weights_file")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_shared(parser, "archive_file")
        parser.add_argument("input_file", metavar="DATA", help="what the archive's dataset reader reads")
        parser.add_argument("--batch-sizes", default="1,32", metavar="N,N", help="sizes, separated by commas")
        parser.add_argument(
            "--engines",
            metavar="E,E",
            help="engines of a classifier, separated by commas (default: single,compaction,depth_pools); single always "
            "runs at batch size 1",
        )
        parser.add_argument(
            "--skipped-blocks",
            metavar="S,S",
            help="of a captioning model: how skipped blocks are filled in (default: the model's own); the policy is "
            "measured with each of these",
        )
        parser.add_argument("--num-beams", type=int, metavar="N", help="of a captioning model: 1 is greedy")
        parser.add_argument(
            "--max-length", type=int, metavar="N", help="of a captioning model: maximum number of tokens"
        )
        parser.add_argument("--repeats", type=int, default=5, metavar="N", help="timed runs of each case")
        parser.add_argument(
            "--time-budget",
            type=float,
            metavar="SECONDS",
            help="of each batch size: no further repeat begins after this time (at least one is made)",
        )
        parser.add_argument("--max-instances", type=int, metavar="N", help="read no more of the data than this")
        add_shared(parser, "--dtype")
        parser.add_argument("--output-file", metavar="B.json", help="JSON; B.csv and B.svg are written beside it")
        add_shared(parser, "--cuda-device", "--weights-file", "--overrides", "--file-friendly-logging")

    def run(self, args: argparse.Namespace) -> int:
        from beem_plugin.evaluation.benchmark import benchmark_from_args

        benchmark_from_args(args)
        return 0
