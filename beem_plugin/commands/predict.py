"""`allennlp predict`"""

from __future__ import annotations

import argparse
from typing import Any

from beem_plugin.commands.subcommand import Subcommand, add_archive_overrides, add_file_friendly_logging, batch_size


@Subcommand.register("predict")
class Predict(Subcommand):
    """Predicts unlabelled data with a trained model."""

    only_predicts = True

    def add_subparser(self, parser: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        description = (
            "Predict with an archived model: one JSON object a line, with label, probabilities, exit and score; of "
            "images with caption, words, tokens, the exit of each token, and score."
        )
        subparser = parser.add_parser(self.name, description=description, help="predict with a trained model")
        subparser.add_argument("archive_file", help="model.tar.gz, or the directory of a run")
        subparser.add_argument(
            "input_file",
            help="JSON lines, CSV, TSV or text, gzipped or not; - is standard input; captions: an image, or a folder",
        )
        subparser.add_argument("--output-file", metavar="FILE", help="where predictions go, as JSON lines")
        subparser.add_argument(
            "--html",
            metavar="FILE",
            help="also a page: what each exit gives for a text, at any speed; captions in colours of depth",
        )
        subparser.add_argument("--weights-file", metavar="FILE", help="weights to use instead of the archive's")
        subparser.add_argument("--batch-size", type=batch_size, default=32, metavar="N", help="how many inputs at once")
        subparser.add_argument(
            "--silent", action="store_true", help="do not print predictions; with --output-file none are printed"
        )
        subparser.add_argument("--cuda-device", type=int, default=-1, help="number of the GPU, -1 for the CPU")
        subparser.add_argument(
            "--dtype",
            default="float32",
            choices=["float32", "bfloat16", "float16", "int8"],
            help="precision of the layers of a classifier; exits are decided in double precision",
        )
        subparser.add_argument(
            "--use-dataset-reader", action="store_true", help="read the input with the archive's dataset reader"
        )
        subparser.add_argument(
            "--dataset-reader-choice",
            default="validation",
            choices=["train", "validation"],
            help="which reader, with --use-dataset-reader",
        )
        subparser.add_argument(
            "--format",
            choices=["jsonl", "csv", "tsv", "text"],
            help="of the input; if not given, from the name of the file or the first line",
        )
        subparser.add_argument(
            "--input-field",
            metavar="NAME",
            help="the reader's field that plain text is, or the column to read",
        )
        subparser.add_argument(
            "--engine",
            metavar="NAME",
            help="how early exit is executed; default: the archive's, or else depth_pools. One with options of its own "
            """is an override: -o '{"model.engine": {"type": "compaction", "capture": false}}'""",
        )
        subparser.add_argument("--multitask-head", metavar="NAME", help="accepted and ignored")
        add_archive_overrides(subparser)
        subparser.add_argument("--predictor", metavar="NAME", help="the predictor's registered name")
        subparser.add_argument(
            "--predictor-args",
            default="",
            metavar="JSON",
            help="further arguments for it; captions: max_length, num_beams",
        )
        add_file_friendly_logging(subparser)
        subparser.set_defaults(func=predict_from_args)
        return subparser


def predict_from_args(args: argparse.Namespace) -> Any:
    from beem_plugin.common.outputs import check_outputs, check_writable
    from beem_plugin.predictors import predict

    inputs = [args.archive_file, args.input_file, args.weights_file]
    outputs = {"--output-file": args.output_file, "--html": args.html}
    # What is not complete yet has a name of its own, which may be that of what an earlier call has left.
    check_outputs({**outputs, "--output-file (until it is complete)": f"{args.output_file}.part"}, inputs)
    check_writable(outputs)
    return predict.predict_from_args(args)
