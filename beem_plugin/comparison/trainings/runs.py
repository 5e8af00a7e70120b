"""One training with one seed: its folder, and whether it is done."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.common.archive_files import ARCHIVE_NAME, CONFIG_NAME
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.params import diff_configs
from beem_plugin.comparison.plain_networks import distilled_config
from beem_plugin.comparison.trainings.variants import Variant

SEEDS = {"random_seed": 13370, "numpy_seed": 1337, "pytorch_seed": 133}


@dataclass
class Training:
    """
    What some variants share: everything but exit policy, calibration and engine. `key` is a hash of the config;
    `directory`, `NAME-KEY`, is named after the first variant. A distilled config names its `teacher` by its key.
    """

    key: str
    directory: Path
    config: dict[str, Any]
    variants: list[Variant] = field(default_factory=list)
    teacher: Training | None = None


@dataclass(frozen=True)
class TrainingRun:
    """
    A training with one seed, from 1. Beside its `seed_K` lie `seed_K.log` and `seed_K.json`, which is there once it has
    ended well: an interrupted run has an archive, too.
    """

    training: Training
    seed: int

    @property
    def needs(self) -> TrainingRun | None:
        """The teacher's run with the same seed."""
        return None if self.training.teacher is None else TrainingRun(self.training.teacher, self.seed)

    @property
    def config(self) -> dict[str, Any]:
        found = seeded(self.training.config, self.seed)
        return found if self.needs is None else distilled_config(found, str(self.needs.archive_path))

    @property
    def serialization_dir(self) -> Path:
        return self.training.directory / f"seed_{self.seed}"

    @property
    def archive_path(self) -> Path:
        return self.serialization_dir / ARCHIVE_NAME

    @property
    def record_path(self) -> Path:
        return self.serialization_dir.with_suffix(".json")

    @property
    def record(self) -> dict[str, Any]:
        """`wall_seconds` of a run that has ended well, and what else was found out about it."""
        return dict(json.loads(self.record_path.read_text("utf-8")))

    @property
    def log_path(self) -> Path:
        return self.serialization_dir.with_suffix(".log")

    def __str__(self) -> str:
        return f"{self.training.directory.name}, seed {self.seed}"

    @property
    def progress(self) -> str:
        """`base-1a2b, seed 1: 2 of 5 epochs`."""
        epochs = len(list(self.serialization_dir.glob("**/metrics_epoch_*.json")))
        return f"{self}: {epochs} of {epochs_of(self.config)} epochs"

    @property
    def is_begun(self) -> bool:
        return (self.serialization_dir / CONFIG_NAME).is_file()

    @property
    def is_finished(self) -> bool:
        return self.record_path.is_file() and self.archive_path.is_file()

    def check_config(self) -> None:
        """Raises a `ConfigurationError` that names the keys if the run in the directory had another config."""
        if self.is_begun:
            before = json.loads((self.serialization_dir / CONFIG_NAME).read_text("utf-8"))
            check_same(f"the training in {self.serialization_dir}", before, self.config)


def epochs_of(config: dict[str, Any]) -> int:
    """Epochs of a training, those of all its stages together."""
    trainer = config.get("trainer") or {}
    own = trainer.get("num_epochs") or 20
    return sum(stage.get("num_epochs") or own for stage in trainer.get("stages") or [{}])


def seeded(config: dict[str, Any], seed: int) -> dict[str, Any]:
    """Seed 1 is the config's own, or AllenNLP's; each further one adds 1 to all three."""
    own = {name: default if config.get(name) is None else config[name] for name, default in SEEDS.items()}
    return {**config, **{name: value + seed - 1 for name, value in own.items()}}


def hash_of(content: dict[str, Any], digits: int = 10) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:digits]


def file_name(text: str) -> str:
    """`text` as a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_.-")[:60] or "variant"


def check_same(what: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    found = diff_configs(old, new)
    if found:
        listed = "; ".join(f"{key}: {before!r} -> {after!r}" for key, before, after in found)
        raise ConfigurationError(
            f"{what} was trained with another config: {listed}; give the variant another name, use another directory, "
            "or --force, which deletes all that is done"
        )
