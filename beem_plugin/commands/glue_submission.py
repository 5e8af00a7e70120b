from beem_plugin.commands.subcommand import Argument, Subcommand, batch_size, overrides


@Subcommand.register("glue-submission")
class GlueSubmission(Subcommand):
    """
    Predict GLUE's test sets with archived models, one a task, with early exit, and write the eleven files that
    gluebenchmark.com requires, and their zip. Files of tasks without an archive are filled with one label.
    """

    help = "write a submission to GLUE's site"
    reads = ("archives", "ax")
    only_predicts = True
    arguments = (
        Argument("archives", nargs="+", metavar="ARCHIVE", help="model.tar.gz, or the directory of a run"),
        Argument("--output", required=True, metavar="DIR", help="where the files and submission.zip go"),
        Argument("--ax", metavar="FILE", help="GLUE's diagnostic.tsv, predicted by the archive of MNLI"),
        Argument("--batch-size", type=batch_size, metavar="N", help="instead of 4096 samples at a time"),
        "--cuda-device",
        overrides("the archived configs"),
        "--file-friendly-logging",
    )
    runs = "beem_plugin.evaluation.glue_submission:glue_submission_from_args"
