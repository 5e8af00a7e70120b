import argparse
import os

from beem_plugin.commands.subcommand import Argument, Subcommand, batch_size, flag
from beem_plugin.common.errors import DataError
from beem_plugin.common.outputs import IMAGE_SUFFIXES, check_outputs, check_writable


@Subcommand.register("predict")
class Predict(Subcommand):
    """
    Predict with an archived model: one JSON object a line, with label, probabilities, exit and score; of images with
    caption, words, tokens, the exit of each token, and score.
    """

    help = "predict with a trained model"
    reads = ("archive_file", "input_file", "weights_file")
    only_predicts = True
    arguments = (
        "archive_file",
        Argument(
            "input_file",
            help="JSON lines, CSV, TSV or text, gzipped or not; - is standard input; captions: an image, or a folder",
        ),
        Argument("--output-file", metavar="FILE", help="where predictions go: JSON lines, or a table .csv or .tsv"),
        Argument(
            "--html",
            metavar="FILE",
            help="also a page: what each exit gives for a text, at any speed; captions in colours of depth",
        ),
        "--weights-file",
        Argument("--batch-size", type=batch_size, default=32, metavar="N", help="how many inputs at once"),
        flag("--silent", help="do not print predictions; with --output-file none are printed"),
        "--cuda-device",
        "--dtype",
        flag("--use-dataset-reader", help="read the input with the archive's dataset reader"),
        Argument(
            "--dataset-reader-choice",
            default="validation",
            choices=["train", "validation"],
            help="which reader, with --use-dataset-reader",
        ),
        Argument(
            "--format",
            choices=["jsonl", "csv", "tsv", "text"],
            help="of the input; if not given, from the name of the file or the first line",
        ),
        Argument("--input-field", metavar="NAME", help="the reader's field that plain text is, or the column to read"),
        "--engine",
        Argument("--multitask-head", metavar="NAME", help="accepted and ignored"),
        "--overrides",
        Argument("--predictor", metavar="NAME", help="the predictor's registered name"),
        Argument(
            "--predictor-args",
            default="",
            metavar="JSON",
            help="further arguments for it; captions: max_length, num_beams",
        ),
        "--file-friendly-logging",
    )

    def check(self, args: argparse.Namespace) -> None:
        super().check(args)
        own = args.use_dataset_reader or args.predictor is not None  # which may find it elsewhere
        if not own and args.input_file != "-" and not os.path.exists(args.input_file):
            what = "image" if args.input_file.lower().endswith(IMAGE_SUFFIXES) else "file"
            raise DataError(f"{args.input_file}: no such {what}")
        inputs = [args.archive_file, args.input_file, args.weights_file]
        outputs = {"--output-file": args.output_file, "--html": args.html}
        # What is not complete yet has a name of its own, which may be that of what an earlier call has left.
        check_outputs({**outputs, "--output-file (until it is complete)": f"{args.output_file}.part"}, inputs)
        check_writable(outputs)

    runs = "beem_plugin.predictors.predict:predict_from_args"
