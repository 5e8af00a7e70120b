"""The learning rate of the first transformer."""

from __future__ import annotations

import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.learning_rate_schedulers import BatchScheduler, LearningRateScheduler


@LearningRateScheduler.register("noam")
class Noam(BatchScheduler):
    """
    factor * model_size ** -0.5 * min(steps ** -0.5, steps * warmup_steps ** -1.5), with every optimizer step: a linear
    rise, then a fall with the root of the steps (Vaswani et al. 2017). The optimizer's own rates have no part in it,
    those of parameter groups included.

    Registered as a `LearningRateScheduler` with name "noam".

    # Parameters

    model_size : `int`
        The hidden size.
    warmup_steps : `int`
    factor : `float`, optional (default = `1.0`)
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model_size: int, warmup_steps: int, factor: float = 1.0
    ) -> None:
        super().__init__(optimizer, num_epochs=0, num_steps_per_epoch=0)
        for key, value in (("model_size", model_size), ("warmup_steps", warmup_steps)):
            if value < 1:
                raise ConfigurationError(f"{key}: found {value}, allowed: at least 1")
        self.model_size = model_size
        self.warmup_steps = warmup_steps
        self.factor = factor
        self.start()

    def rate(self, base_rate: float, steps: int) -> float:
        steps = max(steps, 1)
        return self.factor * self.model_size**-0.5 * min(steps**-0.5, steps * self.warmup_steps**-1.5)
