"""Blocks that are skipped at random in training."""

import math

import torch
from torch import Tensor

from beem_plugin.common.errors import check_choice, check_number
from beem_plugin.common.registry import FromParams

SCHEDULES = ("constant", "exponential")


class LayerDropout(torch.nn.Module, FromParams):
    """
    LayerSkip's layer dropout (Elhoushi et al. 2024, section 4.1.1): in training each sample skips block l of L with
    probability

        p(l, t) = S(t) D(l) max_rate,    D(l) = 2^((l - 1) / (L - 1)) - 1,

    so that exits before a block learn to do without it. A skipped block is computed, and its output dropped.

    # Parameters

    max_rate : `float`, optional (default = `0.1`)
        The rate of the last block.
    schedule : `str`, optional (default = `"constant"`)
        S(t): `"constant"`: 1, for fine-tuning; `"exponential"`: 2^(t / (T - 1)) - 1 in step t of T, from 0.
    """

    rates: Tensor
    """`(blocks,)` in this step; updated in place, so that a captured CUDA graph reads the current values."""

    def __init__(self, max_rate: float = 0.1, schedule: str = "constant") -> None:
        super().__init__()
        check_number("layer_dropout.max_rate", max_rate, high=1, open_high=True)
        check_choice("layer_dropout.schedule", schedule, SCHEDULES)
        self.max_rate = max_rate
        self.schedule = schedule

    def bind(self, num_layers: int) -> None:
        """Called once by the network, with its number of blocks."""
        self.register_buffer("rates", torch.zeros(num_layers), persistent=False)
        self.start_step(0, 1)

    def start_step(self, step: int, total_steps: int) -> None:
        """See `Model.start_step`."""
        share = step / max(total_steps - 1, 1)
        scale = 2 ** min(share, 1.0) - 1 if self.schedule == "exponential" else 1.0
        depth = torch.arange(len(self.rates)) / max(len(self.rates) - 1, 1)
        self.rates.copy_(scale * self.max_rate * ((math.log(2) * depth).exp() - 1))

    def forward(self, number: int, before: Tensor, after: Tensor) -> Tensor:
        """Input or output, `(batch, tokens, hidden)`, of block `number` for each sample; in evaluation the output."""
        if not self.training:
            return after
        skips = torch.rand(len(after), 1, 1, device=after.device) < self.rates[number - 1]
        return torch.where(skips, before, after)
