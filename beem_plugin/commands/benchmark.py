from beem_plugin.commands.subcommand import Argument, Subcommand, count


@Subcommand.register("benchmark")
class Benchmark(Subcommand):
    """
    Measure an archived model in seconds: each engine with its exits, at full depth and with exits at which no sample
    exits, and transformers, in turns, beside layers and multiply-accumulates counted; of a captioning model: decoding
    under its policy, at full depth, and transformers' generate.
    """

    help = "measure the speed of a trained model"
    reads = ("archive_file", "input_file", "weights_file")
    arguments = (
        "archive_file",
        Argument("input_file", metavar="DATA", help="what the archive's dataset reader reads"),
        Argument("--batch-sizes", default="1,32", metavar="N,N", help="sizes, separated by commas"),
        Argument(
            "--engines",
            metavar="E,E",
            help="engines of a classifier, separated by commas (default: single,compaction,depth_pools); single always "
            "runs at batch size 1",
        ),
        Argument(
            "--skipped-blocks",
            metavar="S,S",
            help="of a captioning model: how skipped blocks are filled in (default: the model's own); the policy is "
            "measured with each of these",
        ),
        count("--num-beams", help="of a captioning model: 1 is greedy"),
        count("--max-length", help="of a captioning model: maximum number of tokens"),
        count("--repeats", default=5, help="timed runs of each case"),
        Argument(
            "--time-budget",
            type=float,
            default=120.0,
            metavar="SECONDS",
            help="of each batch size: as many of the first samples are measured as fit, and no repeat begins later; "
            "inf: no limit",
        ),
        count("--max-instances", help="measure the first N samples, whether or not they fit"),
        "--dtype",
        Argument("--output-file", metavar="B.json", help="JSON; B.csv and B.svg are written beside it"),
        "--cuda-device",
        "--weights-file",
        "--overrides",
        "--file-friendly-logging",
    )
    runs = "beem_plugin.evaluation.benchmark:benchmark_from_args"
