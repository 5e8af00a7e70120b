"""The probability of halting at an exit."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.signal_modules.signal_module import ExitView, SignalModule


@SignalModule.register("halt")
class Halt(SignalModule):
    """
    PALBERT's exit head (Balagansky and Gavrilov 2022, section 3.1): one perceptron, shared by all exits, on the input
    vectors of the classifiers of this exit and the previous one, [h_i; h_{i-1}] with zeros before exit 1; lambda_i,
    the probability of halting at exit i if the sample reaches it, is the sigmoid of its output.

    Registered as a `SignalModule` with name "halt".

    # Parameters

    num_hidden_layers : `int`, optional (default = `3`)
        Layers of twice the vectors' size with tanh, before the linear output.
    """

    name: ClassVar[str] = "halt"
    needs_previous_pooled: ClassVar[bool] = True

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int, num_hidden_layers: int = 3) -> None:
        super().__init__(num_exits, pooled_size, num_labels)
        if num_hidden_layers < 0:
            raise ConfigurationError(f"signals.halt.num_hidden_layers: found {num_hidden_layers}, allowed: 0 or more")
        size = 2 * pooled_size
        layers: list[torch.nn.Module] = []
        for _ in range(num_hidden_layers):
            layers += [torch.nn.Linear(size, size), torch.nn.Tanh()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(size, 1))

    def forward(self, view: ExitView) -> Tensor:
        previous = view.memory.get("previous_pooled")
        if previous is None:
            previous = torch.zeros_like(view.pooled)
        return self.layers(torch.cat([view.pooled, previous], -1)).squeeze(-1).float().sigmoid()
