"""What is minimised over all exits at once."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable
from beem_plugin.exits.outputs import ExitOutputs


class Objective(torch.nn.Module, Registrable):
    """
    A loss over what all exits say. Most look at the logits alone and define `forward`; one that needs more, such as
    signals or the heads' extras, defines `loss`, which is what the model calls.
    """

    default_implementation = "weighted_distillation"

    required_signals: ClassVar[tuple[str, ...]] = ()
    """Signals beside the logits that it trains: the encoder must produce them."""

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        """
        # Parameters

        outputs : `ExitOutputs`
        label : `Tensor`
            `(batch,)` int64; samples with label -1 do not count.

        # Returns

        `dict[str, Tensor]`
            As `forward`, which this calls with the logits unless a subclass does otherwise.
        """
        return self(outputs.logits, label)

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
