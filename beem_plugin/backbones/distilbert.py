"""DistilBERT: BERT without token types and without a pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from beem_plugin.backbones.backbone import BackboneState
from beem_plugin.backbones.direct_block import DirectBlock, distilbert_block
from beem_plugin.backbones.direct_embeddings import DirectEmbeddings, direct_embeddings
from beem_plugin.backbones.transformer import TransformerBackbone


class DistilBertBackbone(TransformerBackbone):
    """`model_type` `distilbert`."""

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.transformer_model.embeddings(batch["input_ids"])

    def block(self, number: int, state: BackboneState) -> Tensor:
        return self.transformer_model.transformer.layer[number - 1](state.hidden_states, self.key_mask(state))

    def block_module(self, number: int) -> Any:
        return self.transformer_model.transformer.layer[number - 1]

    def direct_block(self, number: int) -> DirectBlock | None:
        return distilbert_block(self.transformer_model.transformer.layer[number - 1])

    def direct_embeddings(self) -> DirectEmbeddings | None:
        return direct_embeddings(self.transformer_model.embeddings)
