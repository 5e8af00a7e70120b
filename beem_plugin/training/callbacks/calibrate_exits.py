"""Calibrates the exit policy at the end of training."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.stored_calibration import Calibration
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import METRICS
from beem_plugin.common.registry import Lazy, Params
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.data.instance import Instance
from beem_plugin.rendering.pages.calibration import exits_table
from beem_plugin.tasks.task import task_of
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.trainer import RunningTrainer, with_means

logger = logging.getLogger(__name__)

ADVICE = (
    "no sample exits early, so the speed-up is %.2fx; what helps: better exits (methods.recommended of "
    "beem/methods.libsonnet), more held-out data, or without new training another strategy: allennlp calibrate "
    "ARCHIVE --policy max_probability --speedup 1.5 --output-archive NEW.tar.gz"
)

FIT, HOLDOUT = "[fit]", "[holdout]"


@TrainerCallback.register("calibrate_exits")
@dataclass(eq=False)
class CalibrateExits(TrainerCallback):
    """
    At the end of training, with the best weights: traces the calibration data, fits the policy's open weights and
    thresholds on the trace, and writes policy, report and trace to `calibration/` of the serialization directory, which
    is part of the archive.

    Adds to metrics.json `calibration_*`, figures on the calibration data (`calibration_early_share` is the share of
    samples that exited before the last exit; at 0 a warning says so), and `best_validation_early_exit_*` and
    `test_early_exit_*`: the task's metrics, `layer_speedup` and `exit_histogram` of the calibrated policy on validation
    and test data, unless these are the calibration data.

    Registered as a `TrainerCallback` with name "calibrate_exits".

    # Parameters

    data : `str`, optional (default = the slice of the training data that `train_data_path` holds out)
        A source for the dataset reader: with `train_data_path` "train[fit]" the default is "train[holdout]".
        Calibration on the split that is reported makes its figures optimistic; reports name the split.
    parameters_data : `str`, optional (default = `data`)
        Another source for what a policy's score itself needs, such as the weights of an ensemble.
    batch_size : `int`, optional (default = `64`)
    keep_traces : `bool`, optional (default = `False`)
        Whether the traces of validation and test data are kept, in `traces/` of the serialization directory.
    """

    serialization_dir: Path
    data: str | None = None
    parameters_data: str | None = None
    batch_size: int = 64
    keep_traces: bool = False

    def __post_init__(self) -> None:
        super().__init__(self.serialization_dir)
        self.instances: Sequence[Instance] = []

    def check_model(self, model: Any) -> None:
        task_of(model).check_model(model)

    def on_start(self, trainer: RunningTrainer, is_primary: bool = True, **kwargs: Any) -> None:
        super().on_start(trainer)
        # Read before training, to find a wrong name early.
        is_apart = self.data is None  # parts of one source share no text
        self.data = self.data or held_out(trainer.data.paths["train"])
        if is_primary:
            self.instances = trainer.data.dataset_reader.read(self.data)
            if not self.instances:
                raise ConfigurationError(f"calibrate_exits.data: {self.data} holds no sample")
            if not is_apart:
                warn_of_overlap(self.instances, trainer.data.instances["train"], self.data)

    def on_end(self, trainer: RunningTrainer, metrics: dict[str, Any], **kwargs: Any) -> None:
        if not self.instances:
            return
        assert self.data is not None
        model, data = trainer.model, trainer.data
        trace = self.trace(trainer, self.instances, self.data)
        traces, source = [trace], self.parameters_data
        if source is not None and source != self.data:
            known = source == data.paths["train"]
            instances = data.instances["train"] if known else data.dataset_reader.read(source)
            traces.append(self.trace(trainer, instances, source))
        report = model.exit_policy.calibrate(*traces)
        Calibration(report.policy, data.policy_config, report.to_json(), trace).save(
            self.serialization_dir / "calibration"
        )
        own = {name: getattr(report, name) for name in ("source", "samples", "early_share", "warnings")}
        metrics.update({f"calibration_{name}": value for name, value in (own | figures(model, trace)).items()})
        exits_table(report.to_json()).print(stderr=True)
        for warning in report.warnings:
            logger.warning("calibration on %s: %s", self.data, warning)
        if model.exit_policy.leaves_early and not report.early_share:
            logger.warning(ADVICE, report.layer_speedup)
        found: dict[str, dict[str, Any]] = {}
        for name in (split for split, source in data.paths.items() if split != "train" and source != self.data):
            traced = self.trace(trainer, data.instances[name], data.paths[name])
            if self.keep_traces:
                traced.save(self.serialization_dir / "traces" / f"{name}.npz")
            found[name] = figures(model, traced)
        on_validation = found.pop("validation", {})
        metrics.update({f"best_validation_early_exit_{key}": value for key, value in on_validation.items()})
        metrics.update(with_means(found, "early_exit_"))

    def trace(self, trainer: RunningTrainer, instances: Sequence[Instance], source: str) -> ExitTrace:
        """The trace of `instances`."""
        model, data = trainer.model, trainer.data
        loader = Lazy(DataLoader, params=Params({"type": "bucket", "batch_size": self.batch_size})).construct(
            instances=instances,
            vocab=model.vocab,
            pad_token_id=data.pad_token_id,
            training=False,
            collator=data.dataset_reader.collator(model.vocab, data.pad_token_id),
        )
        ids = [str(instance.id) for instance in instances] if instances[0].id is not None else None
        return task_of(model).trace(model, loader, ids, source)


def held_out(train_data_path: str | None) -> str:
    """The slice of the training data that is not trained on."""
    if train_data_path and train_data_path.endswith(FIT):
        return train_data_path.removesuffix(FIT) + HOLDOUT
    base = train_data_path or "train"
    raise ConfigurationError(
        f"calibrate_exits.data: not given, and train_data_path {train_data_path!r} holds nothing out; allowed: train "
        f'on "{base}{FIT}", which leaves "{base}{HOLDOUT}" for calibration, or name other labelled data'
    )


def warn_of_overlap(calibration: Sequence[Instance], train: Sequence[Instance], source: str) -> None:
    """Exits are more confident on their training data, so that thresholds fitted there are too low."""

    def key(instance: Instance) -> int:
        return hash(repr(sorted((name, value) for name, value in instance.fields.items() if name != "id")))

    keys = [key(instance) for instance in calibration]
    seen = set(keys).intersection(map(key, train))
    shared = sum(one in seen for one in keys)
    if shared > 0.05 * len(calibration):
        logger.warning(
            "calibrate_exits: %d of the %d calibration samples in %s are training data as well; thresholds fitted on "
            "them will be too low",
            shared,
            len(calibration),
            source,
        )


def figures(model: Any, trace: ExitTrace) -> dict[str, Any]:
    """The task's metrics, layer speed-up and exit histogram of the model's policy on `trace`."""
    decisions = replay(model.exit_policy, trace)
    depth, known = trace.depth(decisions.exits, model.exit_policy), trace.known
    values: dict[str, Any] = {}
    if bool(known.any()):
        values.update(METRICS[trace.metric](trace.labels[known].numpy(), decisions.predictions[known].numpy()))
    return {**values, "layer_speedup": depth["layer_speedup"], "exit_histogram": depth["exit_histogram"]}
