"""RoBERTa and its relatives: BERT's blocks, positions counted from the padding id."""

from __future__ import annotations

from typing import Any

from beem_plugin.backbones.bert import BertBackbone
from beem_plugin.backbones.direct_embeddings import DirectEmbeddings, direct_embeddings


class RobertaBackbone(BertBackbone):
    """`model_type` `roberta`, `xlm-roberta` or `camembert`."""

    @classmethod
    def longest_input(cls, config: Any) -> int | None:
        # The first real token has position padding id + 1.
        return config.max_position_embeddings - config.pad_token_id - 1

    def direct_embeddings(self) -> DirectEmbeddings | None:
        return direct_embeddings(self.transformer_model.embeddings, pad_token=self.config.pad_token_id)
