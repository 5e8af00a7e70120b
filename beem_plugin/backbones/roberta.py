"""RoBERTa and its relatives: BERT's blocks, positions counted from the padding id."""

from __future__ import annotations

from typing import Any

from beem_plugin.backbones.bert import BertBackbone
from beem_plugin.backbones.direct_embeddings import DirectEmbeddings, direct_embeddings


class RobertaBackbone(BertBackbone):
    """`model_type` `roberta`, `xlm-roberta` or `camembert`."""

    @classmethod
    def position_padding(cls, config: Any) -> int | None:
        return config.pad_token_id

    def direct_embeddings(self) -> DirectEmbeddings | None:
        return direct_embeddings(self.transformer_model.embeddings, pad_token=self.config.pad_token_id)
