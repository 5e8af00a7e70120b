"""Learns the weights of an objective's terms on a held-out share of the training data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.row_subset import RowSubset
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.models.model import Model
from beem_plugin.objectives import Objective
from beem_plugin.training.batches import EpochPlan
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.cross_level import term_weight_gradient, through_softmax
from beem_plugin.training.metric_state import get_metric_state, set_metric_state

if TYPE_CHECKING:
    from beem_plugin.training.gradient_descent_trainer import GradientDescentTrainer

logger = logging.getLogger(__name__)


@TrainerCallback.register("cross_level")
class CrossLevel(TrainerCallback):
    """
    Two levels of training at once, as in LeeBERT: the model is trained with the loss

        sum_k a_k l_k,    a = softmax(objective.loss_weights),

    on one share of the training data, and after every step the weights are moved so that such a step lowers the loss on
    the other share (`beem_plugin.training.cross_level`). LeeBERT's paper leaves parameterisation, rates and shares
    open; these are ours.

    The objective must have `loss_weights`, a parameter `(terms,)` that needs no gradient, so that the trainer's
    optimizer leaves it alone, and `terms(outputs, label)`, the `(terms,)` losses as means over the batch. If it has
    `held_out_loss(outputs, label)`, that is the loss on the held-out share, otherwise the mean of the exits'
    cross-entropies. Neither may depend on `loss_weights`. All of this runs without dropout.

    Adds `cross_level_weights`, the final a, to the metrics.

    Registered as a `TrainerCallback` with name "cross_level".

    # Parameters

    serialization_dir : `str`
        Filled in.
    share : `float`, optional (default = `0.2`)
        How much of the training data the weights are learned on.
    train_on_all : `bool`, optional (default = `False`)
        Whether the model is trained on that share too, so that it loses no data. The weights then see what it fitted.
    learning_rate : `float`, optional (default = `0.01`)
        Of Adam on `loss_weights`.
    look_ahead : `bool`, optional (default = `False`)
        Whether the held-out gradient is taken after a step of plain gradient descent from where the model is. The model
        has just made a step of its own, so that this seldom pays for another gradient.
    interval : `int`, optional (default = `1`)
        Optimizer steps between two updates of the weights.
    seed : `int`, optional (default = `13370`)
        Which rows are held out.
    """

    def __init__(
        self,
        serialization_dir: str | Path,
        share: float = 0.2,
        train_on_all: bool = False,
        learning_rate: float = 0.01,
        look_ahead: bool = False,
        interval: int = 1,
        seed: int = 13370,
    ) -> None:
        super().__init__(serialization_dir)
        if not 0 < share < 1:
            raise ConfigurationError(f"share: found {share}, allowed: above 0 and below 1")
        if interval < 1:
            raise ConfigurationError(f"interval: found {interval}, allowed: 1 or more")
        self.share = share
        self.train_on_all = train_on_all
        self.learning_rate = learning_rate
        self.look_ahead = look_ahead
        self.interval = interval
        self.seed = seed
        self.held_out: HeldOutBatches | None = None
        self._held_out_loader: RowSubset | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._optimizer_state: dict[str, Any] | None = None

    def training_data(self, data_loader: Any) -> Any:
        rows = len(data_loader.instances)
        held_out = round(self.share * rows)
        if not 0 < held_out < rows:
            raise ConfigurationError(f"cross_level.share: found {self.share}, which is {held_out} of {rows} samples")
        order = np.random.default_rng(self.seed).permutation(rows)
        self._held_out_loader = RowSubset(data_loader, sorted(order[:held_out].tolist()))
        return data_loader if self.train_on_all else RowSubset(data_loader, sorted(order[held_out:].tolist()))

    def on_start(self, trainer: GradientDescentTrainer, is_primary: bool = True, **kwargs: Any) -> None:
        super().on_start(trainer, is_primary)
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
        self.held_out = HeldOutBatches(
            self._held_out_loader, trainer.accelerator.process_index, trainer.accelerator.num_processes
        )
        self._optimizer = torch.optim.Adam([objective.loss_weights], lr=self.learning_rate)
        if self._optimizer_state is not None:
            self._optimizer.load_state_dict(self._optimizer_state)

    def on_batch(
        self,
        trainer: GradientDescentTrainer,
        batch_inputs: list[dict[str, Tensor]],
        batch_outputs: list[dict[str, Any]],
        batch_metrics: dict[str, Any],
        epoch: int,
        batch_number: int,
        is_training: bool,
        is_primary: bool = True,
        batch_grad_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        update, rest = divmod(trainer.steps_completed - 1, self.interval)
        if rest:
            return
        assert self.held_out is not None and self._optimizer is not None
        accelerator, model = trainer.accelerator, trainer.model
        objective = self._objective(trainer)
        weights = objective.loss_weights.detach().softmax(0)
        held_out_batch, held_out_share = self.held_out.get(update)
        held_out_batch = send_to_device(held_out_batch, accelerator.device)
        samples = sum(map(count_of, batch_inputs))

        def terms() -> Tensor:
            values = torch.zeros_like(weights)
            for batch in batch_inputs:
                found = measured(model, batch, _Terms(objective.terms))
                own = torch.stack([found[f"term_{number}"] for number in range(len(weights))])
                values = values + own * (count_of(batch) / samples)
            return values

        def weighted() -> Tensor:
            value = torch.zeros_like(weights[0])
            for batch in batch_inputs:
                found = measured(model, batch, _Terms(objective.terms, weights))
                value = value + found["loss"] * (count_of(batch) / samples)
            return value

        def held_out_loss() -> Tensor:
            function = getattr(objective, "held_out_loss", mean_cross_entropy)
            return measured(model, held_out_batch, _Loss(function))["loss"] * held_out_share

        with evaluating(model):
            gradient = term_weight_gradient(
                [parameter for parameter in model.parameters() if parameter.requires_grad],
                terms,
                held_out_loss,
                weights,
                trainer.optimizer.param_groups[0]["lr"],
                self.look_ahead,
                lambda value: accelerator.reduce(value, "mean"),
                weighted,
            )
        objective.loss_weights.grad = through_softmax(gradient, weights)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def on_epoch(
        self,
        trainer: GradientDescentTrainer,
        metrics: dict[str, Any],
        epoch: int,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        if is_primary:
            weights = ", ".join(f"{value:.4f}" for value in self._weights(trainer))
            logger.info("epoch %d: weights of the objective's terms: %s", epoch, weights)

    def on_end(
        self,
        trainer: GradientDescentTrainer,
        metrics: dict[str, Any] | None = None,
        epoch: int | None = None,
        is_primary: bool = True,
        **kwargs: Any,
    ) -> None:
        if metrics is not None:
            metrics["cross_level_weights"] = self._weights(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer and self._optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizer_state = state_dict["optimizer"]

    def _weights(self, trainer: GradientDescentTrainer) -> list[float]:
        return self._objective(trainer).loss_weights.detach().softmax(0).tolist()

    def _objective(self, trainer: GradientDescentTrainer) -> Any:
        objective = getattr(trainer.model, "objective", None)
        if not isinstance(getattr(objective, "loss_weights", None), torch.nn.Parameter) or not hasattr(
            objective, "terms"
        ):
            raise ConfigurationError(
                f"cross_level: found the objective {type(objective).__name__}, allowed: one with learned weights "
                "(`loss_weights` and `terms`)"
            )
        return objective


class HeldOutBatches:
    """
    The held-out batch of each update, found by its number alone, so that a recovered run goes on as it would have.

    # Parameters

    data_loader : `Any`
    rank, num_processes : `int`
    """

    def __init__(self, data_loader: Any, rank: int, num_processes: int) -> None:
        self._data_loader = data_loader
        self._rank = rank
        self._num_processes = num_processes
        self._plan = EpochPlan(data_loader, 0, rank, num_processes)
        self._rounds = len(self._plan)
        self._next = -1
        self._batches: Iterator[dict[str, Tensor]] = iter(())

    def get(self, number: int) -> tuple[dict[str, Tensor], float]:
        """This process's batch, and the factor that makes the mean over processes one over the samples of all."""
        epoch, position = divmod(number, self._rounds)
        if number != self._next or position == 0:
            self._plan = EpochPlan(self._data_loader, epoch, self._rank, self._num_processes)
            self._batches = self._plan.batches(position)
        self._next = number + 1
        counts = self._plan.samples(position)
        return next(self._batches), counts[self._rank] * self._num_processes / sum(counts)


def mean_cross_entropy(outputs: ExitOutputs, label: Tensor) -> Tensor:
    """The mean over the exits and over the samples whose label is known."""
    logits = outputs.logits.float()[label >= 0]
    target = label[label >= 0].unsqueeze(1).expand(logits.shape[:2])
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / max(1, target.numel())


def count_of(batch: dict[str, Tensor]) -> int:
    """How many samples a mean over the batch is one of; of captions, how many words."""
    return len(batch["label"]) if "label" in batch else int(batch["attention_mask"][:, 1:].sum())


def measured(model: Model, batch: dict[str, Tensor], objective: Objective) -> dict[str, Tensor]:
    """What the model gives with another objective; its own, and its metrics, stay as they are."""
    own, state = model.objective, get_metric_state(model)
    model.objective = objective
    try:
        return model(**batch)
    finally:
        model.objective = own
        if state is not None:
            set_metric_state(model, state)


class _Terms(Objective):
    """The terms, one by one and without gradient, and their sum, weighted, with it."""

    def __init__(self, terms: Callable[[ExitOutputs, Tensor], Tensor], weights: Tensor | None = None) -> None:
        super().__init__()
        self.terms = terms
        self.weights = weights

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        values = self.terms(outputs, label)
        total = values.sum() if self.weights is None else (self.weights * values).sum()
        return {"loss": total, **{f"term_{number}": value.detach() for number, value in enumerate(values)}}


class _Loss(Objective):
    """A function of what the exits say."""

    def __init__(self, function: Callable[[ExitOutputs, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        return {"loss": self.function(outputs, label)}


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; afterwards every module has the mode that it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
