"""Which samples have a label."""

from __future__ import annotations

from torch import Tensor


def known_labels(labels: Tensor) -> Tensor:
    """`(samples,)` bool. Unknown labels are -1 in int64 tensors, NaN in floating tensors of regression values."""
    return ~labels.isnan() if labels.is_floating_point() else labels >= 0
