"""A vocabulary head that reads the hidden states through a branch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from beem_plugin.exits.branches.branch import Branch
from beem_plugin.exits.vocabulary_heads.head import Memory, VocabularyHead


class BranchedVocabularyHead(VocabularyHead):
    """
    # Parameters

    branch : `Branch`
        One that does not mix tokens.
    head : `VocabularyHead`
    """

    def __init__(self, branch: Branch, head: VocabularyHead) -> None:
        super().__init__()
        self.branch = branch
        self.head = head
        self.remembers = head.remembers  # type: ignore[misc]

    def join(self, heads: Sequence[VocabularyHead]) -> None:
        self.head.join([head.head if isinstance(head, BranchedVocabularyHead) else head for head in heads])

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        return self.head.features(self.branch(hidden), memory)

    def memory_after(self, hidden: Tensor, memory: Memory) -> dict[str, Tensor]:
        return self.head.memory_after(self.branch(hidden), memory)

    def state(self, hidden: Tensor) -> Tensor | None:
        return self.head.state(self.branch(hidden))

    def imitated(self, hidden: Tensor) -> Tensor | None:
        return self.head.imitated(self.branch(hidden))

    def weight(self, output_weight: Tensor) -> Tensor:
        return self.head.weight(output_weight)

    def features_macs(self) -> int:
        linear = [part for part in self.branch.modules() if isinstance(part, torch.nn.Linear)]
        return self.head.features_macs() + sum(part.in_features * part.out_features for part in linear)
