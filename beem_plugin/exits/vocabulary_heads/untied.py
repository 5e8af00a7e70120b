"""A vocabulary matrix for each exit."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.exits.vocabulary_heads.head import VocabularyHead
from beem_plugin.exits.vocabulary_heads.tied import TiedHead


@VocabularyHead.register("untied")
class UntiedHead(TiedHead):
    """
    A separate layer normalisation and vocabulary matrix per exit, initialized from the decoder's: vocabulary x hidden
    parameters per exit (CapEEN: 464 M for the 12 exits of GPT-2).

    Registered as a `VocabularyHead` with name "untied".

    # Parameters

    norm, output_weight
        Filled in.
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor) -> None:
        super().__init__(norm, output_weight)
        self.words = torch.nn.Parameter(output_weight.detach().clone())  # the name in archives

    def weight(self, output_weight: Tensor) -> Tensor:
        return self.words
