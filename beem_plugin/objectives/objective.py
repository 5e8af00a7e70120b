"""What is minimised over all exits at once."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable


class Objective(torch.nn.Module, Registrable):
    """A loss over the logits of all exits."""

    default_implementation = "weighted_distillation"

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        """
        # Parameters

        logits : `Tensor`
            `(batch, exits, labels)`
        label : `Tensor`
            `(batch,)` int64; samples with label -1 do not count.

        # Returns

        `dict[str, Tensor]`
            `loss`, a scalar, the mean over the samples; and its components by name, detached, for the log.
        """
        raise TypeError(f"{type(self).__name__} does not define forward")
