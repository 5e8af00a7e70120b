"""The config of an archive, pointed to the files in it."""

import copy
from pathlib import Path
from typing import Any

from beem_plugin.calibration.stored_calibration import Calibration
from beem_plugin.common.archive_files import CONFIG_NAME
from beem_plugin.common.errors import DataError
from beem_plugin.common.values import describe_value

READER_PARTS = ("tokenizer", "image_processor")
"""Parts of a dataset reader that are saved beside the model and loaded by `model_name`."""


def as_policy_config(policy: Any) -> Any:
    """The block of a policy that is given by its name alone."""
    return {"type": policy} if isinstance(policy, str) else policy


def localise(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`config` with hub names replaced by the archive's own files, so that loading needs no hub."""
    config = copy.deepcopy(config)
    for key in ("dataset_reader", "validation_dataset_reader"):
        if isinstance(config.get(key), str):
            config[key] = {"type": config[key]}
    for key in ("dataset_reader", "model", "validation_dataset_reader"):
        is_missing = key.startswith("validation") and config.get(key) is None
        if not is_missing and not isinstance(config.get(key), dict):
            raise DataError(f"{CONFIG_NAME}: {key}: found {describe_value(config.get(key))}, allowed: a block {{...}}")
        if key != "model" and not is_missing:
            localise_reader(config[key], folder)
    model = config["model"]
    encoder = model.get("encoder")
    backbone = encoder.get("backbone") if isinstance(encoder, dict) else None
    if isinstance(backbone, dict) and "model_name" in backbone and (folder / "backbone").exists():
        backbone["model_name"] = str(folder / "backbone")
        backbone["load_weights"] = False
    # The archive has the trained weights.
    model.pop("initialize_from", None)
    decoder = model.get("decoder")
    if isinstance(decoder, dict) and isinstance(decoder.get("backbone"), dict) and (folder / "backbone").exists():
        kind = {key: value for key, value in decoder["backbone"].items() if key == "type"}
        decoder["backbone"] = {**kind, "model_name": str(folder / "backbone"), "load_weights": False}
    return config


def localise_reader(reader: dict[str, Any], folder: Path) -> None:
    """Points the reader's parts with a model name, and those that were trained, to the archive's files."""
    for name in READER_PARTS:
        block = reader.get(name)
        if not (folder / name).exists():
            continue
        if isinstance(block, str):
            reader[name] = {"type": block, "model_name": str(folder / name)}
        elif isinstance(block, dict) and (name == "tokenizer" or "model_name" in block):
            block["model_name"] = str(folder / name)
        elif block is None and name == "tokenizer" and "tokenizer" not in reader:
            # The reader's default tokenizer, trained or not, is what was saved.
            reader[name] = {"model_name": str(folder / name)}


def with_calibrated_policy(
    model_config: dict[str, Any], calibration: Calibration | None
) -> tuple[dict[str, Any], str | None]:
    """The model's config under the calibrated policy, and that calibration's data, unless another policy is given."""
    policy = as_policy_config(model_config.get("exit_policy"))
    if calibration is None or policy != as_policy_config(calibration.config):
        return model_config, None
    return {**model_config, "exit_policy": calibration.policy}, calibration.report.get("source")
