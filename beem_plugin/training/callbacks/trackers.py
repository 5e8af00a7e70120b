"""Curves in TensorBoard, and runs in Weights & Biases and MLflow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from beem_plugin.common.archive_files import CONFIG_NAME
from beem_plugin.common.registry import Params
from beem_plugin.common.strict_json import read_json_object
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.callbacks.log_writer import LogWriter, numbers
from beem_plugin.training.trainer import RunningTrainer

FINAL = ("best_", "calibration_", "test_")
_PARAMS_A_CALL, _LONGEST_PARAM = 100, 250
"""Limits of `mlflow.log_params`."""


@TrainerCallback.register("tensorboard")
class TensorBoardCallback(LogWriter):
    """
    Writes training and validation metrics, learning rates and the gradient norm to `log/train` and `log/validation`.

    Registered as a `TrainerCallback` with name "tensorboard". Needs the package `tensorboard`. The keys are those of
    `LogWriter`.
    """

    package, module = "tensorboard", "torch.utils.tensorboard"

    def on_start(self, trainer: RunningTrainer, is_primary: bool = True, **kwargs: Any) -> None:
        splits, log = ("train", "validation") if is_primary else (), self.serialization_dir / "log"
        self._writers = {split: self.service.SummaryWriter(str(log / split)) for split in splits}

    def write(self, split: str, values: dict[str, float], step: int, epoch: int | None) -> None:
        for name, value in values.items():
            self._writers[split].add_scalar(name, value, step if epoch is None else epoch)

    def write_histograms(self, values: dict[str, Tensor], step: int) -> None:
        for name, value in values.items():
            self._writers["train"].add_histogram(name, value, step)

    def on_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        for writer in self._writers.values():
            writer.close()


class Tracker(LogWriter):
    """
    A run of the tracking service `package`, continued by `--recover`. Its steps are optimizer steps; at the end it gets
    the best metrics, and what callbacks before this one have added.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.run_id: str | None = None

    def start(self, config: dict[str, Any]) -> tuple[str, Callable[..., Any], Callable[[], Any]]:
        """Starts the run, or continues `run_id`; returns its id, and functions that log metrics and end it."""
        raise NotImplementedError

    def on_start(self, trainer: RunningTrainer, is_primary: bool = True, **kwargs: Any) -> None:
        super().on_start(trainer)
        path = self.serialization_dir / CONFIG_NAME
        if is_primary:
            self.run_id, self.log, self.finish = self.start(read_json_object(path) if path.exists() else {})

    def write(self, split: str, values: dict[str, float], step: int, epoch: int | None) -> None:
        self.log({f"{split}/{name}": value for name, value in values.items()}, step=step)

    def on_end(self, trainer: RunningTrainer, metrics: dict[str, Any], is_primary: bool = True, **kwargs: Any) -> None:
        if is_primary:
            final = {name: value for name, value in metrics.items() if name.startswith(FINAL)}
            self.log(numbers(final), step=trainer.steps_completed)
            self.finish()

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.run_id = state_dict["run_id"]


@TrainerCallback.register("wandb")
@dataclass(eq=False)
class WandBCallback(Tracker):
    """
    Logs to Weights & Biases. Needs the package `wandb`, and `wandb login` or `WANDB_API_KEY` in the environment.

    Registered as a `TrainerCallback` with name "wandb". Further keys are those of `LogWriter`.

    # Parameters

    project, entity, group, name, notes : `str`, optional
        As of `wandb.init`.
    tags : `list[str]`, optional
    watch_model : `bool`, optional (default = `False`)
        Also logs histograms of gradients and weights, which costs time.
    files_to_save : `list[str]`, optional (default = `["config.json", "out.log"]`)
        Files of the serialization directory that are uploaded.
    wandb_kwargs : `dict`, optional
        Further arguments of `wandb.init`.
    """

    package = module = "wandb"
    project: str | None = None
    entity: str | None = None
    group: str | None = None
    name: str | None = None
    notes: str | None = None
    tags: list[str] | None = None
    watch_model: bool = False
    files_to_save: list[str] | None = None
    wandb_kwargs: dict | None = None

    def start(self, config: dict[str, Any]) -> tuple[str, Callable[..., Any], Callable[[], Any]]:
        folder = self.serialization_dir.absolute()
        given = {key: getattr(self, key) for key in ("project", "entity", "group", "name", "notes", "tags")}
        given |= {"dir": str(folder), "config": config, "id": self.run_id, "resume": "allow"}
        run = self.service.init(**given | (self.wandb_kwargs or {}))
        for name in ("config.json", "out.log") if self.files_to_save is None else self.files_to_save:
            run.save(str(folder / name), base_path=str(folder))
        if self.watch_model and self.trainer is not None:
            run.watch(self.trainer.model)
        return run.id, run.log, run.finish

    def write_histograms(self, values: dict[str, Tensor], step: int) -> None:
        self.log({f"train/{name}": self.service.Histogram(value.numpy()) for name, value in values.items()}, step=step)


@TrainerCallback.register("mlflow")
@dataclass(eq=False)
class MLflowCallback(Tracker):
    """
    Logs to MLflow. Needs the package `mlflow`; `MLFLOW_TRACKING_URI` in the environment names the server or folder.

    Registered as a `TrainerCallback` with name "mlflow". Further keys are those of `LogWriter`.

    # Parameters

    experiment_name, run_name : `str`, optional
    tags : `dict[str, str]`, optional
    """

    package = module = "mlflow"
    experiment_name: str | None = None
    run_name: str | None = None
    tags: dict[str, str] | None = None

    def start(self, config: dict[str, Any]) -> tuple[str, Callable[..., Any], Callable[[], Any]]:
        if self.experiment_name is not None:
            self.service.set_experiment(self.experiment_name)
        run = self.service.start_run(run_id=self.run_id, run_name=self.run_name, tags=self.tags)
        items = [(key, str(value)[:_LONGEST_PARAM]) for key, value in Params(config).as_flat_dict().items()]
        for first in range(0, len(items) * (self.run_id is None), _PARAMS_A_CALL):
            self.service.log_params(dict(items[first : first + _PARAMS_A_CALL]))
        return run.info.run_id, self.service.log_metrics, self.service.end_run
