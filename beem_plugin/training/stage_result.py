"""What a finished stage leaves for the stages after it, and for a run that is recovered."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.checkpointer import load_torch, save_torch
from beem_plugin.training.random_state import get_random_state, set_random_state

MARKER = "stage_finished.th"


@dataclass
class StageResult:
    """
    # Parameters

    name : `str`
        The stage's.
    best_epoch : `int | None`
    best_metrics : `dict[str, float]`
        Validation metrics of that epoch; empty without validation data.
    seconds : `float`
        How long the stage took.
    trainable_parameters, frozen_parameters : `int`
    metrics : `dict[str, Any]`, optional (default = `{}`)
        All of the stage's metrics, with what callbacks added. Not kept for a recovery.
    """

    name: str
    best_epoch: int | None
    best_metrics: dict[str, float]
    seconds: float
    trainable_parameters: int
    frozen_parameters: int
    metrics: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """For metrics.json: every name starts with that of the stage."""
        values: dict[str, Any] = {
            "best_epoch": self.best_epoch,
            "training_duration": str(datetime.timedelta(seconds=self.seconds)),
            "trainable_parameters": self.trainable_parameters,
            **{f"best_validation_{name}": value for name, value in self.best_metrics.items()},
        }
        return {f"stage_{self.name}_{name}": value for name, value in values.items()}

    def save(self, directory: Path, accelerator: Accelerator) -> None:
        """Marks the stage as finished; the file appears whole or not at all. All processes must take part."""
        states = gather_object([get_random_state()])
        if accelerator.is_main_process:
            result = {name: value for name, value in asdict(self).items() if name != "metrics"}
            save_torch({"result": result, "random": states}, directory / MARKER)
        accelerator.wait_for_everyone()

    @classmethod
    def load(cls, directory: Path, accelerator: Accelerator) -> StageResult | None:
        """A finished stage's result, with the random generators set as they were after it; `None` if it is not."""
        path = directory / MARKER
        if not path.exists():
            return None
        state = load_torch(path)
        if len(state["random"]) != accelerator.num_processes:
            raise ConfigurationError(
                f"the stage in {directory} was trained by {len(state['random'])} process(es) and can only be recovered "
                f"by as many, found {accelerator.num_processes}"
            )
        set_random_state(state["random"][accelerator.process_index])
        return cls(**state["result"])
