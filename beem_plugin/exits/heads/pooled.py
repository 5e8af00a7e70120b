"""Pooler, dropout, linear classifier: the head of BEEM, PABEE, DeeBERT, ElasticBERT and most others."""

from collections.abc import Mapping

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.exits.heads.head import NO_MEMORY, ExitHead, HeadFamily, HeadSizes
from beem_plugin.exits.outputs import HeadOutput
from beem_plugin.exits.poolers import as_input_of


class ClassifierHead(ExitHead):
    """A pooler and a classifier, either of which several exits may share; `dropout` is of the classifier's input."""

    def __init__(self, pooler: Seq2VecEncoder, classifier: torch.nn.Linear, dropout: float) -> None:
        super().__init__()
        self.pooler = pooler
        self.dropout = torch.nn.Dropout(dropout)
        self.classifier = classifier
        self.pooled_size = pooler.get_output_dim()

    def pool(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """`(batch, pooled_size)`: the pooled vector, before dropout."""
        # Poolers that divide by a number of tokens return float32 for any precision of the layers.
        return as_input_of(self.classifier, self.pooler(hidden_states, attention_mask))


class PooledHead(ClassifierHead):
    """The classifier reads the pooled vector."""

    @property
    def reads(self) -> str | None:
        return getattr(self.pooler, "reads", None)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        pooled = self.pool(hidden_states, attention_mask)
        return HeadOutput(self.classifier(self.dropout(pooled)), pooled)


@HeadFamily.register("pooled")
class PooledHeads(HeadFamily):
    """
    The encoder's `pooler`, dropout, and a linear classifier at every exit.

    Registered as a `HeadFamily` with name "pooled", the default.
    """

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        poolers = sizes.poolers()
        classifiers = sizes.classifiers(poolers[0].get_output_dim())
        return [PooledHead(*modules, sizes.dropout) for modules in zip(poolers, classifiers, strict=True)]
