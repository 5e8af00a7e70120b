"""Layers of an exit's own, between the backbone and the exit's head, and the head that reads through them."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Lazy, Registrable
from beem_plugin.exits.heads.head import NO_MEMORY, ExitHead
from beem_plugin.exits.outputs import HeadOutput

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

    mixes_tokens: ClassVar[bool] = False  # whether a token's output depends on other tokens

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
        What the head reads of `(batch, tokens, hidden)` states, or of any shape that ends in hidden if tokens
        are not mixed; the mask is `(batch, tokens)` bool, `None` if all tokens are real.
        """
        return hidden_states + self.up(self.inner(self.down(hidden_states), attention_mask))

    def causal(self, hidden_states: Tensor, store: KeyValueStore | None = None) -> Tensor:
        """
        `forward` where each token reads those up to itself. `store` takes the keys and values of these tokens,
        `(batch, heads, tokens, size)`, and returns those of all tokens so far; `None`: these are all.
        """
        if self.mixes_tokens:
            raise TypeError(f"{type(self).__name__} does not define causal")
        return self(hidden_states)

    def inner(self, vectors: Tensor, attention_mask: Tensor | None) -> Tensor:
        """`(batch, tokens, width)` to `(batch, tokens, width)`."""
        raise TypeError(f"{type(self).__name__} does not define inner")


class BranchedHead(ExitHead):
    """Any head, which gets the branch's output in place of the backbone's."""

    def __init__(self, branch: Branch, head: ExitHead) -> None:
        super().__init__()
        self.branch = branch
        self.head = head
        self.pooled_size = head.pooled_size
        self.remembers = head.remembers  # type: ignore[misc]

    @property
    def reads(self) -> str | None:
        # The mean of the branch's outputs is not its output for the mean.
        return "first" if self.head.reads == "first" and not self.branch.mixes_tokens else None

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        return self.head(self.branch(hidden_states, attention_mask), attention_mask, memory)

    def memory_after(self, output: HeadOutput, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.head.memory_after(output, memory)


def with_branches(
    heads: Sequence[ExitHead], branch: Lazy[Branch] | Sequence[Lazy[Branch] | None] | None, hidden_size: int
) -> list[ExitHead]:
    """Heads that read through branches: one block for every exit but the last, or a list of one an exit, or `None`."""
    if branch is None:
        return list(heads)
    blocks = list(branch) if isinstance(branch, Sequence) else [branch] * (len(heads) - 1) + [None]
    if len(blocks) != len(heads):
        raise ConfigurationError(f"branch: found a list of {len(blocks)}, allowed: {len(heads)} entries, one an exit")
    return [
        head if block is None else BranchedHead(block.construct(hidden_size=hidden_size), head)
        for block, head in zip(blocks, heads, strict=True)
    ]
