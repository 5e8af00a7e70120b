"""A linear map in place of the blocks that are skipped."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.exits.vocabulary_heads.head import Memory, VocabularyHead, identity
from beem_plugin.exits.vocabulary_heads.tied import TiedHead


@VocabularyHead.register("linear_shortcut")
class LinearShortcutHead(TiedHead):
    """
    A linear map of the hidden state, in place of the blocks that are skipped (Din et al. 2023, "Jump to conclusions"),
    then as `"tied"`. It is initialized to the identity, so that the head is initially a tied one.

    Registered as a `VocabularyHead` with name "linear_shortcut".

    # Parameters

    norm, output_weight
        Filled in.
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor) -> None:
        super().__init__(norm, output_weight)
        self.shortcut = identity(output_weight.shape[1])

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        return self.norm(self.shortcut(hidden))

    def features_macs(self) -> int:
        return self.shortcut.in_features * self.shortcut.out_features
