"""What a variant's exit policy does with a trained network: calibrated on one trace, judged on another."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch

from beem_plugin.archival import Archive, load_archive
from beem_plugin.archived_config import as_policy_config
from beem_plugin.calibration.curves import Curve, curve_of, has_scores
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.archive_files import ARCHIVE_NAME
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import write_json
from beem_plugin.common.metrics import MAIN_SCORE
from beem_plugin.common.registry import Params
from beem_plugin.comparison.ablation.trainings import TrainingRun, calibration_block, file_name, hash_of
from beem_plugin.comparison.result import ON_ITSELF, right_of
from beem_plugin.comparison.result import measure as measure_metrics
from beem_plugin.data.collate import ragged_parts
from beem_plugin.evaluation.trace import trace_archive
from beem_plugin.execution import Engine
from beem_plugin.execution.file_engine import file_engine
from beem_plugin.execution.metering.baselines import FullDepth
from beem_plugin.execution.metering.macs import NetworkMacs, count_macs
from beem_plugin.execution.metering.timing import measure
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.tasks.task import task_of
from beem_plugin.training.callbacks.calibrate_exits import held_out
from beem_plugin.training.metric_tracker import MetricTracker

_DURATION = re.compile(r"(?:(?P<days>\d+) days?, )?(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>[\d.]+)")


class TrainedRun:
    """A finished training: its metrics, and its traces, each made once and kept in `seed_K.traces`."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.config = run.config
        self.folder = run.serialization_dir.with_suffix(".traces")
        self.metrics: dict[str, Any] = json.loads((run.serialization_dir / "metrics.json").read_text("utf-8"))
        self._archive: Archive | None = None
        self._traces: dict[Path, ExitTrace] = {}

    @property
    def archive(self) -> Archive:
        if self._archive is None:
            device = (self.config.get("trainer") or {}).get("cuda_device")
            if device is None:
                device = 0 if torch.cuda.is_available() else -1
            self._archive = load_archive(self.run.serialization_dir / ARCHIVE_NAME, cuda_device=device)
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

    def trace_path(self, source: str, by_training_reader: bool = False) -> Path:
        # One reader serves both where the config has one.
        by_training_reader = by_training_reader and bool(self.config.get("validation_dataset_reader"))
        key = hash_of({"source": source, "training_reader": by_training_reader})[:6]
        return self.folder / f"{file_name(source)}-{key}.npz"

    def gmacs(self, source: str, exits: torch.Tensor) -> dict[str, float]:
        """`gmacs` a sample that exits at `exits`, and `full_gmacs`; empty where no engine runs the model."""
        path = self.folder / f"macs-{self.trace_path(source).stem}.json"
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
            return {}
        macs = NetworkMacs(*(torch.tensor(content[name], dtype=torch.float64) for name in ("layers", "heads")))
        lengths = torch.tensor(content["lengths"])
        spent, full = macs.spent(exits, lengths).mean(), macs.full(lengths).mean()
        return {"gmacs": float(spent) / 1e9, "full_gmacs": float(full) / 1e9}

    def measured_seconds(self, source: str, policy: ExitPolicy, config: dict[str, Any]) -> dict[str, float]:
        """`seconds` of the variant's engine for `source`, and `full_seconds` without exits: medians of 3."""
        archive, model = self.archive, cast(MultiExitModel, self.archive.model)
        if not task_of(model).uses_engines:
            return {}
        network = model.exit_network
        block = file_engine(config) or config["model"]["engine"]
        engines = [Engine.from_params({"type": block} if isinstance(block, str) else dict(block)) for _ in range(2)]
        pad = archive.validation_dataset_reader.tokenizer.pad_token_id
        samples = list(ragged_parts(archive.validation_dataset_reader.read(source), pad, 4096))
        cases = {
            "seconds": lambda: engines[0].run(network, policy, samples),
            "full_seconds": lambda: engines[1].run(FullDepth(network), Final(), samples),
        }
        return {name: found.median for name, found in measure(cases, 3, model.device, time_budget=60).items()}

    @property
    def seconds(self) -> float | None:
        """Seconds of training, interruptions left out."""
        found = _DURATION.fullmatch(str(self.metrics.get("training_duration")))
        if found is None:
            return None
        return timedelta(**{unit: float(value or 0) for unit, value in found.groupdict().items()}).total_seconds()

    @property
    def parameters(self) -> dict[str, int]:
        """`parameters`, all of the model's, and `exit_parameters`, those outside its backbone."""
        record = json.loads(self.run.record_path.read_text("utf-8"))
        if "parameters" not in record:
            model = self.archive.model
            total = sum(parameter.numel() for parameter in model.parameters())
            backbone = getattr(getattr(model, "encoder", None), "backbone", None)
            inside = sum(parameter.numel() for parameter in backbone.parameters()) if backbone is not None else 0
            record.update(parameters=total, exit_parameters=total - inside)
            write_json(self.run.record_path, record)
        return {name: record[name] for name in ("parameters", "exit_parameters")}

    @property
    def validation_score(self) -> float | None:
        """The training's validation metric at its best epoch; higher is better, whatever its sign."""
        trainer = self.config.get("trainer") or {}
        stages = trainer.get("stages") or [{}]
        wanted = trainer.get("validation_metric") or stages[-1].get("validation_metric") or "-loss"
        prefix = "best_validation_"
        known = {key.removeprefix(prefix): value for key, value in self.metrics.items() if key.startswith(prefix)}
        if not known or any(
            name.lstrip("+-") not in known for name in ([wanted] if isinstance(wanted, str) else wanted)
        ):
            return None
        return MetricTracker(wanted).combined_score(known)

    def release(self) -> None:
        """Forgets model and traces, which can be loaded again."""
        self._archive = None
        self._traces.clear()


def judged_source(config: dict[str, Any]) -> str:
    """What results are of: the test data if the config evaluates on them, or else the validation data."""
    if config.get("evaluate_on_test") and config.get("test_data_path"):
        return str(config["test_data_path"])
    if config.get("validation_data_path"):
        return str(config["validation_data_path"])
    raise ConfigurationError(
        "found neither test_data_path with evaluate_on_test nor validation_data_path: no data to judge on"
    )


def judge(
    config: dict[str, Any], trained: TrainedRun, source: str | None = None, with_seconds: bool = False
) -> dict[str, Any]:
    """
    The exit policy and calibration of a variant's config on a training of its, judged on `source` (default: the test
    data, or else the validation data); `with_seconds` also runs the policy on its engine.

    # Returns

    `dict[str, Any]`
        `metrics` under the policy, `final_metrics` of the last exit, `main_metric`, `depth` (layers of the network),
        `right` (which samples are right), the figures of `depth_summary`, the resolved `policy`, `judged_on` and
        `calibrated_on` (`None`: all numbers were given), `trace_file` (what it was calibrated on, or else judged on),
        `gmacs` and `seconds` where there are any, `warnings`, and the `curve` of a policy with thresholds, or `None`.
    """
    calibration = calibration_block(config)
    batch_size = int(calibration.get("batch_size", 64))
    source = source or judged_source(config)
    trace = trained.trace(source, batch_size)
    policy_config = as_policy_config((config.get("model") or {}).get("exit_policy")) or {"type": "final"}
    policy = ExitPolicy.from_params(Params(dict(policy_config), history="model.exit_policy."))
    policy.bind(trace.exit_layers, trace.num_labels)
    warnings: list[str] = []
    calibrated_on = None
    if not policy.is_calibrated:
        calibrated_on = calibration.get("data") or held_out(config.get("train_data_path"))
        data = trained.trace(calibrated_on, batch_size, by_training_reader=True)
        warnings = policy.calibrate(data).warnings
        if calibrated_on == source:
            warnings.append(ON_ITSELF)
    decisions = replay(policy, trace)
    warnings = [*warnings, *policy.out_of_reach()]
    return {
        "metrics": measured(trace, decisions.predictions),
        "final_metrics": measured(trace, trace.predictions[:, -1]),
        "main_metric": MAIN_SCORE[trace.metric],
        "samples": len(trace),
        "depth": trace.exit_layers[-1],
        "right": right_of(trace, decisions),
        **trace.depth(decisions.exits, policy),
        **trained.gmacs(source, decisions.exits),
        **(trained.measured_seconds(source, policy, config) if with_seconds else {}),
        "trace_file": str(trained.trace_path(calibrated_on or source, calibrated_on is not None)),
        "judged_on": source,
        "calibrated_on": calibrated_on,
        "policy": policy.to_config(),
        "warnings": warnings,
        "curve": curve(policy, trace),
    }


def measured(trace: ExitTrace, predictions: torch.Tensor) -> dict[str, float]:
    """The task's metrics, its accuracy first if it has one, over the samples with a label."""
    found = measure_metrics(trace, predictions)
    if not found:
        raise ConfigurationError(f"{trace.meta.get('source')}: no sample has a label, so nothing can be judged on them")
    return found


def curve(policy: ExitPolicy, trace: ExitTrace) -> Curve | None:
    """Accuracy and speed with one threshold for all exits swept; `None` for a rule without thresholds, or accuracy."""
    if trace.is_regression or not has_scores(policy) or not trace.has_labels or trace.num_exits < 2:
        return None
    return curve_of(policy, trace).thinned(200)
