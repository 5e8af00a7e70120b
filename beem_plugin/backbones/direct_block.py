"""
A post-norm block computed by the dozen of operations that it consists of.

transformers' modules spend most of a small layer's time in Python: some fifteen nested calls, each with its hooks and
keyword arguments. Early exits leave small batches, and one sample is the smallest, so that this is what they would wait
for. What is computed is said by the modules, and compared with them where it is used for the first time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.backbones import block_kernels
from beem_plugin.backbones.packed import Packed
from beem_plugin.backbones.untouched import Untouched, consists_of, version_of

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far two ways of computing a block may lie apart, relative to 1 + the largest of what it says."""


@dataclass
class DirectBlock:
    """
    Self-attention, residual and norm, feed-forward, residual and norm; for inference.

    # Parameters

    query, key, value, mixed, wide, narrow : `torch.nn.Linear`
    first_norm, last_norm : `torch.nn.LayerNorm`
    activation : `torch.nn.Module`
    num_heads : `int`
    whole : `torch.nn.Module`
        The block, which is not called any more, nor is any module in it.
    """

    query: Any
    key: Any
    value: Any
    mixed: Any
    first_norm: Any
    wide: Any
    activation: Any
    narrow: Any
    last_norm: Any
    num_heads: int
    whole: torch.nn.Module
    agreed: set[Any] = field(default_factory=set)
    uses_kernels: bool = True
    stacked: tuple[Tensor, Tensor] | None = None
    stacked_of: Any = None

    def __post_init__(self) -> None:
        self.untouched = Untouched(self.whole)

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Query's, key's and value's, `(3 hidden, hidden)` and `(3 hidden,)`: a copy, made anew when they change."""
        parts = [getattr(module, name) for name in ("weight", "bias") for module in (self.query, self.key, self.value)]
        state = [(part.data_ptr(), version_of(part)) for part in parts]
        if self.stacked is None or self.stacked_of != state:
            self.stacked = (torch.cat(parts[:3]).detach(), torch.cat(parts[3:]).detach())
            self.stacked_of = state
        return self.stacked

    def with_kernels(
        self, hidden_states: Tensor, bias: Tensor | None, real: Tensor | None, packed: Packed | None = None
    ) -> Tensor:
        """
        With `block_kernels`, where they can run.

        # Parameters

        hidden_states : `Tensor`
            `(batch, tokens, hidden)`
        bias : `Tensor`, optional
            `(1, heads, tokens, tokens)`, added to the scores of every sample.
        real : `Tensor`, optional
            `(batch, tokens)` bool: the tokens that are no padding; `None` says that all are.
        packed : `Packed`, optional
            Where the samples are, if they lie packed in a batch of one.
        """
        linear = functional.linear
        hidden_states = hidden_states.contiguous()
        query, key, value = linear(hidden_states, *self.weights).chunk(3, dim=2)
        real = None if real is None else real.contiguous()
        heard = block_kernels.attend(query, key, value, self.num_heads, bias, real, packed)
        mixed = linear(heard, self.mixed.weight, self.mixed.bias)
        between = block_kernels.add_and_normalise(mixed, hidden_states, self.first_norm)
        wide = self.activation(linear(between, self.wide.weight, self.wide.bias))
        narrow = linear(wide, self.narrow.weight, self.narrow.bias)
        return block_kernels.add_and_normalise(narrow, between, self.last_norm)

    def with_operations(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """
        With torch's own.

        # Parameters

        hidden_states : `Tensor`
            `(batch, tokens, hidden)`
        mask : `Tensor`, optional
            Added to the scores; broadcasts to `(batch, heads, tokens, tokens)`.
        """
        linear = functional.linear
        batch, tokens, _ = hidden_states.shape
        split = (batch, tokens, self.num_heads, -1)
        query = linear(hidden_states, self.query.weight, self.query.bias).view(split).transpose(1, 2)
        key = linear(hidden_states, self.key.weight, self.key.bias).view(split).transpose(1, 2)
        value = linear(hidden_states, self.value.weight, self.value.bias).view(split).transpose(1, 2)
        heard = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        heard = heard.transpose(1, 2).reshape(batch, tokens, -1)
        between = linear(heard, self.mixed.weight, self.mixed.bias)
        norm = self.first_norm
        between = functional.layer_norm(
            between.add_(hidden_states), norm.normalized_shape, norm.weight, norm.bias, norm.eps
        )
        wide = self.activation(linear(between, self.wide.weight, self.wide.bias))
        result = linear(wide, self.narrow.weight, self.narrow.bias)
        norm = self.last_norm
        return functional.layer_norm(result.add_(between), norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def agrees(self, kind: tuple[Any, ...], said: Tensor, expected: Tensor, real: Tensor) -> bool:
        """
        Compares what was computed directly with what the modules say, at real tokens, and remembers that they agree.

        # Parameters

        kind : `tuple`
            How it was computed, and of what kind the input was; each is compared once.
        said, expected : `Tensor`
            `(batch, tokens, hidden)`
        real : `Tensor`
            `(batch, tokens)` bool.
        """
        expected, said = expected[real].float(), said[real].float()
        tolerance = TOLERANCE.get(self.query.weight.dtype, 1e-4) * (1 + float(expected.abs().max()))
        apart = float((said - expected).abs().max())
        if not apart <= tolerance:
            logger.warning("a block computed %s is %.2g off what its modules say, and is not used", kind[0], apart)
            return False
        self.agreed.add(kind)
        return True


def direct_block(parts: dict[str, Any], dropouts: tuple[Any, ...], whole: torch.nn.Module) -> DirectBlock | None:
    """
    # Parameters

    parts : `dict[str, Any]`
        The block's modules under the names of `DirectBlock`'s parameters, and `num_heads`.
    dropouts : `tuple[Any, ...]`
        Which do nothing in evaluation mode.
    whole : `torch.nn.Module`
        The block. Another module in it than those named is one that is not known here.

    # Returns

    `DirectBlock`, optional
        `None` if a module is not of the kind expected: a quantised or adapted layer must be called as it is.
    """
    linears = [parts[name] for name in ("query", "key", "value", "mixed", "wide", "narrow")]
    norms = [parts["first_norm"], parts["last_norm"]]
    known = [*linears, *norms, *dropouts, *parts["activation"].modules()]
    if (
        any(type(module) is not torch.nn.Linear for module in linears)
        or any(type(module) is not torch.nn.LayerNorm for module in norms)
        or any(type(module) is not torch.nn.Dropout for module in dropouts)
        or not consists_of(whole, known)
        or any(module.weight is None or module.bias is None for module in (*linears, *norms))
    ):
        return None
    return DirectBlock(**parts, whole=whole)


def bert_block(layer: Any) -> DirectBlock | None:
    """The direct form of a block of BERT's kind; `None` for a decoder's."""
    if layer.is_decoder or layer.add_cross_attention:
        return None
    attention = layer.attention
    looks = attention.self
    parts = {
        "query": looks.query,
        "key": looks.key,
        "value": looks.value,
        "mixed": attention.output.dense,
        "first_norm": attention.output.LayerNorm,
        "wide": layer.intermediate.dense,
        "activation": layer.intermediate.intermediate_act_fn,
        "narrow": layer.output.dense,
        "last_norm": layer.output.LayerNorm,
        "num_heads": looks.num_attention_heads,
    }
    return direct_block(parts, (looks.dropout, attention.output.dropout, layer.output.dropout), layer)


def mpnet_block(layer: Any) -> DirectBlock | None:
    """The direct form of a block of MPNet's."""
    attention = layer.attention
    looks = attention.attn
    parts = {
        "query": looks.q,
        "key": looks.k,
        "value": looks.v,
        "mixed": looks.o,
        "first_norm": attention.LayerNorm,
        "wide": layer.intermediate.dense,
        "activation": layer.intermediate.intermediate_act_fn,
        "narrow": layer.output.dense,
        "last_norm": layer.output.LayerNorm,
        "num_heads": looks.num_attention_heads,
    }
    return direct_block(parts, (looks.dropout, attention.dropout, layer.output.dropout), layer)


def albert_block(layer: Any) -> DirectBlock | None:
    """The direct form of an inner layer of ALBERT's."""
    attention = layer.attention
    parts = {
        "query": attention.query,
        "key": attention.key,
        "value": attention.value,
        "mixed": attention.dense,
        "first_norm": attention.LayerNorm,
        "wide": layer.ffn,
        "activation": layer.activation,
        "narrow": layer.ffn_output,
        "last_norm": layer.full_layer_layer_norm,
        "num_heads": attention.num_attention_heads,
    }
    return direct_block(parts, (attention.attention_dropout, attention.output_dropout, layer.dropout), layer)


def distilbert_block(layer: Any) -> DirectBlock | None:
    """The direct form of a block of DistilBERT's."""
    attention, feed_forward = layer.attention, layer.ffn
    parts = {
        "query": attention.q_lin,
        "key": attention.k_lin,
        "value": attention.v_lin,
        "mixed": attention.out_lin,
        "first_norm": layer.sa_layer_norm,
        "wide": feed_forward.lin1,
        "activation": feed_forward.activation,
        "narrow": feed_forward.lin2,
        "last_norm": layer.output_layer_norm,
        "num_heads": attention.n_heads,
    }
    return direct_block(parts, (attention.dropout, feed_forward.dropout), layer)
