"""Layers of an exit's own, between the backbone and the exit's head."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable

KeyValueStore = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Branch(torch.nn.Module, Registrable):
    """
    x + W_out(inner(W_in x)): a residual of the exit's own on the hidden states that its head reads. `W_out` is 0 at the
    start, so that an untrained branch changes nothing. The backbone's next block reads the hidden states without it.

    # Parameters

    hidden_size : `int`
        Of the backbone; filled in by the encoder.
    width : `int`
        Size of the vectors inside.
    """

    default_implementation = "transformer"

    mixes_tokens: ClassVar[bool] = False
    """Whether a token's output depends on other tokens."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        if width < 1:
            raise ConfigurationError(f"width: found {width}, allowed: at least 1")
        self.width = width
        self.down = torch.nn.Linear(hidden_size, width)
        self.up = torch.nn.Linear(width, hidden_size)
        torch.nn.init.normal_(self.down.weight, std=0.02)
        for parameter in (self.down.bias, self.up.weight, self.up.bias):
            torch.nn.init.zeros_(parameter)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """
        # Parameters

        hidden_states : `Tensor`
            `(batch, tokens, hidden)`; of a branch that does not mix tokens, any shape that ends in hidden.
        attention_mask : `Tensor`, optional (default = `None`)
            `(batch, tokens)` bool, true at real tokens; `None` if all are.

        # Returns

        `Tensor`
            As `hidden_states`.
        """
        return hidden_states + self.up(self.inner(self.down(hidden_states), attention_mask))

    def causal(self, hidden_states: Tensor, store: KeyValueStore | None = None) -> Tensor:
        """
        As `forward` of `(batch, tokens, hidden)`, where each token reads only tokens up to itself.

        # Parameters

        hidden_states : `Tensor`
        store : `KeyValueStore`, optional (default = `None`)
            Takes the keys and values of these tokens, `(batch, heads, tokens, size)`, and returns those of all tokens
            so far, which the last token attends to. None: these are all tokens.
        """
        if self.mixes_tokens:
            raise TypeError(f"{type(self).__name__} does not define causal")
        return self(hidden_states)

    def inner(self, vectors: Tensor, attention_mask: Tensor | None) -> Tensor:
        """`(batch, tokens, width)` to `(batch, tokens, width)`."""
        raise TypeError(f"{type(self).__name__} does not define inner")


class FeedForward(torch.nn.Module):
    """The post-LN feed-forward half of a transformer block: LN(x + W_2 GELU(W_1 x)), inner size twice the width."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.expand = torch.nn.Linear(width, 2 * width)
        self.contract = torch.nn.Linear(2 * width, width)
        self.dropout = torch.nn.Dropout(dropout)
        self.norm = torch.nn.LayerNorm(width)
        initialize_linear(self)

    def forward(self, vectors: Tensor) -> Tensor:
        inner = torch.nn.functional.gelu(self.expand(vectors))
        return self.norm(vectors + self.dropout(self.contract(inner)))


def initialize_linear(module: torch.nn.Module) -> None:
    """BERT's initialisation: normal weights with standard deviation 0.02, zero biases."""
    for part in module.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.weight, std=0.02)
            torch.nn.init.zeros_(part.bias)


def check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ConfigurationError(f"dropout: found {dropout}, allowed: 0 up to, not including, 1")
