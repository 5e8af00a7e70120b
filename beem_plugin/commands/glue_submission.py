"""`allennlp glue-submission`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_overrides, add_shared, batch_size


@Subcommand.register("glue-submission")
class GlueSubmission(Subcommand):
    """
    Predict GLUE's test sets with archived models, one a task, with early exit, and write the eleven files that
    gluebenchmark.com requires, and their zip. Files of tasks without an archive are filled with one label.
    """

    help = "write a submission to GLUE's site"
    reads = ("archives", "ax")
    only_predicts = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("archives", nargs="+", metavar="ARCHIVE", help="model.tar.gz, or the directory of a run")
        parser.add_argument("--output", required=True, metavar="DIR", help="where the files and submission.zip go")
        parser.add_argument("--ax", metavar="FILE", help="GLUE's diagnostic.tsv, predicted by the archive of MNLI")
        parser.add_argument("--batch-size", type=batch_size, metavar="N", help="instead of 4096 samples at a time")
        add_shared(parser, "--cuda-device")
        add_overrides(parser, "the archived configs")
        add_shared(parser, "--file-friendly-logging")

    def run(self, args: argparse.Namespace) -> Any:
        from beem_plugin.evaluation.glue_submission import glue_submission_from_args

        return glue_submission_from_args(args)
