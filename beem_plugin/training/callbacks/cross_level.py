"""Learns the weights of an objective's terms on a held-out share of the training data."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.data.data_loader import DataLoader
from beem_plugin.models.model import evaluating
from beem_plugin.training import cross_level
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.trainer import RunningTrainer

logger = logging.getLogger(__name__)


@TrainerCallback.register("cross_level")
@dataclass(eq=False)
class CrossLevel(TrainerCallback):
    """
    Two levels of training at once, as in LeeBERT: the model is trained with the loss

        sum_k a_k l_k,    a = softmax(objective.loss_weights),

    on one share of the training data, and after every step the weights get a step that lowers the loss on the other
    share (`beem_plugin.training.cross_level`). LeeBERT's paper does not give parameterisation, rates and shares.

    The objective must have `loss_weights`, a parameter `(terms,)` without gradient, which excludes it from the
    trainer's optimizer, and `terms(outputs, label)`, the `(terms,)` losses as means over the batch. The loss on the
    held-out share is its `held_out_loss(outputs, label)`, if defined, or the mean of the exits' cross-entropies.
    Neither may depend on `loss_weights`. All of this runs without dropout.

    Adds `cross_level_weights`, the final a, to the metrics.

    Registered as a `TrainerCallback` with name "cross_level".

    # Parameters

    share : `float`, optional (default = `0.2`)
        Share of the training data on which the weights are learned.
    train_on_all : `bool`, optional (default = `False`)
        Whether the model is trained on that share too; the weights are then learned on data that it fitted.
    learning_rate : `float`, optional (default = `0.01`)
        Of Adam on `loss_weights`.
    look_ahead : `bool`, optional (default = `False`)
        Whether the held-out gradient is taken after a further step of plain gradient descent, which costs one more
        gradient.
    interval : `int`, optional (default = `1`)
        Optimizer steps between two updates of the weights.
    seed : `int`, optional (default = `13370`)
        Selects the held-out rows.
    """

    serialization_dir: Path
    share: float = 0.2
    train_on_all: bool = False
    learning_rate: float = 0.01
    look_ahead: bool = False
    interval: int = 1
    seed: int = 13370

    def __post_init__(self) -> None:
        super().__init__(self.serialization_dir)
        check_number("share", self.share, high=1, open_low=True, open_high=True)
        check_number("interval", self.interval, low=1)
        self._held_out: Iterator[tuple[dict[str, Tensor], float]] | None = None
        self._held_out_loader: DataLoader | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._optimizer_state: dict[str, Any] | None = None

    def training_data(self, data_loader: Any) -> Any:
        rows = len(data_loader.instances)
        held_out = round(self.share * rows)
        if not 0 < held_out < rows:
            raise ConfigurationError(f"cross_level.share: found {self.share}, which is {held_out} of {rows} samples")
        order = np.random.default_rng(self.seed).permutation(rows)
        self._held_out_loader = data_loader.subset(sorted(order[:held_out].tolist()))
        return data_loader if self.train_on_all else data_loader.subset(sorted(order[held_out:].tolist()))

    def on_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        super().on_start(trainer)
        objective = self._objective(trainer)
        trained = {id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]}
        if id(objective.loss_weights) in trained:
            raise ConfigurationError(
                "cross_level: the optimizer trains objective.loss_weights as well, which would prefer the terms that "
                'are small anyway; allowed: no_grad: ["objective.loss_weights"]'
            )
        if trainer.accelerator.mixed_precision != "no":
            raise ConfigurationError(
                f"trainer.mixed_precision: found {trainer.accelerator.mixed_precision!r}, allowed with cross_level: "
                '"no", since small differences of losses need float32'
            )
        self._optimizer = torch.optim.Adam([objective.loss_weights], lr=self.learning_rate)
        if self._optimizer_state is not None:
            self._optimizer.load_state_dict(self._optimizer_state)

    def on_batch(self, trainer: RunningTrainer, batch_inputs: list[dict[str, Tensor]], **kwargs: Any) -> None:
        update, rest = divmod(trainer.steps_completed - 1, self.interval)
        if rest:
            return
        assert self._optimizer is not None
        accelerator, model = trainer.accelerator, trainer.model
        objective = self._objective(trainer)
        weights = objective.loss_weights.detach().softmax(0)
        if self._held_out is None:
            place = accelerator.process_index, accelerator.num_processes
            self._held_out = cross_level.held_out_batches(self._held_out_loader, *place, update)
        held_out_batch, held_out_share = send_to_device(next(self._held_out), accelerator.device)
        shares = [cross_level.count_of(batch) / sum(map(cross_level.count_of, batch_inputs)) for batch in batch_inputs]

        def mean_of(name: str, weights: Tensor | None = None) -> Tensor:
            found = (cross_level.measured(model, batch, objective.terms, weights)[name] for batch in batch_inputs)
            return torch.stack([value * share for value, share in zip(found, shares)]).sum(0)

        def held_out_loss() -> Tensor:
            loss = getattr(objective, "held_out_loss", cross_level.mean_cross_entropy)
            found = cross_level.measured(model, held_out_batch, lambda *outputs: loss(*outputs).reshape(1))
            return found["loss"] * held_out_share

        with evaluating(model):
            gradient = cross_level.term_weight_gradient(
                [parameter for parameter in model.parameters() if parameter.requires_grad],
                lambda: mean_of("terms"),
                held_out_loss,
                trainer.optimizer.param_groups[0]["lr"],
                (lambda: mean_of("loss", weights)) if self.look_ahead else None,
                lambda value: accelerator.reduce(value, "mean"),
            )
        objective.loss_weights.grad = cross_level.through_softmax(gradient, weights)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def on_epoch(self, trainer: RunningTrainer, epoch: int, is_primary: bool = True, **kwargs: Any) -> None:
        if is_primary:
            weights = ", ".join(f"{value:.4f}" for value in self._weights(trainer))
            logger.info("epoch %d: weights of the objective's terms: %s", epoch, weights)

    def on_end(self, trainer: RunningTrainer, metrics: dict[str, Any], **kwargs: Any) -> None:
        metrics["cross_level_weights"] = self._weights(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer and self._optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizer_state = state_dict["optimizer"]

    def _weights(self, trainer: RunningTrainer) -> list[float]:
        return self._objective(trainer).loss_weights.detach().softmax(0).tolist()

    def _objective(self, trainer: RunningTrainer) -> Any:
        objective = getattr(trainer.model, "objective", None)
        if not isinstance(getattr(objective, "loss_weights", None), torch.nn.Parameter) or not hasattr(
            objective, "terms"
        ):
            raise ConfigurationError(
                f"cross_level: found the objective {type(objective).__name__}, allowed: one with learned weights "
                "(`loss_weights` and `terms`)"
            )
        return objective
