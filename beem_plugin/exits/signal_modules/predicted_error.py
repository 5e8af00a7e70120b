"""The predicted probability that an exit is wrong."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.exits.signal_modules.signal_module import ExitView, SignalModule


@SignalModule.register("predicted_error")
class PredictedError(SignalModule):
    """
    BERxiT's learning-to-exit module (Xin et al. 2021, section 3.4): one linear map, shared by all exits, from the
    classifier's input to the probability that the exit is wrong, u_i = sigmoid(w h_i + b). Trained by
    `learned_exit` and the objectives that contain it. Its gradient reaches the backbone, as in the release, unless
    `detach` is set.

    Registered as a `SignalModule` with name "predicted_error".

    # Parameters

    detach : `bool`, optional (default = `False`)
    """

    name: ClassVar[str] = "predicted_error"

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int, detach: bool = False) -> None:
        super().__init__(num_exits, pooled_size, num_labels)
        self.detach = detach
        self.linear = torch.nn.Linear(pooled_size, 1)

    def forward(self, view: ExitView) -> Tensor:
        pooled = view.pooled.detach() if self.detach else view.pooled
        return self.linear(pooled).squeeze(-1).float().sigmoid()
