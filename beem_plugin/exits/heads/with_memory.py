"""Heads that read earlier exits: Zero Time Waste's cascade of logits, and Global Past-Future's states and estimates."""

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from allennlp_light.modules.seq2vec_encoders.seq2vec_encoder import Seq2VecEncoder
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.exits.heads.head import ExitHead, HeadFamily, HeadSizes, PooledHead, new_classifier
from beem_plugin.exits.outputs import HeadOutput

logger = logging.getLogger(__name__)


class CascadedHead(PooledHead):
    """Its classifier reads the pooled vector and the previous head's logits after `normalization`, if not `None`."""

    remembers: ClassVar[tuple[str, ...]] = ("previous_logits",)

    def __init__(self, pooler: Seq2VecEncoder, num_labels: int, dropout: float, normalization: str | None) -> None:
        size = pooler.get_output_dim() + (0 if normalization is None else num_labels)
        super().__init__(pooler, new_classifier(size, num_labels), dropout)
        self.normalization = normalization
        self.norm = torch.nn.LayerNorm(num_labels) if normalization == "layer_norm" else None

    def classify(self, pooled: Tensor, memory: Mapping[str, Tensor]) -> HeadOutput:
        seen = self.dropout(pooled)
        if self.normalization is not None:
            seen = torch.cat([seen, self._normalize(memory["previous_logits"].detach()).to(seen.dtype)], -1)
        return HeadOutput(self.classifier(seen), pooled)

    def _normalize(self, logits: Tensor) -> Tensor:
        if self.norm is not None:
            return self.norm(logits.to(self.norm.weight.dtype))
        return logits.float().log_softmax(-1) if self.normalization == "log_softmax" else logits

    def memory_after(self, output: HeadOutput, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"previous_logits": output.logits}


@HeadFamily.register("cascaded")
class CascadedHeads(HeadFamily):
    """
    Zero Time Waste's cascade (Wolczyk et al. 2021, section 3.1): an exit's classifier reads the pooled vector and the
    logits of the previous exit, without a gradient to them. The first and the last exit have ordinary classifiers. The
    paper's own vector is the first token's: `pooler: "cls_pooler"`.

    Registered as a `HeadFamily` with name "cascaded".

    # Parameters

    normalization : `str`, optional (default = `"log_softmax"`)
        Of the previous exit's logits. `"log_softmax"` removes their arbitrary offset; `"none"` keeps the logits;
        `"layer_norm"`, as in the release, maps every pair of logits of a two-label task to -1 and 1, so that only
        the label remains.
    """

    def __init__(self, normalization: str = "log_softmax") -> None:
        check_choice("head.normalization", normalization, ("log_softmax", "none", "layer_norm"))
        self.normalization = normalization

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        if sizes.share_classifier:
            raise ConfigurationError(
                "share_classifier: found true with the head 'cascaded', whose classifiers take vectors of three sizes; "
                "allowed: false"
            )
        if self.normalization == "layer_norm" and sizes.num_labels == 2:
            logger.warning(
                "head.normalization 'layer_norm' maps any two logits to -1 and 1: the cascade passes on "
                "labels without confidence"
            )
        *early, last = sizes.poolers()
        heads: list[ExitHead] = [
            CascadedHead(pooler, sizes.num_labels, sizes.dropout, self.normalization if number else None)
            for number, pooler in enumerate(early)
        ]
        classifier = new_classifier(last.get_output_dim(), sizes.num_labels)
        return [*heads, PooledHead(last, classifier, sizes.dropout)]


class PastFutureHead(PooledHead):
    """`imitators`: one for each later exit, shared with the exits before that one; none at the last exit."""

    remembers: ClassVar[tuple[str, ...]] = ("past",)

    def __init__(
        self, pooler: Seq2VecEncoder, imitators: Sequence[torch.nn.Linear], classifier: torch.nn.Linear, dropout: float
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
