"""Runs in Weights & Biases and MLflow."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beem_plugin.common.archive_files import CONFIG_NAME
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.common.strict_json import read_json_object
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.callbacks.log_writer import LogWriter, numbers
from beem_plugin.training.trainer import RunningTrainer

FINAL = ("best_", "calibration_", "test_")
_PARAMS_A_CALL, _LONGEST_PARAM = 100, 250
"""Limits of `mlflow.log_params`."""


class Tracker(LogWriter):
    """
    A run of a tracking service, started with the training, whose config are its parameters, and continued by
    `--recover`. Its steps are optimizer steps. At the end it gets the best metrics, and what callbacks before this one
    have added, such as the calibration's.

    # Parameters

    package : `str`
    options : `dict`
        For the function that starts a run.
    """

    def __init__(
        self, serialization_dir: str | Path, interval: int, learning_rate: bool, package: str, options: dict[str, Any]
    ) -> None:
        super().__init__(serialization_dir, interval, learning_rate)
        try:
            self.service: Any = importlib.import_module(package)
        except ImportError as error:
            raise ConfigurationError(
                f'trainer.callbacks: "{package}" needs the package {package}: pip install {package}'
            ) from error
        self.options = options
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

    def __init__(
        self,
        serialization_dir: str | Path,
        summary_interval: int = 100,
        should_log_learning_rate: bool = True,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        name: str | None = None,
        notes: str | None = None,
        tags: list[str] | None = None,
        watch_model: bool = False,
        files_to_save: list[str] | None = None,
        wandb_kwargs: dict | None = None,
    ) -> None:
        given = {"project": project, "entity": entity, "group": group, "name": name, "notes": notes, "tags": tags}
        given |= wandb_kwargs or {}
        super().__init__(serialization_dir, summary_interval, should_log_learning_rate, "wandb", given)
        self.watch_model = watch_model
        self.files_to_save = ["config.json", "out.log"] if files_to_save is None else files_to_save

    def start(self, config: dict[str, Any]) -> tuple[str, Callable[..., Any], Callable[[], Any]]:
        folder = self.serialization_dir.absolute()
        run = self.service.init(dir=str(folder), config=config, id=self.run_id, resume="allow", **self.options)
        for name in self.files_to_save:
            run.save(str(folder / name), base_path=str(folder))
        if self.watch_model and self.trainer is not None:
            run.watch(self.trainer.model)
        return run.id, run.log, run.finish


@TrainerCallback.register("mlflow")
class MLflowCallback(Tracker):
    """
    Logs to MLflow. Needs the package `mlflow`; `MLFLOW_TRACKING_URI` in the environment names the server or folder.

    Registered as a `TrainerCallback` with name "mlflow". Further keys are those of `LogWriter`.

    # Parameters

    experiment_name, run_name : `str`, optional
    tags : `dict[str, str]`, optional
    """

    def __init__(
        self,
        serialization_dir: str | Path,
        summary_interval: int = 100,
        should_log_learning_rate: bool = True,
        experiment_name: str | None = None,
        run_name: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        given = {"run_name": run_name, "tags": tags}
        super().__init__(serialization_dir, summary_interval, should_log_learning_rate, "mlflow", given)
        self.experiment_name = experiment_name

    def start(self, config: dict[str, Any]) -> tuple[str, Callable[..., Any], Callable[[], Any]]:
        if self.experiment_name is not None:
            self.service.set_experiment(self.experiment_name)
        run_id = self.service.start_run(run_id=self.run_id, **self.options).info.run_id
        items = [(key, str(value)[:_LONGEST_PARAM]) for key, value in Params(config).as_flat_dict().items()]
        for first in range(0, len(items) * (self.run_id is None), _PARAMS_A_CALL):
            self.service.log_params(dict(items[first : first + _PARAMS_A_CALL]))
        return run_id, self.service.log_metrics, self.service.end_run
