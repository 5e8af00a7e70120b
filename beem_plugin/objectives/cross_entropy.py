"""The loss of each exit on each sample, and means over the samples whose label is known."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from beem_plugin.common.known_labels import known_labels


def exit_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """
    # Parameters

    logits : `Tensor`
        `(batch, exits, labels)`
    label : `Tensor`
        `(batch,)` int64, -1 where unknown.

    # Returns

    `Tensor`
        `(batch, exits)` float32: -ln p_i(y); a finite number for samples without label, which `mean_over_known`
        ignores.
    """
    samples, num_exits, num_labels = logits.shape
    target = label.clamp_min(0).unsqueeze(1).expand(samples, num_exits)
    losses = functional.cross_entropy(logits.float().reshape(-1, num_labels), target.reshape(-1), reduction="none")
    return losses.reshape(samples, num_exits)


def mean_over_known(values: Tensor, label: Tensor) -> Tensor:
    """The mean of `values`, `(batch, ...)`, over the samples whose label is known; 0 if there is none."""
    known = known_labels(label)
    dropped = values.masked_fill(~known.reshape(-1, *[1] * (values.dim() - 1)), 0.0)
    return dropped.sum(0) / known.sum().clamp_min(1)
