"""ALBERT: all blocks, or those of a group, share their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from beem_plugin.backbones.transformer import TransformerBackbone
from beem_plugin.common.errors import ConfigurationError


class AlbertBackbone(TransformerBackbone):
    """
    `model_type` `albert`.

    A group may have several inner layers (`inner_group_num`, 1 in every published model). Each of them is a block, as
    each has its own entry in the hidden states that transformers returns.
    """

    @classmethod
    def depth(cls, config: Any) -> int:
        return config.num_hidden_layers * config.inner_group_num

    @classmethod
    def shorten(cls, config: Any, num_layers: int) -> None:
        # A group computes `num_hidden_layers / num_hidden_groups` consecutive calls. A shorter model keeps this mapping
        # only if it ends with a group; with a single group it can end anywhere.
        calls = config.num_hidden_layers / config.num_hidden_groups
        step = config.inner_group_num * (1 if config.num_hidden_groups == 1 else calls)
        if num_layers % step:
            raise ConfigurationError(
                f"model.encoder.backbone.num_layers: found {num_layers}, allowed: multiples of {step:g}, the blocks "
                "of a group of shared weights"
            )
        config.num_hidden_layers = num_layers // config.inner_group_num
        if config.num_hidden_groups > 1:
            config.num_hidden_groups = round(config.num_hidden_layers / calls)

    @classmethod
    def pooler_of(cls, transformer_model: Any) -> Any | None:
        return transformer_model.pooler

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        model = self.transformer_model
        embedded = model.embeddings(batch["input_ids"], token_type_ids=batch.get("token_type_ids"))
        return model.encoder.embedding_hidden_mapping_in(embedded)

    def block_module(self, number: int) -> Any:
        call, inner = divmod(number - 1, self.config.inner_group_num)
        # The expression of transformers, so that rounding gives the same group.
        group = int(call / (self.config.num_hidden_layers / self.config.num_hidden_groups))
        return self.transformer_model.encoder.albert_layer_groups[group].albert_layers[inner]
