"""`allennlp glue-submission`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_file_friendly_logging, add_overrides, batch_size


@Subcommand.register("glue-submission")
class GlueSubmission(Subcommand):
    """Writes the test predictions of models as GLUE's site takes them."""

    only_predicts = True

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = (
            "Predict GLUE's test sets with archived models, one a task, with early exit, and write the eleven "
            "files that gluebenchmark.com requires, and their zip. Files of tasks without an archive are filled with "
            "one label."
        )
        subparser = parser.add_parser(self.name, description=description, help="write a submission to GLUE's site")
        subparser.add_argument("archives", nargs="+", metavar="ARCHIVE", help="model.tar.gz, or the directory of a run")
        subparser.add_argument("--output", required=True, metavar="DIR", help="where the files and submission.zip go")
        subparser.add_argument("--ax", metavar="FILE", help="GLUE's diagnostic.tsv, predicted by the archive of MNLI")
        subparser.add_argument("--batch-size", type=batch_size, metavar="N", help="instead of 4096 samples at a time")
        subparser.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU, -1 for the CPU")
        add_overrides(subparser, "the archived configs")
        add_file_friendly_logging(subparser)
        subparser.set_defaults(func=glue_submission_from_args)
        return subparser


def glue_submission_from_args(args: argparse.Namespace) -> Any:
    from beem_plugin.evaluation import glue_submission

    return glue_submission.glue_submission_from_args(args)
