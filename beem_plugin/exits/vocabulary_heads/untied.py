"""A vocabulary matrix for each exit."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.exits.vocabulary_heads.head import Memory, VocabularyHead, copied_norm


@VocabularyHead.register("untied")
class UntiedHead(VocabularyHead):
    """
    A separate layer normalisation and vocabulary matrix per exit, initialized from the decoder's: vocabulary x hidden
    parameters per exit (CapEEN: 464 M for the 12 exits of GPT-2).

    Registered as a `VocabularyHead` with name "untied".

    # Parameters

    norm, output_weight
        Filled in.
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor) -> None:
        super().__init__()
        self.norm = copied_norm(norm)
        self.words = torch.nn.Parameter(output_weight.detach().clone())  # the name in archives

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        return self.norm(hidden)

    def weight(self, output_weight: Tensor) -> Tensor:
        return self.words
