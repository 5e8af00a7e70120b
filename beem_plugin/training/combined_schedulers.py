"""One learning rate scheduler after another."""

import bisect
import itertools
import logging
import warnings
from typing import Any

import torch

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Lazy
from beem_plugin.training.learning_rate_schedulers import LearningRateScheduler

logger = logging.getLogger(__name__)


@LearningRateScheduler.register("combined")
class CombinedSchedulers(LearningRateScheduler):
    """
    Schedulers that follow each other, each for a number of epochs:

        { type: 'combined', schedulers: [[2, { type: 'constant_with_warmup', warmup_steps: 100 }], [8, 'exponential']] }

    A scheduler's base rate is the last rate of the one before, and its `num_epochs` the number given here. The last one
    continues to the end. As in AllenNLP, the step at the end of an epoch belongs to the next epoch's scheduler.

    Registered as a `LearningRateScheduler` with name "combined".

    # Parameters

    schedulers : `list[tuple[int, LearningRateScheduler]]`
        Epochs, and the scheduler for them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_steps_per_epoch: int,
        schedulers: list[tuple[int, Lazy[LearningRateScheduler]]],
    ) -> None:
        super().__init__(optimizer)
        if not schedulers:
            raise ConfigurationError("schedulers: found none, allowed: at least one")
        for number, (epochs, _) in enumerate(schedulers):
            check_number(f"schedulers.{number}.0", epochs, low=1)
        self.schedulers = schedulers
        self.num_steps_per_epoch = num_steps_per_epoch
        self.epochs = 0
        self.ends = list(itertools.accumulate(epochs for epochs, _ in schedulers))
        # All are built once, for an optimizer with the same rates, to find errors in a later one before training.
        groups = [
            {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": group["lr"]} for group in optimizer.param_groups
        ]
        built = [self._make(number, torch.optim.SGD(groups)) for number in range(len(schedulers))]
        self.needs_validation_metric = any(scheduler.needs_validation_metric for scheduler in built)
        self.number = 0
        self.current = self._make(0, optimizer)

    def step_batch(self) -> None:
        self.current.step_batch()

    def step(self, metric: float | None = None) -> None:
        self.epochs += 1
        number = min(bisect.bisect(self.ends, self.epochs), len(self.schedulers) - 1)
        if number != self.number:
            if not any(group["lr"] for group in self.optimizer.param_groups):
                logger.warning(
                    "learning_rate_scheduler.schedulers.%d starts from 0, where the one before it ended", number
                )
            self.number = number
            self.current = self._make(number, self.optimizer)
        with warnings.catch_warnings():
            # torch's schedulers warn if no optimizer step was made since their construction.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            self.current.step(metric)

    def _make(self, number: int, optimizer: torch.optim.Optimizer) -> LearningRateScheduler:
        epochs, scheduler = self.schedulers[number]
        for group in optimizer.param_groups:
            # The base rate of a former scheduler, which torch's would take for theirs.
            group.pop("initial_lr", None)
        return scheduler.construct(optimizer=optimizer, num_epochs=epochs, num_steps_per_epoch=self.num_steps_per_epoch)

    def state_dict(self) -> dict[str, Any]:
        return {
            "epochs": self.epochs,
            "number": self.number,
            "rates": [group["lr"] for group in self.optimizer.param_groups],
            "current": self.current.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs, self.number = state["epochs"], state["number"]
        self.current = self._make(self.number, self.optimizer)
        self.current.load_state_dict(state["current"])
        # The construction changed the rates that the optimizer's state restored.
        for group, rate in zip(self.optimizer.param_groups, state["rates"], strict=True):
            group["lr"] = rate
