"""The loss of an exit on a sample, for labels and for values."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.objectives.cross_entropy import exit_cross_entropy


def exit_loss(logits: Tensor, label: Tensor) -> Tensor:
    """
    # Parameters

    logits : `Tensor`
        `(batch, exits, labels)`; of a regression `(batch, exits, 1)`, the values y_i.
    label : `Tensor`
        `(batch,)` int64, -1 where unknown; of a regression floating, NaN where unknown.

    # Returns

    `Tensor`
        `(batch, exits)` float32: CE(p_i, y), or (y_i - y)^2; of samples without label something finite, which
        `mean_over_known` drops.
    """
    if not label.is_floating_point():
        return exit_cross_entropy(logits, label)
    return difference(logits, label) ** 2


def exit_error(logits: Tensor, label: Tensor) -> Tensor:
    """
    `(batch, exits)` float32 without gradient, in [0, 1]: whether exit i is wrong; in a regression |tanh(y_i - y)|
    (BERxiT, Xin et al. 2021, section 3.4). The parameters are those of `exit_loss`.
    """
    if not label.is_floating_point():
        return (logits.argmax(-1) != label.unsqueeze(1)).float()
    return difference(logits.detach(), label).tanh().abs()


def difference(logits: Tensor, label: Tensor) -> Tensor:
    """`(batch, exits)` float32: y_i - y."""
    # An unknown label must not come near the graph: the gradient of a NaN is NaN, even of one that is dropped later.
    return logits.float().squeeze(-1) - label.float().nan_to_num(nan=0.0).unsqueeze(1)


def loss_name(label: Tensor) -> str:
    """What the log calls `exit_loss`."""
    return "squared_error" if label.is_floating_point() else "cross_entropy"


def squared_distance(logits: Tensor, teacher: Tensor) -> Tensor:
    """
    # Parameters

    logits, teacher : `Tensor`
        `(batch, exits, 1)` values that can be broadcast together.

    # Returns

    `Tensor`
        `(batch, exits)`: what distillation makes small in a regression.
    """
    return torch.square(logits - teacher).squeeze(-1)
