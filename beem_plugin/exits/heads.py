"""What one exit adds to the backbone."""

from __future__ import annotations

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor


class ExitHead(torch.nn.Module):
    """
    Pooler, dropout, linear classifier: what one exit adds to the backbone.

    # Parameters

    pooler : `Seq2VecEncoder`
        Several exits may share one.
    num_labels : `int`
    dropout : `float`
    """

    def __init__(self, pooler: Seq2VecEncoder, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.pooler = pooler
        self.dropout = torch.nn.Dropout(dropout)
        self.classifier = torch.nn.Linear(pooler.get_output_dim(), num_labels)
        torch.nn.init.normal_(self.classifier.weight, std=0.02)
        torch.nn.init.zeros_(self.classifier.bias)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """`(batch, tokens, hidden)` and a bool mask `(batch, tokens)` to `(batch, labels)` logits."""
        # Poolers that divide by a count of tokens give float32, whatever the precision of the layers.
        pooled = self.pooler(hidden_states, attention_mask).to(self.classifier.weight.dtype)
        return self.classifier(self.dropout(pooled))
