"""Heads with a fixed classifier: ETFEE's equiangular tight frame."""

import math
from collections.abc import Mapping

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.heads.head import ExitHead, HeadFamily, HeadSizes, PooledHead
from beem_plugin.exits.outputs import HeadOutput


class EquiangularHead(PooledHead):
    """`frame` is `(pooled_size, labels)`, stored and not trained; see `EquiangularHeads`."""

    frame: Tensor

    def __init__(self, pooler: Seq2VecEncoder, frame: Tensor, dropout: float) -> None:
        super().__init__(pooler, torch.nn.Identity(), dropout)
        self.norm = torch.nn.BatchNorm1d(self.pooled_size)
        self.register_buffer("frame", frame)

    @property
    def reader(self) -> torch.nn.Module:
        return self.norm

    def classify(self, pooled: Tensor, memory: Mapping[str, Tensor]) -> HeadOutput:
        norm, alone = self.norm, len(pooled) == 1  # a single sample has no variance to train with
        own = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        vectors = self.dropout(pooled)
        vectors = functional.batch_norm(vectors, *own, eps=norm.eps) if alone else norm(vectors)
        return HeadOutput(functional.normalize(vectors, dim=-1, eps=1e-8) @ self.frame, pooled)


@HeadFamily.register("equiangular")
class EquiangularHeads(HeadFamily):
    """
    ETFEE (Ji et al. 2023, as released): the logits of exit i are

        z_i = M_i^T h / |h|,  h = BatchNorm_i(pooled),  M_i = sqrt(C / (C - 1)) P_i (I - 1 1^T / C)

    for C labels, where P_i has orthonormal columns drawn at random. M_i is a simplex equiangular tight frame: its
    columns have length 1 and the same angle to each other. It is not trained. Logits lie between -1 and 1, so that with
    two labels no probability exceeds 0.88.

    Registered as a `HeadFamily` with name "equiangular".
    """

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        if sizes.share_classifier:
            raise ConfigurationError("share_classifier: found true with the head 'equiangular', allowed: false")
        poolers = sizes.poolers()
        size = poolers[0].get_output_dim()
        if not 2 <= sizes.num_labels <= size:
            raise ConfigurationError(
                f"head 'equiangular': found {sizes.num_labels} labels, allowed: 2 to {size}, the size of the vectors"
            )
        return [EquiangularHead(pooler, tight_frame(size, sizes.num_labels), sizes.dropout) for pooler in poolers]


def tight_frame(size: int, labels: int) -> Tensor:
    """`(size, labels)` a simplex equiangular tight frame in random directions."""
    directions = torch.linalg.qr(torch.randn(size, labels))[0]
    return math.sqrt(labels / (labels - 1)) * directions @ (torch.eye(labels) - 1 / labels)
