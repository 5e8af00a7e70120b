"""BERT, and the families whose blocks are called as BERT's are."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from beem_plugin.backbones.backbone import BackboneState
from beem_plugin.backbones.direct_block import DirectBlock, bert_block
from beem_plugin.backbones.direct_embeddings import DirectEmbeddings, direct_embeddings
from beem_plugin.backbones.transformer import TransformerBackbone


class BertBackbone(TransformerBackbone):
    """`model_type` `bert`."""

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.transformer_model.embeddings(batch["input_ids"], token_type_ids=batch.get("token_type_ids"))

    def block(self, number: int, state: BackboneState) -> Tensor:
        return self.transformer_model.encoder.layer[number - 1](state.hidden_states, self.key_mask(state))

    def direct_block(self, number: int) -> DirectBlock | None:
        return bert_block(self.transformer_model.encoder.layer[number - 1])

    def direct_embeddings(self) -> DirectEmbeddings | None:
        return direct_embeddings(self.transformer_model.embeddings)
