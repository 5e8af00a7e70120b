from beem_plugin.commands.subcommand import Argument, Subcommand, flag


@Subcommand.register("evaluate")
class Evaluate(Subcommand):
    """Evaluate an archived model with early exit, as it is executed."""

    help = "evaluate a trained model"
    reads = ("archive_file", "input_file", "weights_file")
    arguments = (
        "archive_file",
        Argument(
            "input_file",
            help="a file, FILE[test] or a split, as the dataset reader reads it; several are separated by a comma, and "
            "metrics get their name",
        ),
        Argument("--output-file", metavar="FILE", help="where the metrics go, as JSON; several: comma"),
        Argument(
            "--predictions-output-file", metavar="FILE", help="where predictions go, as JSON lines; several: comma"
        ),
        "--weights-file",
        "--cuda-device",
        Argument("--html", metavar="E.html", help="where a page with metrics, exits and classes goes"),
        "--overrides",
        "--batch-size",
        Argument("--batch-weight-key", default="", metavar="KEY", help="not with these models"),
        "--engine",
        flag("--extend-vocab", help="not with these models: labels are fixed"),
        Argument("--embedding-sources-mapping", default="", metavar="JSON", help="not with these models"),
        "--file-friendly-logging",
        Argument(
            "--auto-names",
            default="NONE",
            choices=["NONE", "METRICS", "PREDS", "ALL"],
            help="which output files are named after the input files by themselves",
        ),
    )
    runs = "beem_plugin.evaluation.evaluate:evaluate_from_args"
