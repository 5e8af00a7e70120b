"""A learned gate on the uncertainty of an exit."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.poolers import as_input_of
from beem_plugin.exits.signal_modules.signal_module import ExitView, SignalModule
from beem_plugin.exits.signals import confidence_of, entropy_of, margin_of


@SignalModule.register("gate")
class GateModule(SignalModule):
    """
    JEI-DNN's gates (Regol et al. 2024): at every exit a linear map from four measures of its uncertainty to g_i, after
    the sigmoid. The measures are computed from the logits, without a gradient to them: the largest probability, the
    entropy, the gap between the two largest probabilities, and the entropy of the squared probabilities, normalised.

    Registered as a `SignalModule` with name "gate".
    """

    name: ClassVar[str] = "gate"

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int) -> None:
        super().__init__(num_exits, pooled_size, num_labels)
        if num_labels == 1:
            raise ConfigurationError(
                "signals.gate: found a regression, which has no probabilities; allowed: with labels"
            )
        self.gates = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(num_exits))

    def forward(self, view: ExitView) -> Tensor:
        gate = self.gates[view.exit_number - 1]
        features = as_input_of(gate, uncertainty_features(view.logits.detach()))
        return gate(features).squeeze(-1).float().sigmoid()


def uncertainty_features(logits: Tensor) -> Tensor:
    """`(batch, labels)` to `(batch, 4)`; see `GateModule`."""
    log_p = logits.float().log_softmax(-1)
    squared = (2 * log_p).log_softmax(-1)
    return torch.stack([confidence_of(log_p), entropy_of(log_p), margin_of(log_p), entropy_of(squared)], -1)
