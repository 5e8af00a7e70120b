"""The weights of post-norm encoders, read from transformers' modules by one table of attribute paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.kernels.packed import Packed

Linear = tuple[Tensor, Tensor]  # weight, bias
Norm = tuple[Tensor, Tensor, float]  # weight, bias, epsilon
AddNorm = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]  # `kernels.add_norm.add_norm` or its reference


@dataclass(frozen=True)
class BlockPaths:
    """Attribute paths of a block's modules, and of a projection between the embeddings and the first block."""

    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    up: str
    activation: str
    down: str
    output_norm: str
    num_heads: str
    projection: str | None = None


BERT = BlockPaths(
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention_output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    activation="intermediate.intermediate_act_fn",
    down="output.dense",
    output_norm="output.LayerNorm",
    num_heads="attention.self.num_attention_heads",
)
DISTILBERT = BlockPaths(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    activation="ffn.activation",
    down="ffn.lin2",
    output_norm="output_layer_norm",
    num_heads="attention.n_heads",
)
ALBERT = BlockPaths(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    attention_output="attention.dense",
    attention_norm="attention.LayerNorm",
    up="ffn",
    activation="activation",
    down="ffn_output",
    output_norm="full_layer_layer_norm",
    num_heads="attention.num_attention_heads",
    projection="encoder.embedding_hidden_mapping_in",
)
MPNET = replace(
    BERT,
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention_output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    num_heads="attention.attn.num_attention_heads",
)
FAMILIES: dict[str, BlockPaths] = {
    "albert": ALBERT,
    "bert": BERT,
    "camembert": BERT,
    "distilbert": DISTILBERT,
    "electra": replace(BERT, projection="embeddings_project"),
    "mpnet": MPNET,
    "roberta": BERT,
    "xlm-roberta": BERT,
}
"""By `model_type`."""


def find(root: Any, path: str) -> Any:
    """The attribute at `path`, `None` where there is none."""
    return reduce(lambda found, name: getattr(found, name, None), path.split("."), root)


class UnexpectedModule(Exception):
    """A module is not of the expected type, so that its computation is unknown."""


@dataclass(frozen=True)
class PostNormBlock:
    """The weights of a block; the projections to query, key and value are joined: `(3 hidden, hidden)`."""

    query_key_value: Linear
    attention_output: Linear
    attention_norm: Norm
    up: Linear
    activation: torch.nn.Module
    down: Linear
    output_norm: Norm
    num_heads: int

    @classmethod
    def of(cls, block: torch.nn.Module, paths: BlockPaths) -> PostNormBlock:
        """
        The weights of a transformers block. Raises `UnexpectedModule` if one of its modules is quantised, adapted or
        missing, or if it has others.
        """
        if getattr(block, "is_decoder", False):
            raise UnexpectedModule("a decoder block")
        part = {name: find(block, path) for name, path in vars(paths).items() if name != "projection"}
        check_only_modules([module for module in part.values() if isinstance(module, torch.nn.Module)], block)
        projections = [linear_of(part[name]) for name in ("query", "key", "value")]
        weight, bias = (torch.cat(tensors) for tensors in zip(*projections))
        return cls(
            (weight, bias),
            linear_of(part["attention_output"]),
            norm_of(part["attention_norm"]),
            linear_of(part["up"]),
            part["activation"],
            linear_of(part["down"]),
            norm_of(part["output_norm"]),
            part["num_heads"],
        )


@dataclass(frozen=True)
class Embeddings:
    """
    The normalised sum of word, position and token type embeddings, and the projection after it. `words` are
    `(vocabulary, size)`, `token_types` `(token types, size)`, `positions` `(positions, size)` from the first position
    that a token can have; `first_type_positions` have the embedding of token type 0 added, for inputs without token
    types.

    Positions count the tokens other than `pad_token_id`, from row 1, and this one has row 0; with `None` they count all
    tokens, from row 0.
    """

    words: Tensor
    token_types: Tensor | None
    positions: Tensor
    first_type_positions: Tensor
    norm: Norm
    projection: Linear | None
    pad_token_id: int | None

    @classmethod
    def of(cls, embeddings: Any, projection: torch.nn.Module | None, pad_token_id: int | None) -> Embeddings:
        """The weights of transformers' modules; raises `UnexpectedModule` as `PostNormBlock.of`."""
        types = getattr(embeddings, "token_type_embeddings", None)
        modules = [embeddings.word_embeddings, embeddings.position_embeddings, *([] if types is None else [types])]
        check_only_modules([*modules, embeddings.LayerNorm], embeddings)
        words, positions, *token_types = map(table_of, modules)
        positions = positions if pad_token_id is None else positions[pad_token_id:]
        return cls(
            words,
            token_types[0] if token_types else None,
            positions,
            positions + token_types[0][0] if token_types else positions,
            norm_of(embeddings.LayerNorm),
            None if projection is None else linear_of(projection),
            pad_token_id,
        )

    def __call__(
        self, input_ids: Tensor, token_type_ids: Tensor | None, packed: Packed | None, add_norm: AddNorm
    ) -> Tensor:
        """`(batch, tokens)` int64 to `(batch, tokens, hidden)`; the batch of packed samples is 1."""
        hidden_states = functional.embedding(input_ids, self.words)
        table = self.first_type_positions
        if token_type_ids is not None and self.token_types is not None:
            hidden_states += functional.embedding(token_type_ids, self.token_types)
            table = self.positions
        if self.pad_token_id is not None:
            table = functional.embedding(counted_positions(input_ids, self.pad_token_id, packed), table)
        elif packed is not None:
            table = functional.embedding(packed.positions[None], table)
        else:
            table = table[: input_ids.shape[1]]
        hidden_states = add_norm(hidden_states, table, *self.norm)
        return hidden_states if self.projection is None else functional.linear(hidden_states, *self.projection)


def counted_positions(input_ids: Tensor, pad_token_id: int, packed: Packed | None) -> Tensor:
    """`(batch, tokens)` int64: how many tokens of the sample, up to this one, are no padding; 0 at padding."""
    counts = input_ids.ne(pad_token_id)
    position = counts.cumsum(1)
    if packed is not None:
        before = (position - counts.long())[0].index_select(0, packed.starts)
        position -= before[packed.sample_of_token]
    return position.mul_(counts)


def check_only_modules(known: list[torch.nn.Module], whole: torch.nn.Module) -> None:
    """Raises `UnexpectedModule` if `whole` computes with other modules than the `known` ones and dropout."""
    ids = {id(part) for module in known for part in module.modules()}
    for module in whole.modules():
        is_leaf = next(module.children(), None) is None
        has_weights = next(module.parameters(recurse=False), None) is not None
        if (is_leaf or has_weights) and id(module) not in ids and type(module) is not torch.nn.Dropout:
            raise UnexpectedModule(f"{type(module).__name__} in {type(whole).__name__}")


def linear_of(module: Any) -> Linear:
    if type(module) is not torch.nn.Linear or module.bias is None:
        raise UnexpectedModule(f"{module} instead of Linear with bias")
    return module.weight.detach(), module.bias.detach()


def norm_of(module: Any) -> Norm:
    if type(module) is not torch.nn.LayerNorm or module.weight is None or module.bias is None:
        raise UnexpectedModule(f"{module} instead of LayerNorm with weight and bias")
    return module.weight.detach(), module.bias.detach(), module.eps


def table_of(module: Any) -> Tensor:
    if type(module) is not torch.nn.Embedding or module.max_norm is not None:
        raise UnexpectedModule(f"{module} instead of Embedding without max_norm")
    return module.weight.detach()
