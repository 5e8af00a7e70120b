"""A tiny multi-exit model, objectives and callbacks for trainings in stages."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import beem_plugin.components  # noqa: F401
from beem_plugin.common.registry import Params
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives import Objective
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.train import train_model
from tests.training.configs import config, read_metrics

#: Three blocks, with dropout in them and before every exit.
MODEL: dict[str, Any] = {
    "type": "multi_exit_classifier",
    "encoder": {
        "backbone": {
            "config": {
                "model_type": "bert",
                "vocab_size": 20,
                "hidden_size": 8,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "intermediate_size": 8,
                "max_position_embeddings": 8,
                "hidden_dropout_prob": 0.3,
            }
        },
        # A shared pooler would belong to all exits at once.
        "share_pooler": False,
    },
}
BACKBONE, EXITS, LAST = r"^encoder\.backbone", r"^encoder\.exits\.[01]\.", r"^encoder\.exits\.2\."


def staged(stages: list[dict[str, Any]], **changes: Any) -> Params:
    """Stages of two epochs each."""
    top = {key: changes.pop(key) for key in list(changes) if "__" not in key and key not in ("trainer", "model")}
    base = config(**changes.pop("overrides", {}))
    trainer = {"type": "staged", "cuda_device": -1, "num_epochs": 2, "optimizer": {"type": "adam", "lr": 0.02}}
    trainer.update(changes.pop("trainer", {}), stages=copy.deepcopy(stages))
    model = copy.deepcopy(changes.pop("model", MODEL))
    return Params({**base, "model": model, "trainer": trainer, **top})


def weights(path: Path) -> dict[str, Tensor]:
    return torch.load(path, weights_only=True)


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """The names of the tensors that are not the same to the last bit."""
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def results(directory: Path, name: str = "metrics.json") -> dict[str, Any]:
    return {key: value for key, value in read_metrics(directory, name).items() if "training_duration" not in key}


def train_and_kill(params: Params, directory: Path, kill_at: str) -> None:
    """A run that ends by SIGKILL, in a copy of this process: to start one anew takes seconds."""
    process = os.fork()
    if process == 0:
        signal.alarm(120)
        os.environ["KILL_AT"] = kill_at
        try:
            train_model(params, directory)
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@Objective.register("exit_only", exist_ok=True)
class ExitOnly(Objective):
    """Cross-entropy of the exits from `first` to `last`, growing with the steps, which it notes. Has a parameter."""

    def __init__(self, first: int = 0, last: int = 3) -> None:
        super().__init__()
        self.first, self.last = first, last
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.steps: list[tuple[int, int]] = []
        self.factor = 1.0

    def start_step(self, step: int, total_steps: int) -> None:
        self.steps.append((step, total_steps))
        self.factor = 1 + step / total_steps

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        chosen = logits[:, self.first : self.last]
        target = label.clamp_min(0).unsqueeze(1).expand(chosen.shape[:2])
        factor = self.factor * self.scale.square().mean()
        return {"loss": functional.cross_entropy(chosen.flatten(0, 1), target.flatten()) * factor}


@Objective.register("distil_without_labels", exist_ok=True)
class DistilWithoutLabels(Objective):
    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        log_p = logits.log_softmax(-1)
        teacher = log_p[:, -1:].detach().expand_as(log_p[:, :-1])
        return {"loss": (teacher.exp() * (teacher - log_p[:, :-1])).sum(-1).mean()}


@Objective.register("learned_weights", exist_ok=True)
class LearnedWeights(Objective):
    """Two useful terms, and one that drives the last exit to the wrong label."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_weights = torch.nn.Parameter(torch.zeros(3), requires_grad=False)

    def terms(self, outputs: ExitOutputs, label: Tensor) -> Tensor:
        logits = outputs.logits
        values = [functional.cross_entropy(logits[:, exit], label) for exit in (0, 2)]
        return torch.stack([*values, functional.cross_entropy(logits[:, 2], 1 - label)])

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.loss_weights.softmax(0) * self.terms(outputs, label)).sum()}


@TrainerCallback.register("kill_in_stage", exist_ok=True)
class KillInStage(TrainerCallback):
    """Sends SIGKILL to its own process after the batch of the stage that `KILL_AT` names, "folder:epoch:batch"."""

    def on_batch(self, trainer: Any, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        epoch, batch_number = kwargs["epoch"], kwargs["batch_number"]
        if os.environ.get("KILL_AT") == f"{trainer.serialization_dir.name}:{epoch}:{batch_number}":
            os.kill(os.getpid(), signal.SIGKILL)


@TrainerCallback.register("inspect", exist_ok=True)
class Inspect(TrainerCallback):
    """Notes what it finds in training: who is in the optimizer, who has a gradient, who is in training mode."""

    seen: list[dict[str, Any]] = []

    def on_start(self, trainer: Any, is_primary: bool = True, **kwargs: Any) -> None:
        super().on_start(trainer, is_primary)
        names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
        groups = trainer.optimizer.param_groups
        type(self).seen.append(
            {
                "directory": self.serialization_dir,
                "optimizer": {names[id(parameter)] for group in groups for parameter in group["params"]},
                "state_at_start": len(trainer.optimizer.state),
                "objective": trainer.model.objective,
                "has_data": hasattr(trainer, "data"),
            }
        )

    def on_batch(self, trainer: Any, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        model = trainer.model
        found = self.seen[-1]
        found["gradients"] = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        found["training"] = {name for name, module in model.named_modules() if module.training}
