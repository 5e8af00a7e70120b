"""The decoder's own vocabulary matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from beem_plugin.exits.vocabulary_heads.head import Memory, VocabularyHead, copied_norm


@VocabularyHead.register("tied")
class TiedHead(VocabularyHead):
    """
    A separate layer normalisation per exit, initialized from the decoder's final one, before the decoder's own
    vocabulary matrix: 2 x hidden parameters per exit. CALM, MuE and LayerSkip share the normalisation too
    (`share_norm`).

    Registered as a `VocabularyHead` with name "tied", which is the default.

    # Parameters

    norm, output_weight
        Filled in.
    share_norm : `bool`, optional (default = `False`)
        Use the decoder's final normalisation itself.
    """

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor, share_norm: bool = False) -> None:
        super().__init__()
        self.norm = norm if share_norm else copied_norm(norm)

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        return self.norm(hidden)
