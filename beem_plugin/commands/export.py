import argparse
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from beem_plugin.commands.subcommand import Argument, Subcommand, dtype, flag
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.outputs import check_replaced

logger = logging.getLogger(__name__)


@Subcommand.register("export")
class Export(Subcommand):
    """
    Export an archived model as ONNX: a graph a segment between two exits, with any batch and length, and what a runner
    needs beside them: the calibrated policy, the labels, the tokenizer.
    """

    help = "export a trained model as ONNX"
    reads = ("archive_file", "weights_file", "data")
    arguments = (
        "archive_file",
        Argument("folder", metavar="DIR", help="where the graphs go; empty, or not there yet"),
        flag("-f", "--force", help="delete the export in DIR first"),
        flag("--full-depth", help="also one graph without exits, to compare the speed with"),
        dtype(
            "bfloat16, float16: weights stored in 16 bits, computed in float32; int8: matrix products in 8 bits "
            "(dynamic quantization); give --data"
        ),
        Argument(
            "--data",
            metavar="FILE",
            help="fit the exit policy again, on these data and the outputs of the exported graphs",
        ),
        "--weights-file",
        "--overrides",
    )

    def run(self, args: argparse.Namespace) -> Any:
        from beem_plugin.archival import load_archive
        from beem_plugin.common.files import replaced_folder, restore_folder
        from beem_plugin.comparison.refit_export import refit_on
        from beem_plugin.execution.onnx.export import export_network
        from beem_plugin.tasks.classification import text_model

        folder = Path(args.folder).absolute()
        restore_folder(folder)
        check_folder(folder, args.force, {"ARCHIVE": args.archive_file, "--weights-file": args.weights_file})
        archive = load_archive(args.archive_file, overrides=args.overrides, weights_file=args.weights_file)
        model = text_model(archive.model)
        reader = archive.validation_dataset_reader
        example = reader.text_to_instance(**{name: "a" for name in reader.text_fields})
        if args.dtype != "float32" and not args.data:
            logger.warning(
                "--dtype %s: thresholds were fitted in another precision; --data fits them again", args.dtype
            )
        with replaced_folder(folder) as new:
            written = export_network(
                model.encoder,
                model.exit_policy,
                new,
                token_types="token_type_ids" in example.encoding,
                full_depth=args.full_depth,
                dtype=args.dtype,
                refit=refit_on(archive, args.data) if args.data else None,
                meta={
                    "labels": model.vocab.labels,
                    "text_fields": list(reader.text_fields),
                    "max_length": reader.tokenizer.max_length,
                    "table": {key: value for key, value in asdict(reader.table).items() if value is not None},
                },
            )
            reader.tokenizer.save(new / "tokenizer")
        print(f"{args.folder}: {len(written['segments'])} segments")
        return 0


def check_folder(folder: Path, force: bool, inputs: Mapping[str, str | None]) -> None:
    """Raises a `ConfigurationError` unless an export may go to the folder, in which no input lies. Changes nothing."""
    from beem_plugin.execution.onnx.export import META_NAME

    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"export: {folder} is a file, allowed: a folder")
    check_replaced(folder, force, "export:", "is not empty: --force deletes the export in it", "an export", [META_NAME])
    for name, path in inputs.items():
        if path is not None and Path(path).exists() and Path(path).resolve().is_relative_to(folder.resolve()):
            raise ConfigurationError(f"export: found {name} {path} in {folder}, allowed: a folder that holds no input")
