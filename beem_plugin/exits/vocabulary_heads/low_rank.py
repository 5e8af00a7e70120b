"""A vocabulary matrix of low rank."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.exits.vocabulary_heads.head import Memory, VocabularyHead
from beem_plugin.exits.vocabulary_heads.tied import TiedHead


@VocabularyHead.register("low_rank")
class LowRankHead(TiedHead):
    """
    A vocabulary matrix of rank r, as a product of two: r (vocabulary + hidden) multiply-accumulates per token
    instead of vocabulary x hidden, so that an exit costs less than the blocks it saves. They are initialized to the
    best approximation of the decoder's matrix, by singular value decomposition.

    Registered as a `VocabularyHead` with name "low_rank".

    # Parameters

    norm, output_weight
        Filled in.
    rank : `int`, optional (default = `64`)
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor, rank: int = 64) -> None:
        super().__init__(norm, output_weight)
        vocabulary, hidden = output_weight.shape
        if not 1 <= rank <= min(vocabulary, hidden):
            raise ConfigurationError(f"head.rank: found {rank}, allowed: 1 to {min(vocabulary, hidden)}")
        self.rank = rank
        self.down = torch.nn.Linear(hidden, rank, bias=False)
        with torch.no_grad():
            # The right singular vectors are those of the small matrix W^T W; the left ones follow.
            _, vectors = torch.linalg.eigh((output_weight.T @ output_weight).double())
            basis = vectors[:, -rank:].to(output_weight.dtype)  # (hidden, rank)
            self.down.weight.copy_(basis.T)
            self.words = torch.nn.Parameter(output_weight @ basis)  # the name in archives

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        return self.down(self.norm(hidden))

    def weight(self, output_weight: Tensor) -> Tensor:
        return self.words

    def features_macs(self) -> int:
        return self.down.in_features * self.rank
