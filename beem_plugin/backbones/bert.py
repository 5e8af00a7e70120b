"""BERT and the families whose blocks have its structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from beem_plugin.backbones.transformer import TransformerBackbone


class BertBackbone(TransformerBackbone):
    """`model_type` `bert`."""

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.transformer_model.embeddings(batch["input_ids"], token_type_ids=batch.get("token_type_ids"))


class RobertaBackbone(BertBackbone):
    """`model_type` `roberta`, `xlm-roberta` or `camembert`: positions count from the padding id."""

    @classmethod
    def position_padding(cls, config: Any) -> int | None:
        return config.pad_token_id


class ElectraBackbone(BertBackbone):
    """`model_type` `electra`: the embeddings may be narrower than the blocks."""

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        embedded = super().embed_tokens(batch)
        # The projection exists only where the two widths differ.
        project = getattr(self.transformer_model, "embeddings_project", None)
        return embedded if project is None else project(embedded)


class DistilBertBackbone(TransformerBackbone):
    """`model_type` `distilbert`: no token types."""

    def block_module(self, number: int) -> Any:
        return self.transformer_model.transformer.layer[number - 1]
