"""The backbone interface: an encoder that runs block by block, and the state between two blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable
from beem_plugin.kernels.packed import Packed


@dataclass
class BackboneState:
    """
    A batch between two blocks. It can be reduced to some of its samples and to its first tokens at any depth.

    # Parameters

    hidden_states : `Tensor`
        `(batch, tokens, hidden)`, the output of the last block that ran; `(1, tokens of all samples, hidden)` of packed
        samples.
    attention_mask : `Tensor`
        `(batch, tokens)` bool, true at real tokens.
    batched : `dict[str, Tensor]`
        Inputs of the blocks that differ from sample to sample, such as additive masks; the first dimension is the
        batch. Without padding there is no mask.
    shared : `dict[str, Any]`
        Inputs of the blocks that all samples share: position biases, rotary tables.
    token_dims : `Mapping[str, tuple[int, ...]]`
        The token dimensions of the tensors in `batched` and `shared`; a tensor without an entry has none.
    packed : `Packed`, optional (default = `None`)
        The layout of packed samples. Such a state is reduced by `Packed.indices` and `index_select` over its tokens.
    """

    hidden_states: Tensor
    attention_mask: Tensor
    batched: dict[str, Tensor] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    token_dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    packed: Packed | None = None

    def advance(self, hidden_states: Tensor) -> BackboneState:
        """The state after a block with this output."""
        return BackboneState(
            hidden_states, self.attention_mask, self.batched, self.shared, self.token_dims, self.packed
        )

    def index_select(self, index: Tensor) -> BackboneState:
        """The state of the padded samples at `index`, `(kept,)` int64; an index may occur more than once."""
        return BackboneState(
            self.hidden_states.index_select(0, index),
            self.attention_mask.index_select(0, index),
            {name: tensor.index_select(0, index) for name, tensor in self.batched.items()},
            self.shared,
            self.token_dims,
        )

    def narrow(self, length: int) -> BackboneState:
        """The state of the first `length` tokens of padded samples; the rest must be padding in every sample."""
        if length == self.hidden_states.shape[1]:
            return self
        return BackboneState(
            # Contiguous, because each projection of the next block would otherwise make its own copy.
            self.hidden_states[:, :length].contiguous(),
            self.attention_mask[:, :length],
            {name: self._narrow(name, tensor, length) for name, tensor in self.batched.items()},
            {name: self._narrow(name, value, length) for name, value in self.shared.items()},
            self.token_dims,
        )

    def _narrow(self, name: str, value: Any, length: int) -> Any:
        for dim in self.token_dims.get(name, ()):
            value = value.narrow(dim, 0, length)
        return value


class Backbone(torch.nn.Module, Registrable):
    """
    An encoder as a sequence of blocks, numbered from 1. The caller runs the loop and decides where it ends.

    Attributes of every backbone: `num_layers`, `hidden_size`, `config` (the transformers configuration) and
    `model_name` (`None` for random weights).
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
            `input_ids (batch, tokens)`; optionally `attention_mask (batch, tokens)`, where none means no padding; and
            `token_type_ids` where the family has them. Other entries are ignored.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define embed")

    def make_state(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> BackboneState:
        """
        The state with these hidden states, at any depth, with new masks and tables. It joins samples of several batches
        at the same depth: concatenate their padded hidden states and masks, then call this.

        # Parameters

        hidden_states : `Tensor`
            `(batch, tokens, hidden)`, finite at padding positions.
        attention_mask : `Tensor`, optional (default = `None`)
            `(batch, tokens)`; `None` means no padding, and saves reading the mask.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define make_state")

    def layer(self, number: int, state: BackboneState) -> BackboneState:
        """The state after block `number`, from 1 to `num_layers`, given the state after the block before it."""
        raise NotImplementedError(f"{type(self).__name__} does not define layer")

    def pretrained_pooler(self) -> tuple[Tensor, Tensor] | None:
        """Weight `(hidden, hidden)` and bias `(hidden,)` of the pretrained first-token pooler, if there is one."""
        return None
