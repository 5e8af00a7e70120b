"""Which samples have a label."""

from __future__ import annotations

from torch import Tensor


def known_labels(labels: Tensor) -> Tensor:
    """
    # Parameters

    labels : `Tensor`
        `(samples,)` int64, -1 where unknown; or the values of a regression, floating, NaN where unknown.

    # Returns

    `Tensor`
        `(samples,)` bool.
    """
    return ~labels.isnan() if labels.is_floating_point() else labels >= 0
