"""
`model.tar.gz`: everything that prediction needs without a hub, and the calibration trace, so that another exit policy
can be calibrated on an archive without its data.

An archive holds `config.json`, `meta.json` (versions and digests), `vocabulary/`, `weights.safetensors`, `tokenizer/`,
`backbone/` (the backbone's config) and, once calibrated, `calibration/` with `policy.json` (the policy with all numbers
resolved), `report.json` and `trace.npz`. Loading unpickles nothing and runs no code of the archive.
"""

import logging
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from beem_plugin.archived_config import READER_PARTS, localise, with_calibrated_policy
from beem_plugin.calibration.stored_calibration import Calibration
from beem_plugin.common import ranks
from beem_plugin.common.archive_files import (
    ARCHIVE_NAME,
    BEST_WEIGHTS,
    CONFIG_NAME,
    META_NAME,
    PARTS,
    WEIGHTS_NAME,
    find_weights,
    opened_archive,
    package_version,
    read_meta,
    save_state,
    verify_digests,
    write_archive,
)
from beem_plugin.common.errors import BeemError, DataError
from beem_plugin.common.files import scratch_folder, write_errors_named, write_json
from beem_plugin.common.params import apply_overrides, check_numbers
from beem_plugin.common.plugins import defer_import
from beem_plugin.common.registry import Params
from beem_plugin.common.strict_json import read_json_object
from beem_plugin.common.transfer import checked_device
from beem_plugin.data import DatasetReader
from beem_plugin.data.hub import archive_path
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import Model
from beem_plugin.models.saved_weights import load_weights

logger = logging.getLogger(__name__)


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
        The stored calibration; an overridden policy may have been calibrated on its trace since.
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
    """Writes tokenizer and backbone config to the serialization directory, from where they are archived."""
    for name in READER_PARTS:
        part = getattr(dataset_reader, name, None)
        if part is not None:
            with write_errors_named(serialization_dir / name):
                part.save(serialization_dir / name)
    network = getattr(model, "encoder", None) or getattr(model, "decoder", None)
    backbone = getattr(network, "backbone", None)
    if backbone is not None:
        backbone.save_config(serialization_dir / "backbone")


def archive_model(serialization_dir: Path, include_in_archive: list[str] | None = None) -> Path:
    """Packs a serialization directory, and files below it that match `include_in_archive`; returns the path."""
    best = serialization_dir / BEST_WEIGHTS
    if not best.exists():
        raise DataError(f"{serialization_dir}: no {BEST_WEIGHTS} to archive; no epoch has finished there")
    with scratch_folder() as folder:
        weights = folder / WEIGHTS_NAME
        save_state(torch.load(best, map_location="cpu", weights_only=True), weights)
        members: dict[str, Path] = {WEIGHTS_NAME: weights}
        for name in (CONFIG_NAME, META_NAME, *PARTS):
            if (serialization_dir / name).exists():
                members[name] = serialization_dir / name
        for pattern in include_in_archive or []:
            for path in sorted(serialization_dir.glob(pattern)):
                members[str(path.relative_to(serialization_dir))] = path
        return write_archive(members, serialization_dir / ARCHIVE_NAME)


def save_archive(archive: Archive, folder: Path) -> None:
    """Writes the files of an archive to a folder, which `load_archive` reads; parts of an earlier one are replaced."""
    for name in PARTS:
        shutil.rmtree(folder / name, ignore_errors=True)
    archive.model.vocab.save_to_files(folder / "vocabulary")
    save_resources(folder, archive.model, archive.dataset_reader)
    if archive.calibration is not None:
        archive.calibration.save(folder / "calibration")
    save_state(archive.model.state_dict(), folder / WEIGHTS_NAME)
    write_json(folder / CONFIG_NAME, archive.config.as_dict(quiet=True))
    meta = {"version": package_version(), "transformers": transformers.__version__}
    write_json(folder / META_NAME, {key: value for key, value in archive.meta.items() if key != "digests"} | meta)


def load_archive(
    archive_file: str | Path,
    cuda_device: int = -1,
    overrides: str | dict[str, Any] = "",
    weights_file: str | Path | None = None,
) -> Archive:
    """
    Builds what an archive holds. The exit policy is the calibrated one; if `overrides` change it, the new one is
    calibrated on the archive's trace where it has open numbers. Components of the package are imported when needed.

    # Parameters

    archive_file : `str | Path`
        A `model.tar.gz`, a serialization directory, or `owner/name` in the hub.
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
    defer_import("beem_plugin.components")
    archive_file = archive_path(archive_file)
    with opened_archive(archive_file) as folder:
        config = apply_overrides(read_json_object(folder / CONFIG_NAME, CONFIG_NAME), overrides)
        check_numbers(config, f"{CONFIG_NAME}: ")
        meta = read_meta(folder)
        if archive_file.is_file():
            verify_digests(folder, meta, WEIGHTS_NAME if weights_file else None)
        localised = localise(config, folder)
        with damage_named(archive_file, "dataset_reader (config.json, tokenizer)"):
            reader = DatasetReader.from_params(Params(localised["dataset_reader"], history="dataset_reader."))
            validation = localised.get("validation_dataset_reader")
            validation_reader = DatasetReader.from_params(Params(validation)) if validation else reader
        vocab = Vocabulary.from_files(folder / "vocabulary")
        with damage_named(archive_file, "calibration"):
            calibration = Calibration.load(folder / "calibration")
        tokenizer = getattr(reader, "tokenizer", None)
        with damage_named(archive_file, "model (config.json, backbone/config.json, calibration/policy.json)"):
            model_config, calibrated_on = with_calibrated_policy(localised["model"], calibration)
            model = Model.from_params(
                Params(model_config, history="model."),
                vocab=vocab,
                metric=reader.metric,
                is_regression=reader.is_regression,
                tokenizer=tokenizer,
            )
            model.check_tokenizer(tokenizer)
        # The origin of other weights is unknown.
        load_weights(model, find_weights(folder, weights_file), None if weights_file else meta.get("transformers"))
        calibrated_on = calibrate_if_open(model, calibration) or calibrated_on
    for either in (reader, validation_reader):
        either.limit_length(model.max_tokens)
        if hasattr(either, "labels"):  # a reader of a user's own may have none
            either.labels.known = vocab.labels or None
    model = model.eval().to(checked_device("--cuda-device", cuda_device))
    return Archive(model, Params(config), reader, validation_reader, meta, calibration, calibrated_on)


def archive_of(args: Namespace) -> Archive:
    """The archive that a command's arguments name, on the GPU of this process."""
    return load_archive(args.archive_file, ranks.device_of(args.cuda_device), args.overrides, args.weights_file)


@contextmanager
def damage_named(archive_file: str | Path, part: str) -> Iterator[None]:
    """
    A damaged or hostile file can fail anywhere in the libraries that read it: any such error becomes a `DataError` that
    names the archive and its part. `ALLENNLP_DEBUG=1` shows where it comes from.
    """
    try:
        yield
    except (BeemError, MemoryError, OSError):
        raise
    except Exception as error:
        what = " ".join(str(error).split())[:200]
        raise DataError(f"{archive_file}: {part}: cannot be built: {type(error).__name__}: {what}") from error


def calibrate_if_open(model: Model, calibration: Calibration | None) -> str | None:
    """Calibrates a policy with open numbers on the archive's trace, if it has one; returns the trace's source."""
    policy = getattr(model, "exit_policy", None)
    if not isinstance(policy, ExitPolicy) or policy.is_calibrated or calibration is None or calibration.trace is None:
        return None
    report = policy.calibrate(calibration.trace)
    logger.info("calibrated %s on the archive's trace (%s)", type(policy).__name__, report.source)
    for warning in report.warnings:
        logger.warning("calibration: %s", warning)
    return report.source


def with_calibration(archive_file: str | Path, output: str | Path, calibration: Calibration) -> Path:
    """Writes a copy of an archive under another calibration, whose policy its config names, and returns its path."""
    found = archive_path(archive_file)
    packed = found / ARCHIVE_NAME  # of a training run
    with opened_archive(packed if packed.is_file() else found) as folder, scratch_folder() as changed:
        config = read_json_object(folder / CONFIG_NAME, CONFIG_NAME)
        if not isinstance(config.get("model"), dict):
            raise DataError(f"{CONFIG_NAME}: model: missing, allowed: a block {{...}}")
        config["model"]["exit_policy"] = calibration.config
        write_json(changed / CONFIG_NAME, config)
        calibration.save(changed / "calibration")
        members = {path.name: path for path in sorted(folder.iterdir()) if path.name != "calibration"}
        if WEIGHTS_NAME not in members:
            raise DataError(f"{archive_file}: found no {WEIGHTS_NAME}, allowed: an archive, or a run that has ended")
        verify_digests(folder, read_meta(folder))
        members[CONFIG_NAME] = changed / CONFIG_NAME
        members["calibration"] = changed / "calibration"
        return write_archive(members, Path(output))
