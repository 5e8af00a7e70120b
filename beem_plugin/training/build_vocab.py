"""The vocabulary of a config, and the command `allennlp build-vocab`."""

import argparse
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beem_plugin.common.archive_files import opened_folder
from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.files import atomic_write, scratch_folder
from beem_plugin.common.outputs import check_writable
from beem_plugin.common.params import load_config
from beem_plugin.common.registry import Params
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance, labels_of
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.training.trainer import test_paths


def build_vocab_from_args(args: argparse.Namespace) -> None:
    """Runs the command; `args` as `commands/build_vocab.py` parses them."""
    output = Path(args.output_path)
    if not output.name.endswith(".tar.gz"):
        raise ConfigurationError(f"output_path: found {output}, allowed: a name that ends in .tar.gz")
    if output.exists() and not args.force:
        raise ConfigurationError(f"output_path: {output} exists, allowed: a new file, or --force")
    check_writable({"output_path": str(output)})
    params = load_config(args.param_path, args.overrides).as_dict(quiet=True)
    for key in ("dataset_reader", "train_data_path"):
        if key not in params:
            raise ConfigurationError(f"{key}: missing in {args.param_path}")
    reader = DatasetReader.from_params(Params(params["dataset_reader"], history="dataset_reader."))
    other = params.get("validation_dataset_reader")
    readers = {"train": reader, "other": DatasetReader.from_params(Params(other)) if other else reader}
    paths = {"train": params["train_data_path"], "validation": params.get("validation_data_path")}
    paths |= test_paths(params.get("test_data_path") if params.get("evaluate_on_test") else None)
    datasets = {
        split: readers.get(split, readers["other"]).read(path) for split, path in paths.items() if path is not None
    }
    vocab = make_vocabulary(params.get("vocabulary"), datasets, params.get("datasets_for_vocab_creation"), reader)
    with scratch_folder() as folder:
        vocab.save_to_files(folder)
        with atomic_write(output, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, arcname=path.name)
    print(f"Success! Vocab saved to {output}")
    print('You can now set the "vocabulary" entry of your training config to:')
    print(json.dumps({"type": "from_files", "directory": str(output.absolute())}))


def make_vocabulary(
    config: dict[str, Any] | None,
    datasets: dict[str, Sequence[Instance]],
    names: list[str] | None,
    reader: DatasetReader,
) -> Vocabulary:
    """The vocabulary from the config's files or from the labels of the data."""
    config = dict(config or {})
    kind = config.pop("type", "from_instances")
    if kind == "from_files" and set(config) == {"directory"}:
        with opened_folder(config["directory"]) as folder:
            return Vocabulary.from_files(folder)
    check_choice("vocabulary.type", kind, ("from_files", "from_instances"))
    if kind == "from_files" or config:
        raise ConfigurationError(
            f"vocabulary: found keys {', '.join(config) or 'none'}, allowed: `directory` with type from_files, "
            "none with type from_instances"
        )
    for name in names or []:
        check_choice("datasets_for_vocab_creation", name, datasets)
    labels = (label for name in names or datasets for label in labels_of(datasets[name]))
    return Vocabulary.from_labels(labels, reader.label_names)
