"""
`model.tar.gz`: all that is needed to predict where no hub can be reached, and the calibration trace, so that another
exit policy can be calibrated on an archive without the network's data.

An archive holds `config.json`, `meta.json`, `vocabulary/`, `weights.safetensors`, `tokenizer/`, `backbone/` (the
backbone's config) and, once calibrated, `calibration/` with `policy.json` (the policy with every number resolved),
`report.json` and `trace.npz`. Nothing in it is unpickled.
"""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from beem_plugin.backbones.loading import shown
from beem_plugin.backbones.renamed_weights import renamed
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.archive_files import (
    ARCHIVE_NAME,
    BEST_WEIGHTS,
    CONFIG_NAME,
    WEIGHTS_NAME,
    find_weights,
    opened_archive,
    read_state,
    save_state,
    write_tar,
)
from beem_plugin.common.errors import ConfigurationError, DataError
from beem_plugin.common.files import write_json
from beem_plugin.common.params import apply_overrides, parse_overrides
from beem_plugin.common.registry import Params
from beem_plugin.data import DatasetReader
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import Model

__all__ = [
    "ARCHIVE_NAME",
    "BEST_WEIGHTS",
    "CONFIG_NAME",
    "META_NAME",
    "WEIGHTS_NAME",
    "Archive",
    "Calibration",
    "archive_model",
    "calibrate_if_open",
    "device_of",
    "find_weights",
    "load_archive",
    "load_weights",
    "opened_archive",
    "package_version",
    "read_meta",
    "read_state",
    "save_resources",
    "save_state",
    "with_calibration",
    "write_tar",
]

logger = logging.getLogger(__name__)

META_NAME = "meta.json"
READER_PARTS = ("tokenizer", "image_processor")
"""What a dataset reader saves beside the model, and reads back from there by `model_name`."""
PARTS = ("vocabulary", *READER_PARTS, "backbone", "calibration")


@dataclass
class Calibration:
    """
    # Parameters

    policy : `dict[str, Any]`
        The calibrated policy as a config.
    config : `dict[str, Any]`
        The policy as the config had it before calibration.
    report : `dict[str, Any]`
        The `CalibrationReport`.
    trace : `ExitTrace`, optional
        What the exits said on the calibration data.
    """

    policy: dict[str, Any]
    config: dict[str, Any]
    report: dict[str, Any]
    trace: ExitTrace | None

    def save(self, folder: Path) -> None:
        """Writes `policy.json`, `report.json` and `trace.npz` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.trace is not None:
            self.trace.save(folder / "trace.npz")
        write_json(folder / "report.json", {**self.report, "config": self.config})
        write_json(folder / "policy.json", self.policy)

    @classmethod
    def load(cls, folder: Path) -> Calibration | None:
        """`None` if nothing was calibrated."""
        if not (folder / "policy.json").exists():
            return None
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        config = report.pop("config", {})
        trace = ExitTrace.load(folder / "trace.npz") if (folder / "trace.npz").exists() else None
        return cls(json.loads((folder / "policy.json").read_text(encoding="utf-8")), config, report, trace)


class Archive(NamedTuple):
    """
    # Parameters

    model : `Model`
        In evaluation mode, its exit policy calibrated if that was possible.
    config : `Params`
        After overrides.
    dataset_reader, validation_dataset_reader : `DatasetReader`
    meta : `dict[str, Any]`
    calibration : `Calibration`, optional
        What is stored in the archive; an overridden policy may have been calibrated anew on its trace.
    calibrated_on : `str`, optional
        Which data the model's policy was calibrated on; `None` if its numbers were given.
    """

    model: Model
    config: Params
    dataset_reader: DatasetReader
    validation_dataset_reader: DatasetReader
    meta: dict[str, Any]
    calibration: Calibration | None
    calibrated_on: str | None = None


def save_resources(serialization_dir: Path, model: Model, dataset_reader: DatasetReader) -> None:
    """Leaves tokenizer and backbone config in the serialization directory, from where they go into the archive."""
    for name in READER_PARTS:
        part = getattr(dataset_reader, name, None)
        if part is not None:
            part.save(serialization_dir / name)
    network = getattr(model, "encoder", None) or getattr(model, "decoder", None)
    backbone = getattr(network, "backbone", None)
    if backbone is not None:
        backbone.save_config(serialization_dir / "backbone")


def package_version() -> str:
    try:
        return version("beem_plugin")
    except PackageNotFoundError:
        return "unknown"


def archive_model(serialization_dir: Path, include_in_archive: list[str] | None = None) -> Path:
    """
    Packs a serialization directory: its `best.th` as safetensors, config, vocabulary, tokenizer, calibration.

    # Parameters

    serialization_dir : `Path`
    include_in_archive : `list[str]`, optional
        Globs below the directory of further files to pack.

    # Returns

    `Path`
        The archive's path. It is written under a temporary name first.
    """
    serialization_dir = Path(serialization_dir)
    best = serialization_dir / BEST_WEIGHTS
    if not best.exists():
        raise DataError(f"{serialization_dir}: no {BEST_WEIGHTS} to archive; no epoch has finished there")
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / WEIGHTS_NAME
        save_state(torch.load(best, map_location="cpu", weights_only=True), weights)
        members: dict[str, Path] = {WEIGHTS_NAME: weights}
        for name in (CONFIG_NAME, META_NAME, *PARTS):
            if (serialization_dir / name).exists():
                members[name] = serialization_dir / name
        for pattern in include_in_archive or []:
            for path in sorted(serialization_dir.glob(pattern)):
                members[str(path.relative_to(serialization_dir))] = path
        return write_tar(members, serialization_dir / ARCHIVE_NAME)


def load_archive(
    archive_file: str | Path,
    cuda_device: int = -1,
    overrides: str | dict[str, Any] = "",
    weights_file: str | Path | None = None,
) -> Archive:
    """
    Builds what an archive holds. The exit policy is the calibrated one; if `overrides` change it, the new one is
    calibrated on the archive's trace where it has open numbers.

    # Parameters

    archive_file : `str | Path`
        A `model.tar.gz` or a serialization directory.
    cuda_device : `int`, optional (default = `-1`)
        -1 for the CPU.
    overrides : `str | dict`, optional
        As `-o` on the command line.
    weights_file : `str | Path`, optional
        Weights to use instead of the archive's: `.safetensors`, or a `.th` file.

    # Raises

    `DataError`
        If the archive is missing, damaged, or its weights do not fit the model.
    `ConfigurationError`
        If its config, or an override, is wrong.
    """
    with opened_archive(archive_file) as folder:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        config = apply_overrides(config, parse_overrides(overrides) if isinstance(overrides, str) else overrides)
        meta = read_meta(folder)
        localised = localise(config, folder)
        reader = DatasetReader.from_params(Params(localised["dataset_reader"]))
        validation_params = localised.get("validation_dataset_reader")
        validation_reader = DatasetReader.from_params(Params(validation_params)) if validation_params else reader
        vocab = Vocabulary.from_files(folder / "vocabulary")
        calibration = Calibration.load(folder / "calibration")
        model_config = localised["model"]
        policy_config = as_policy_config(model_config.get("exit_policy"))
        calibrated_on = None
        if calibration is not None and policy_config == as_policy_config(calibration.config):
            calibrated_on = calibration.report.get("source")
            model_config["exit_policy"] = calibration.policy
        model = Model.from_params(
            Params(model_config, history="model."),
            vocab=vocab,
            metric=reader.metric,
            is_regression=reader.is_regression,
            tokenizer=getattr(reader, "tokenizer", None),
        )
        model.check_tokenizer(getattr(reader, "tokenizer", None))
        # Of weights from elsewhere nobody knows what wrote them.
        load_weights(model, find_weights(folder, weights_file), None if weights_file else meta.get("transformers"))
        calibrated_on = calibrate_if_open(model, calibration) or calibrated_on
    return Archive(
        model.eval().to(device_of(cuda_device)),
        Params(config),
        reader,
        validation_reader,
        meta,
        calibration,
        calibrated_on,
    )


def as_policy_config(policy: Any) -> Any:
    """A policy's name alone means that policy with its defaults."""
    return {"type": policy} if isinstance(policy, str) else policy


def calibrate_if_open(model: Model, calibration: Calibration | None) -> str | None:
    """Calibrates a policy with open numbers on the archive's trace, if there is one; returns which data it is of."""
    policy = getattr(model, "exit_policy", None)
    if not isinstance(policy, ExitPolicy) or policy.is_calibrated or calibration is None or calibration.trace is None:
        return None
    report = policy.calibrate(calibration.trace)
    logger.info("calibrated %s on the archive's trace (%s)", type(policy).__name__, report.source)
    for warning in report.warnings:
        logger.warning("calibration: %s", warning)
    return report.source


def localise(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`config` with hub names replaced by what the archive brings along, so that loading reaches no hub."""
    config = json.loads(json.dumps(config))
    for key in ("dataset_reader", "validation_dataset_reader"):
        reader = config.get(key)
        if isinstance(reader, dict):
            localise_reader(reader, folder)
    model = config.get("model")
    if not isinstance(model, dict) or "dataset_reader" not in config:
        raise ConfigurationError("the archive's config lacks `model` or `dataset_reader`")
    encoder = model.get("encoder")
    backbone = encoder.get("backbone") if isinstance(encoder, dict) else None
    if isinstance(backbone, dict) and "model_name" in backbone and (folder / "backbone").exists():
        backbone["model_name"] = str(folder / "backbone")
        backbone["load_weights"] = False
    # Whatever the weights started as, the archive has what they became.
    model.pop("initialize_from", None)
    decoder = model.get("decoder")
    if isinstance(decoder, dict) and isinstance(decoder.get("backbone"), dict) and (folder / "backbone").exists():
        kind = {key: value for key, value in decoder["backbone"].items() if key == "type"}
        decoder["backbone"] = {**kind, "model_name": str(folder / "backbone"), "load_weights": False}
    return config


def localise_reader(reader: dict[str, Any], folder: Path) -> None:
    """Points the reader's parts that have a name of their own, or were trained, to those in the archive."""
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


def read_meta(folder: Path) -> dict[str, Any]:
    path = folder / META_NAME
    meta = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if meta.get("version") not in (None, package_version()):
        logger.warning("the archive was made by version %s, this is %s", meta["version"], package_version())
    return meta


def load_weights(model: Model, path: Path, made_with: str | None = None) -> None:
    """
    Loads a state dict; a missing or unexpected tensor is an error that names it.

    # Parameters

    model : `Model`
    path : `Path`
        Written under any release of transformers: parameters that another one calls otherwise are found.
    made_with : `str`, optional (default = `None`)
        The release of transformers that the weights were written under, where that is known.
    """
    try:
        state = dict(read_state(path))
    except Exception as error:  # a file that is no checkpoint fails in the reader in any way
        kind = type(error).__name__
        raise DataError(
            f"{path}: not a weights file ({kind}); allowed: .safetensors, or .th with tensors alone"
        ) from None
    ours = model.state_dict()
    state = renamed(state, ours)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        found = differences(state, ours) or " ".join(str(error).split())
        raise DataError(
            f"{path}: the weights do not fit the model: {found} (written under transformers "
            f"{made_with or 'of an unknown version'}, this is {transformers.__version__})"
        ) from None


def differences(state: dict[str, torch.Tensor], model: dict[str, torch.Tensor]) -> str:
    """The names that only one of two state dicts has, and those of other shapes."""
    kinds = {
        "missing": [name for name in model if name not in state],
        "unexpected": [name for name in state if name not in model],
        "of another shape": [
            f"{name} {list(value.shape)} for {list(model[name].shape)}"
            for name, value in state.items()
            if name in model and value.shape != model[name].shape
        ],
    }
    return "; ".join(f"{kind}: {shown(names)}" for kind, names in kinds.items() if names)


def device_of(cuda_device: int) -> torch.device:
    if cuda_device < 0:
        return torch.device("cpu")
    if cuda_device >= torch.cuda.device_count():
        raise ConfigurationError(
            f"--cuda-device: found {cuda_device}, allowed: -1 (CPU)"
            + (f" to {torch.cuda.device_count() - 1}" if torch.cuda.device_count() else "; no GPU is visible")
        )
    return torch.device("cuda", cuda_device)


def with_calibration(archive_file: str | Path, output: str | Path, calibration: Calibration) -> Path:
    """
    A copy of an archive under another calibration; its config names the calibration's policy.

    # Returns

    `Path`
        The new archive.
    """
    with opened_archive(archive_file) as folder, tempfile.TemporaryDirectory() as changed:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        config["model"]["exit_policy"] = calibration.config
        write_json(Path(changed) / CONFIG_NAME, config)
        calibration.save(Path(changed) / "calibration")
        members = {path.name: path for path in sorted(folder.iterdir()) if path.name != "calibration"}
        if WEIGHTS_NAME not in members:
            raise DataError(f"{archive_file}: give the model.tar.gz, not the serialization directory")
        members[CONFIG_NAME] = Path(changed) / CONFIG_NAME
        members["calibration"] = Path(changed) / "calibration"
        return write_tar(members, Path(output))
