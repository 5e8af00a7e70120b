"""Layers of an exit's own, between the backbone and the exit's head."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import check_number
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
        check_number("width", width, low=1)
        self.width = width
        self.down = torch.nn.Linear(hidden_size, width)
        self.up = torch.nn.Linear(width, hidden_size)
        torch.nn.init.normal_(self.down.weight, std=0.02)
        for parameter in (self.down.bias, self.up.weight, self.up.bias):
            torch.nn.init.zeros_(parameter)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """
        The hidden states that the head reads, of `(batch, tokens, hidden)` ones, or any shape that ends in hidden if
        the branch does not mix tokens. The mask is `(batch, tokens)` bool, true at real tokens; `None` if all are.
        """
        return hidden_states + self.up(self.inner(self.down(hidden_states), attention_mask))

    def causal(self, hidden_states: Tensor, store: KeyValueStore | None = None) -> Tensor:
        """
        As `forward` of `(batch, tokens, hidden)`, where each token reads only tokens up to itself. `store` takes the
        keys and values of these tokens, `(batch, heads, tokens, size)`, and returns those of all tokens so far, which
        the last token attends to; `None`: these are all tokens.
        """
        if self.mixes_tokens:
            raise TypeError(f"{type(self).__name__} does not define causal")
        return self(hidden_states)

    def inner(self, vectors: Tensor, attention_mask: Tensor | None) -> Tensor:
        """`(batch, tokens, width)` to `(batch, tokens, width)`."""
        raise TypeError(f"{type(self).__name__} does not define inner")
