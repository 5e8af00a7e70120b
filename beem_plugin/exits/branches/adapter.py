"""A bottleneck adapter."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import check_choice
from beem_plugin.exits.branches.branch import Branch

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": functional.gelu, "relu": functional.relu}


@Branch.register("adapter")
class AdapterBranch(Branch):
    """
    x + scale W_out GELU(W_in x), token by token: Houlsby et al. (2019)'s adapter.

    Registered as a `Branch` with name "adapter".

    # Parameters

    width : `int`, optional (default = `64`)
        Size of the bottleneck.
    activation : `str`, optional (default = `"gelu"`)
        Or `"relu"`.
    scale : `float`, optional (default = `1.0`)
    norm : `bool`, optional (default = `False`)
        Whether a layer normalization of the sum follows.
    """

    def __init__(
        self, hidden_size: int, width: int = 64, activation: str = "gelu", scale: float = 1.0, norm: bool = False
    ) -> None:
        super().__init__(hidden_size, width)
        check_choice("activation", activation, ACTIVATIONS)
        self.activation, self.scale = ACTIVATIONS[activation], scale
        self.norm = torch.nn.LayerNorm(hidden_size) if norm else None

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        found = super().forward(hidden_states, attention_mask)
        return found if self.norm is None else self.norm(found)

    def inner(self, vectors: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.scale * self.activation(vectors)
