"""ELECTRA: BERT's blocks after embeddings that may be narrower than the blocks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from beem_plugin.backbones.bert import BertBackbone


class ElectraBackbone(BertBackbone):
    """`model_type` `electra`."""

    def embed_tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.after_embeddings(super().embed_tokens(batch))

    def after_embeddings(self, embedded: Tensor) -> Tensor:
        # The projection exists only where the two widths differ.
        project = getattr(self.transformer_model, "embeddings_project", None)
        return embedded if project is None else project(embedded)
