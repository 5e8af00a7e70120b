"""ALBERT: blocks that share their weights, all of them or group by group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from beem_plugin.backbones.backbone import BackboneState
from beem_plugin.backbones.direct_block import DirectBlock, albert_block
from beem_plugin.backbones.direct_embeddings import DirectEmbeddings, direct_embeddings
from beem_plugin.backbones.transformer import TransformerBackbone
from beem_plugin.common.errors import ConfigurationError


class AlbertBackbone(TransformerBackbone):
    """
    `model_type` `albert`.

    A group may hold several inner layers (`inner_group_num`, 1 in every published model). Each of them is a block
    here, as each has its own entry in the hidden states that transformers returns.
    """

    @classmethod
    def depth(cls, config: Any) -> int:
        return config.num_hidden_layers * config.inner_group_num

    @classmethod
    def shorten(cls, config: Any, num_layers: int) -> None:
        # A group serves `num_hidden_layers / num_hidden_groups` calls in a row. A shorter model keeps that mapping only
        # if it ends where a group ends; with a single group it may end anywhere.
        calls = config.num_hidden_layers / config.num_hidden_groups
        step = config.inner_group_num * (1 if config.num_hidden_groups == 1 else calls)
        if num_layers % step:
            raise ConfigurationError(
                f"model.encoder.backbone.num_layers: found {num_layers}, this ALBERT shares its weights in groups, "
                f"so only multiples of {step:g} are possible"
            )
        config.num_hidden_layers = num_layers // config.inner_group_num
        if config.num_hidden_groups > 1:
            config.num_hidden_groups = round(config.num_hidden_layers / calls)

    @classmethod
    def pooler_of(cls, transformer_model: Any) -> Any | None:
        return transformer_model.pooler

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        embeddings = self.transformer_model.embeddings
        return self.after_embeddings(embeddings(batch["input_ids"], token_type_ids=batch.get("token_type_ids")))

    def after_embeddings(self, embedded: Tensor) -> Tensor:
        return self.transformer_model.encoder.embedding_hidden_mapping_in(embedded)

    def block(self, number: int, state: BackboneState) -> Tensor:
        return self._layer(number)(state.hidden_states, self.key_mask(state))

    def block_module(self, number: int) -> Any:
        return self._layer(number)

    def direct_block(self, number: int) -> DirectBlock | None:
        layer = self._layer(number)
        # Blocks that share their weights share their direct form.
        for block in self._direct_blocks.values():
            if block is not None and block.whole is layer:
                return block
        return albert_block(layer)

    def direct_embeddings(self) -> DirectEmbeddings | None:
        return direct_embeddings(self.transformer_model.embeddings)

    def _layer(self, number: int) -> Any:
        call, inner = divmod(number - 1, self.config.inner_group_num)
        # Written as transformers writes it, so that rounding puts the same call into the same group.
        group = int(call / (self.config.num_hidden_layers / self.config.num_hidden_groups))
        return self.transformer_model.encoder.albert_layer_groups[group].albert_layers[inner]
