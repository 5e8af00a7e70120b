"""DeeCap: a head over the states of earlier exits and estimates of the states of later exits."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.exits.vocabulary_heads.head import Memory, VocabularyHead, copied_norm, identity


@VocabularyHead.register("past_future")
class PastFutureHead(VocabularyHead):
    """
    DeeCap (Fei et al. 2022): an exit that reads the states of earlier exits, and imitates those of later ones. With s_i
    the state of a token at exit i of L, the input of the vocabulary matrix that all exits share is

        lambda_i mean(s_1 ... s_i) + (1 - lambda_i) mean(imitations of s_{i+1} ... s_L),

    lambda_i the sigmoid of a linear map of both means. The imitation of s_j is W_j s_i + b_j, with one W_j for each j,
    whichever exit imitates it. States of earlier exits get no gradient from later ones.

    s_i is the output of the exit's block after a separate layer normalisation, which is initialized from the decoder's
    final one; s_L is the input of the decoder's own output matrix. The paper's poolers end in tanh, and it sums:
    neither has the scale that a trained vocabulary matrix expects. Initially W_j is the identity and lambda_i is 1/2,
    so that a head is close to a tied one. The release imitates the next exit only.

    Used with the objective `imitation`, which trains the imitations.

    Registered as a `VocabularyHead` with name "past_future".
    """

    remembers: ClassVar[bool] = True

    def __init__(self, norm: torch.nn.LayerNorm, output_weight: Tensor, exit_number: int, num_exits: int) -> None:
        super().__init__()
        size = output_weight.shape[1]
        self.exit_number = exit_number
        self.norm = copied_norm(norm)
        self.gate = torch.nn.Linear(2 * size, 1)
        torch.nn.init.zeros_(self.gate.weight)
        torch.nn.init.zeros_(self.gate.bias)
        # The first one (for the state of the next exit) belongs to this head; `join` replaces the others.
        self.imitators = torch.nn.ModuleList(identity(size) for _ in range(exit_number, num_exits))

    def join(self, heads: Sequence[VocabularyHead]) -> None:
        later = [head for head in heads[self.exit_number :] if isinstance(head, PastFutureHead)]
        self.imitators = torch.nn.ModuleList([self.imitators[0], *(head.imitators[0] for head in later)])

    def state(self, hidden: Tensor) -> Tensor:
        """`(tokens, hidden)` s_i"""
        return self.norm(hidden)

    def imitated(self, hidden: Tensor) -> Tensor:
        """`(tokens, later exits, hidden)` the imitations of the states of later exits."""
        state = self.state(hidden)
        return torch.stack([imitator(state) for imitator in self.imitators], 1)

    def features(self, hidden: Tensor, memory: Memory | None = None) -> Tensor:
        past = (self.state(hidden) + self._before(hidden, memory or {})) / self.exit_number
        future = self.imitated(hidden).mean(1)
        share = torch.sigmoid(self.gate(torch.cat([past, future], -1)))  # (tokens, 1)
        return share * past + (1 - share) * future

    def _before(self, hidden: Tensor, memory: Memory) -> Tensor:
        """`(tokens, hidden)` the sum of the states of earlier exits."""
        return memory["past"] if self.exit_number > 1 else torch.zeros_like(hidden)

    def memory_after(self, hidden: Tensor, memory: Memory) -> dict[str, Tensor]:
        return {"past": (self.state(hidden) + self._before(hidden, memory)).detach()}

    def features_macs(self) -> int:
        size = self.gate.in_features // 2
        return len(self.imitators) * size * size + self.gate.in_features
