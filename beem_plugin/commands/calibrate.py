from beem_plugin.commands.subcommand import Argument, Subcommand, batch_size, dtype, flag, overrides


@Subcommand.register("calibrate")
class Calibrate(Subcommand):
    """
    Fit the weights, temperatures and thresholds of an exit policy on a trace, or on data that an archive's model is run
    on, and write a new archive, a policy file, and a report. The calibration data must not be the data that results are
    reported on.
    """

    help = "fit an exit policy"
    reads = ("archive_file", "trace", "data")
    arguments = (
        Argument(
            "archive_file",
            nargs="?",
            metavar="ARCHIVE",
            help="model.tar.gz, or the directory of a run; may be left out with --trace; alone, its own calibration "
            "trace is used",
        ),
        [
            Argument("--trace", metavar="T.npz", help="what `trace` or a training run stored"),
            Argument("--data", metavar="FILE", help="what the archive's dataset reader reads; the model is run on it"),
        ],
        Argument(
            "--policy",
            required=True,
            metavar="P",
            help="a policy's name, its block {..}, or a jsonnet file with it",
        ),
        Argument(
            "--speedup",
            type=float,
            metavar="X",
            help="choose the thresholds with the least error at this layer speed-up over all layers of this network, "
            "which may be those that the config keeps of the encoder; short for "
            "-o '{thresholds: {type: \"budget\", speedup: X}}'",
        ),
        Argument("--output-archive", metavar="NEW.tar.gz", help="the archive with the calibrated policy"),
        flag("-f", "--force", help="replace NEW.tar.gz if it exists"),
        Argument("--output-policy", metavar="P.json", help="the calibrated policy, every number resolved"),
        Argument("--report-dir", metavar="DIR", help="where report.json and report.html go"),
        Argument(
            "--plain",
            nargs="+",
            metavar="ARCHIVE|PLAIN.npz",
            help="networks of fewer layers without exits, on the same samples, as points of the report's plot: "
            "archives, which are run, or traces",
        ),
        Argument("--batch-size", type=batch_size, metavar="N", help="with --data: instead of the data loader's"),
        dtype("with --data: the precision in which the model is to predict later"),
        "--cuda-device",
        overrides("the policy", '{"thresholds.speedup": 2}'),
        "--file-friendly-logging",
    )
    runs = "beem_plugin.comparison.calibrate:calibrate_from_args"
