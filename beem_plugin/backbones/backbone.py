"""What a backbone is: an encoder that is run one block at a time, and what travels from block to block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable


@dataclass
class BackboneState:
    """
    A batch between two blocks. It can be cut to some of its samples and to its first tokens at any depth.

    # Parameters

    hidden_states : `Tensor`
        `(batch, tokens, hidden)`, the output of the block that ran last.
    attention_mask : `Tensor`
        `(batch, tokens)` bool, true at real tokens.
    batched : `dict[str, Tensor]`
        What the blocks need of each sample, such as additive masks: the first dimension is the batch.
        A mask that would hide nothing is left out.
    shared : `dict[str, Any]`
        What the blocks need of the whole call and no sample: position biases, rotary tables.
    token_dims : `Mapping[str, tuple[int, ...]]`
        Which dimensions of the tensors in `batched` and `shared` run over the tokens; a name that is absent has none.
    """

    hidden_states: Tensor
    attention_mask: Tensor
    batched: dict[str, Tensor] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    token_dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def advance(self, hidden_states: Tensor) -> BackboneState:
        """The state after a block has turned the hidden states into these."""
        return BackboneState(hidden_states, self.attention_mask, self.batched, self.shared, self.token_dims)

    def index_select(self, index: Tensor) -> BackboneState:
        """The state of the samples at `index`, a `(kept,)` int64 tensor; a sample may be named more than once."""
        return BackboneState(
            self.hidden_states.index_select(0, index),
            self.attention_mask.index_select(0, index),
            {name: tensor.index_select(0, index) for name, tensor in self.batched.items()},
            self.shared,
            self.token_dims,
        )

    def narrow(self, length: int) -> BackboneState:
        """The state cut to its first `length` tokens; every token cut off must be padding in every sample."""
        if length == self.hidden_states.shape[1]:
            return self
        return BackboneState(
            # Contiguous, because each projection of the next block would otherwise make its own copy.
            self.hidden_states[:, :length].contiguous(),
            self.attention_mask[:, :length],
            {name: self._cut(name, tensor, length) for name, tensor in self.batched.items()},
            {name: self._cut(name, value, length) for name, value in self.shared.items()},
            self.token_dims,
        )

    def _cut(self, name: str, value: Any, length: int) -> Any:
        for dim in self.token_dims.get(name, ()):
            value = value.narrow(dim, 0, length)
        return value


class Backbone(torch.nn.Module, Registrable):
    """
    An encoder as a sequence of blocks, numbered from 1. It has no loop of its own: whoever steps it decides how far.

    Attributes every backbone has: `num_layers`, `hidden_size`, `config` (the transformers configuration) and
    `model_name` (None for random weights).
    """

    default_implementation = "transformer"

    num_layers: int
    hidden_size: int
    config: Any
    model_name: str | None

    def embed(self, batch: Mapping[str, Tensor]) -> BackboneState:
        """
        The state before block 1.

        # Parameters

        batch : `Mapping[str, Tensor]`
            `input_ids (batch, tokens)`; `attention_mask (batch, tokens)`, absent means that nothing is padding;
            `token_type_ids` where the family has them. Other entries are ignored.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define embed")

    def make_state(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> BackboneState:
        """
        A state with these hidden states, of any depth: masks and tables are made anew. It is how samples of different
        batches that have come equally deep are put together: pad and concatenate the two tensors, then call this.

        # Parameters

        hidden_states : `Tensor`
            `(batch, tokens, hidden)`; the values at padding positions do not matter, but must be finite.
        attention_mask : `Tensor`, optional (default = `None`)
            `(batch, tokens)`; None says that nothing is padding, without the device being asked.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define make_state")

    def layer(self, number: int, state: BackboneState) -> BackboneState:
        """The state after block `number`, from 1 to `num_layers`, given the state after the block before it."""
        raise NotImplementedError(f"{type(self).__name__} does not define layer")

    def pretrained_pooler(self) -> tuple[Tensor, Tensor] | None:
        """Weight `(hidden, hidden)` and bias `(hidden,)` of the pretrained first-token pooler, if there is one."""
        return None
