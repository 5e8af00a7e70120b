"""The ordinary head, pooler and classifier, found in a network so that it can be computed with less ado."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.backbones.untouched import is_touched
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.exits.heads.pooled import PooledHead
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signals import ExitSignals

TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 2e-1}
"""How far logits computed in another order may lie from the network's own, relative to 1 + the largest of them."""


@dataclass
class HeadWeights:
    """
    What the head of one exit consists of: vector = first token or mean; logits = classifier(tanh(dense(vector))).

    # Parameters

    is_mean : `bool`
    dense, dense_bias, classifier, classifier_bias : `Tensor`
    """

    is_mean: bool
    dense: Tensor
    dense_bias: Tensor
    classifier: Tensor
    classifier_bias: Tensor

    @property
    def place(self) -> tuple[int, ...]:
        """Where the weights lie: another place means other weights."""
        return tuple(t.data_ptr() for t in (self.dense, self.dense_bias, self.classifier, self.classifier_bias))

    def logits(self, hidden_states: Tensor) -> list[float]:
        """Of one sample `(1, tokens, hidden)` without padding, on the CPU: four calls instead of a tree of modules."""
        vector = hidden_states[0].mean(0) if self.is_mean else hidden_states[0, 0]
        pooled = torch.addmv(self.dense_bias, self.dense, vector).tanh_()
        values: list[float] = torch.addmv(self.classifier_bias, self.classifier, pooled).tolist()
        return values

    def batch_logits(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """`(batch, labels)` float32 of a head that takes the mean: as a product with the mask, in one pass."""
        real = attention_mask.to(hidden_states.dtype)
        total = torch.bmm(real.unsqueeze(1), hidden_states).squeeze(1)
        mean = (total / attention_mask.sum(1, keepdim=True).float()).to(self.dense.dtype)
        pooled = torch.addmm(self.dense_bias, mean, self.dense.t()).tanh_()
        return torch.addmm(self.classifier_bias, pooled, self.classifier.t()).float()


class BatchHeads:
    """
    Reads the exits of a batch. The mean over tokens, which the ordinary pooler takes in several passes over all hidden
    states, is taken in one.

    # Parameters

    network : `SteppedNetwork`
    policy : `ExitPolicy`
    agreed : `set[tuple[int, ...]]`
        Places of head weights that were found to say what the network says; others are compared, and added.
    """

    def __init__(self, network: SteppedNetwork, policy: ExitPolicy, agreed: set[tuple[int, ...]]) -> None:
        self.network, self.agreed = network, agreed
        heads = [head_weights(network, number, policy) for number in range(1, network.num_exits + 1)]
        self.heads = [head if head is not None and head.is_mean else None for head in heads]

    def __call__(self, exit_number: int, state: BackboneState) -> ExitSignals:
        """What the exit says about the samples of `state`."""
        head = self.heads[exit_number - 1]
        if head is None:
            return self.network.exit_signals(exit_number, state)
        logits = head.batch_logits(state.hidden_states, state.attention_mask)
        if head.place not in self.agreed:
            if not agree(self.network, exit_number, state, logits):
                self.heads[exit_number - 1] = None
                return self.network.exit_signals(exit_number, state)
            self.agreed.add(head.place)
        return ExitSignals(logits)


def head_weights(network: SteppedNetwork, exit_number: int, policy: ExitPolicy) -> HeadWeights | None:
    """
    The weights of the exit's head if it is the ordinary one, nobody listens to it and the policy reads logits alone;
    `None` for any other, which is computed as the network computes it.
    """
    heads: Any = getattr(network, "exits", None)
    if policy.required_signals or heads is None or getattr(network, "looks_back", False):
        return None
    head = heads[exit_number - 1]
    if type(head) is not PooledHead or type(head.pooler) is not BertPooler or head.training:
        return None
    dense, classifier = head.pooler.dense, head.classifier
    parts = (dense.weight, dense.bias, classifier.weight, classifier.bias)
    if any(type(module) is not torch.nn.Linear for module in (dense, classifier)) or any(p is None for p in parts):
        return None
    if any(is_touched(module) for module in (head, head.pooler, head.dropout, dense, classifier)):
        return None
    return HeadWeights(head.pooler.pooling == "mean", *(part.detach() for part in parts))


def agree(network: SteppedNetwork, exit_number: int, state: BackboneState, logits: Tensor) -> bool:
    """Whether `logits` `(1, labels)` are what the network itself says at this exit, as near as its precision goes."""
    expected = network.exit_signals(exit_number, state).logits.double().cpu()
    tolerance = TOLERANCE.get(state.hidden_states.dtype, 1e-3) * (1 + float(expected.abs().max()))
    return bool((logits.double().cpu() - expected).abs().max() <= tolerance)
