"""A bottleneck adapter."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.exits.branches.branch import Branch


@Branch.register("adapter")
class AdapterBranch(Branch):
    """
    x + W_out GELU(W_in x), token by token: Houlsby et al. (2019)'s adapter.

    Registered as a `Branch` with name "adapter".

    # Parameters

    width : `int`, optional (default = `64`)
        Size of the bottleneck.
    """

    def __init__(self, hidden_size: int, width: int = 64) -> None:
        super().__init__(hidden_size, width)

    def inner(self, vectors: Tensor, attention_mask: Tensor | None) -> Tensor:
        return torch.nn.functional.gelu(vectors)
