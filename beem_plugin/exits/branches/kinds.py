"""The branches: a narrow transformer block, its feed-forward half, and a bottleneck adapter."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.exits.branches.branch import Branch, KeyValueStore


class FeedForward(torch.nn.Module):
    """The post-LN feed-forward half of a transformer block: LN(x + W_2 GELU(W_1 x)), inner size twice the width."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        check_number("dropout", dropout, high=1, open_high=True)
        self.expand = torch.nn.Linear(width, 2 * width)
        self.contract = torch.nn.Linear(2 * width, width)
        self.dropout = torch.nn.Dropout(dropout)
        self.norm = torch.nn.LayerNorm(width)
        initialize_linear(self)

    def forward(self, vectors: Tensor) -> Tensor:
        inner = functional.gelu(self.expand(vectors))
        return self.norm(vectors + self.dropout(self.contract(inner)))


def initialize_linear(module: torch.nn.Module) -> None:
    """BERT's initialisation: normal weights with standard deviation 0.02, zero biases."""
    for part in module.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.weight, std=0.02)
            torch.nn.init.zeros_(part.bias)


@Branch.register("mlp")
class MlpBranch(Branch):
    """
    x + W_out LN(h + W_2 GELU(W_1 h)) with h = W_in x, token by token: the transformer branch without its attention.

    Registered as a `Branch` with name "mlp".

    # Parameters

    width : `int`, optional (default = `384`)
        Size of h; W_1 maps to twice as much.
    dropout : `float`, optional (default = `0.1`)
        After W_2.
    """

    def __init__(self, hidden_size: int, width: int = 384, dropout: float = 0.1) -> None:
        super().__init__(hidden_size, width)
        self.feed_forward = FeedForward(width, dropout)

    def inner(self, vectors: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.feed_forward(vectors)


@Branch.register("transformer")
class TransformerBranch(Branch):
    """
    x + W_out block(W_in x) with one post-LN transformer block: self-attention over the real tokens, and a feed-forward
    network of twice the width. For a backbone of 768, width 192 adds 0.6 million parameters an exit, 384 1.8 million;
    a block of BERT-base has 7.1 million.

    Registered as a `Branch` with name "transformer", the default.

    # Parameters

    width : `int`, optional (default = `384`)
    num_heads : `int`, optional (default = `4`)
        Must divide the width.
    dropout : `float`, optional (default = `0.1`)
        Of the attention probabilities and after attention and feed-forward network.
    """

    mixes_tokens: ClassVar[bool] = True

    def __init__(self, hidden_size: int, width: int = 384, num_heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__(hidden_size, width)
        if num_heads < 1 or width % num_heads:
            raise ConfigurationError(f"num_heads: found {num_heads} for width {width}, allowed: a divisor of the width")
        self.num_heads = num_heads
        self.query_key_value = torch.nn.Linear(width, 3 * width)
        self.merge = torch.nn.Linear(width, width)
        self.dropout = torch.nn.Dropout(dropout)
        self.norm = torch.nn.LayerNorm(width)
        for linear in (self.query_key_value, self.merge):
            initialize_linear(linear)
        self.feed_forward = FeedForward(width, dropout)

    def inner(self, vectors: Tensor, attention_mask: Tensor | None) -> Tensor:
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        query, key, value = self._heads(self.query_key_value(vectors), 3)
        return self._attend(vectors, query, key, value, mask)

    def causal(self, hidden_states: Tensor, store: KeyValueStore | None = None) -> Tensor:
        vectors = self.down(hidden_states)
        query, key, value = self._heads(self.query_key_value(vectors), 3)
        if store is not None:
            key, value = store(key, value)
        return hidden_states + self.up(self._attend(vectors, query, key, value, is_causal=store is None))

    def keys_values(self, hidden_states: Tensor) -> list[Tensor]:
        """Keys and values `(batch, heads, tokens, size)` alone, of tokens that only later ones attend to."""
        weight, bias = self.query_key_value.weight[self.width :], self.query_key_value.bias[self.width :]
        return self._heads(functional.linear(self.down(hidden_states), weight, bias), 2)

    def keys_values_macs(self) -> int:
        """Multiply-accumulates of `keys_values` of a token."""
        return self.down.in_features * self.width + 2 * self.width * self.width

    def _heads(self, projected: Tensor, count: int) -> list[Tensor]:
        """`(batch, tokens, count * width)` to `count` tensors `(batch, heads, tokens, width / heads)`."""
        return list(projected.unflatten(-1, (count, self.num_heads, -1)).permute(2, 0, 3, 1, 4))

    def _attend(
        self,
        vectors: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        dropout = self.dropout.p if self.training else 0.0
        attended = functional.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal)
        merged = self.merge(attended.transpose(1, 2).flatten(2))
        return self.feed_forward(self.norm(vectors + self.dropout(merged)))


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
