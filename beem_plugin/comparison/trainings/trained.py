"""A finished training: its figures, its traces, and what is counted and measured of its network."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch

from beem_plugin.archival import Archive, load_archive
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.files import write_json
from beem_plugin.comparison.trainings.runs import TrainingRun, file_name, hash_of
from beem_plugin.comparison.trainings.variants import Variant, block
from beem_plugin.data.collate import ragged_parts
from beem_plugin.evaluation.trace import trace_archive
from beem_plugin.execution.engine import build_file_engine
from beem_plugin.execution.metering.baselines import FullDepth
from beem_plugin.execution.metering.macs import NetworkMacs, count_macs
from beem_plugin.execution.metering.timing import measure
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.tasks.task import task_of
from beem_plugin.training.metric_tracker import MetricTracker

_DURATION = re.compile(r"(?:(?P<days>\d+) days?, )?(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>[\d.]+)")
_BEST = "best_validation_"


class TrainedRun:
    """A finished training: its metrics, and its traces, each made once and kept in `seed_K.traces`."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.config = run.config
        self.folder = run.serialization_dir.with_suffix(".traces")
        self._archive: Archive | None = None
        self._traces: dict[Path, ExitTrace] = {}

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(json.loads((self.run.serialization_dir / "metrics.json").read_text("utf-8")))

    @property
    def archive(self) -> Archive:
        if self._archive is None:
            device = block(self.config, "trainer").get("cuda_device")
            if device is None:
                device = 0 if torch.cuda.is_available() else -1
            self._archive = load_archive(self.run.archive_path, cuda_device=device)
        return self._archive

    def trace(self, source: str, batch_size: int, by_training_reader: bool = False) -> ExitTrace:
        """The outputs of all exits on `source`, as the validation reader reads it, or the training data's reader."""
        path = self.trace_path(source, by_training_reader)
        if path not in self._traces:
            if not path.is_file():
                archive = self.archive
                if by_training_reader and self.config.get("validation_dataset_reader"):
                    archive = archive._replace(validation_dataset_reader=archive.dataset_reader)
                trace_archive(archive, source, batch_size).save(path)
            self._traces[path] = ExitTrace.load(path)
        return self._traces[path]

    def traces(self, variant: Variant) -> tuple[ExitTrace, ExitTrace]:
        """Of the data that a variant is fitted on, and of those that it is judged on."""
        return (
            self.trace(variant.calibration_source(), variant.batch_size, by_training_reader=True),
            self.trace(variant.judged_source(), variant.batch_size),
        )

    def trace_path(self, source: str, by_training_reader: bool = False) -> Path:
        # One reader serves both where the config has one.
        by_training_reader = by_training_reader and bool(self.config.get("validation_dataset_reader"))
        key = hash_of({"source": source, "training_reader": by_training_reader}, 6)
        return self.folder / f"{file_name(source)}-{key}.npz"

    def fitted_path(self, variant: Variant) -> Path:
        """The variant's policy with its fitted numbers, and the warnings of the fit."""
        sources = variant.fitted_sources()
        return self.folder / f"fitted-{hash_of({'policy': variant.policy, 'sources': sources})}.json"

    def macs_path(self, source: str) -> Path:
        """What `macs` keeps: the same file for all trainings of a network."""
        model = {key: value for key, value in self.config["model"].items() if key != "objective"}
        same = {key: self.config.get(key) for key in ("dataset_reader", "validation_dataset_reader", "train_data_path")}
        name = f"{file_name(source)}-{hash_of({**same, 'model': model, 'source': source})}.json"
        return self.run.training.directory.parent.parent / "macs" / name

    def macs(self, source: str) -> tuple[NetworkMacs, torch.Tensor] | None:
        """The network's multiply-accumulates, and the tokens of each sample; `None` of a model without an engine."""
        path = self.macs_path(source)
        if not path.is_file():
            network = self.archive.model.exit_network
            counted: dict[str, Any] = {}
            if task_of(self.archive.model).uses_engines and not network.tokens_leave:
                macs = count_macs(network)
                tokens = [len(instance) for instance in self.archive.validation_dataset_reader.read(source)]
                counted = {"layers": macs.layers.tolist(), "heads": macs.heads.tolist(), "lengths": tokens}
            write_json(path, counted)
        content = json.loads(path.read_text("utf-8"))
        if not content:
            return None
        coefficients = (torch.tensor(content[name], dtype=torch.float64) for name in ("layers", "heads"))
        return NetworkMacs(*coefficients), torch.tensor(content["lengths"])

    def gmacs(self, source: str, exits: torch.Tensor) -> dict[str, float]:
        """`gmacs` a sample that exits at `exits`, and `full_gmacs`; empty without an engine."""
        found = self.macs(source)
        if found is None:
            return {}
        macs, lengths = found
        spent, full = macs.spent(exits, lengths).mean(), macs.full(lengths).mean()
        return {"gmacs": float(spent) / 1e9, "full_gmacs": float(full) / 1e9}

    def measured_seconds(self, source: str, policy: ExitPolicy, config: dict[str, Any]) -> dict[str, float]:
        """`seconds` of the variant's engine for `source`, and `full_seconds` without exits: medians of 3."""
        archive, model = self.archive, cast(MultiExitModel, self.archive.model)
        if not task_of(model).uses_engines:
            return {}
        network = model.exit_network
        engines = build_file_engine(config), build_file_engine(config)
        pad = archive.validation_dataset_reader.tokenizer.pad_token_id
        samples = list(ragged_parts(archive.validation_dataset_reader.read(source), pad, 4096))
        cases = {
            "seconds": lambda: engines[0].run(network, policy, samples),
            "full_seconds": lambda: engines[1].run(FullDepth(network), Final(), samples),
        }
        return {name: found.median for name, found in measure(cases, 3, model.device, time_budget=60).items()}

    @property
    def figures(self) -> dict[str, Any]:
        """
        `training_seconds` without interruptions, `parameters`, those outside the backbone, and `validation_score`.
        """
        record = self.run.record
        if "parameters" not in record:
            model = self.archive.model
            backbone = getattr(getattr(model, "encoder", None), "backbone", None)
            total = sum(one.numel() for one in model.parameters())
            inside = 0 if backbone is None else sum(one.numel() for one in backbone.parameters())
            record |= {"parameters": total, "exit_parameters": total - inside}
            write_json(self.run.record_path, record)
        found = _DURATION.fullmatch(str(self.metrics.get("training_duration")))
        parts = {} if found is None else {unit: float(value or 0) for unit, value in found.groupdict().items()}
        return {
            "training_seconds": timedelta(**parts).total_seconds() if parts else None,
            **{name: record[name] for name in ("parameters", "exit_parameters")},
            "validation_score": score_of(self.config, self.metrics),
        }


def score_of(config: dict[str, Any], metrics: dict[str, Any]) -> float | None:
    """A training's validation metric at its best epoch; higher is better, whatever its sign."""
    trainer = block(config, "trainer")
    last = (trainer.get("stages") or [{}])[-1]
    wanted = trainer.get("validation_metric") or last.get("validation_metric") or "-loss"
    known = {key.removeprefix(_BEST): value for key, value in metrics.items() if key.startswith(_BEST)}
    names = [wanted] if isinstance(wanted, str) else wanted
    return MetricTracker(wanted).combined_score(known) if {name.lstrip("+-") for name in names} <= set(known) else None
