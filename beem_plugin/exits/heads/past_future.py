"""Heads that read the states of earlier exits and estimates of later ones: Global Past-Future."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.exits.heads.head import ExitHead, HeadFamily, HeadSizes, PooledHead
from beem_plugin.exits.outputs import HeadOutput


class PastFutureHead(PooledHead):
    """`imitators`: one for each later exit, shared with the exits before that one; none at the last exit."""

    remembers: ClassVar[tuple[str, ...]] = ("past",)

    def __init__(
        self,
        pooler: Seq2VecEncoder,
        imitators: Sequence[torch.nn.Linear],
        classifier: torch.nn.Linear,
        dropout: float,
    ) -> None:
        super().__init__(pooler, classifier, dropout)
        self.imitators = torch.nn.ModuleList(imitators)
        self.gate = torch.nn.Linear(2 * self.pooled_size, 1) if imitators else None

    def classify(self, pooled: Tensor, memory: Mapping[str, Tensor]) -> HeadOutput:
        state = pooled
        past = memory["past"] + state if "past" in memory else state
        if self.gate is None:
            return HeadOutput(self.classifier(self.dropout(past)), state)
        imitated = torch.stack([torch.tanh(imitator(state)) for imitator in self.imitators], 1)
        future = imitated.sum(1)
        share = torch.sigmoid(self.gate(torch.cat([past, future], -1)))  # (batch, 1), weight of the past
        mixed = 2 * share * past + (2 - 2 * share) * future
        return HeadOutput(self.classifier(self.dropout(mixed)), state, extras={"imitated": imitated})

    def memory_after(self, output: HeadOutput, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = output.pooled.detach()
        return {"past": memory["past"] + state if "past" in memory else state}


@HeadFamily.register("past_future")
class PastFutureHeads(HeadFamily):
    """
    Global Past-Future early exit (Liao et al. 2021). Exit i's pooler computes the state s_i. The states of later exits
    j are imitated by tanh(W_j s_i), with one W_j for each j, shared by the exits before j. The classifier reads

        2 lambda_i (s_1 + ... + s_i) + (2 - 2 lambda_i) (imitations of s_{i+1} ... s_L)

    where lambda_i is the sigmoid of a linear map of both sums. States of earlier exits get no gradient from later ones.
    The classifier of the last exit reads the sum of the states.

    In addition to each exit's `pooled` s_i, the objective gets the extra `imitated` `(batch, later exits, size)` of all
    exits but the last: the exit's estimates of the later exits' `pooled`. The paper has one pooler per exit,
    `share_pooler: false`.

    Registered as a `HeadFamily` with name "past_future".
    """

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        poolers = sizes.poolers()
        size = poolers[0].get_output_dim()
        imitators = [torch.nn.Linear(size, size) for _ in poolers[1:]]
        return [
            PastFutureHead(pooler, imitators[number:], classifier, sizes.dropout)
            for number, (pooler, classifier) in enumerate(zip(poolers, sizes.classifiers(size), strict=True))
        ]
