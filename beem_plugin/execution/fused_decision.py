"""The decision of each exit for one sample on a GPU, in two or three kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.common.kernel_launch import power_of_two
from beem_plugin.execution import fused_kernels
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.fused_rule import FusedRule, fused_rule
from beem_plugin.execution.pooled_heads import HeadWeights, head_weights
from beem_plugin.exits.policy import ExitPolicy

ROWS = 4
"""Rows of the pooler a program computes: 192 programs for 768, which is a wave on the card."""
LARGEST_TILE = 32768


class FusedDecisions:
    """
    # Parameters

    network : `SteppedNetwork`
    heads : `list[HeadWeights]`
        Of every exit.
    rule : `FusedRule`
    device : `torch.device`
    """

    def __init__(
        self, network: SteppedNetwork, heads: list[HeadWeights], rule: FusedRule, device: torch.device
    ) -> None:
        self.kernels: Any = fused_kernels
        self.heads, self.rule, self.labels = heads, rule, network.num_labels
        self.numbers = torch.tensor(rule.numbers, dtype=torch.float64, device=device)
        # Label and score before exit 1, 2, ...
        self.memory = torch.zeros(len(heads) + 1, 2, dtype=torch.float64, device=device)
        self.memory[0, 0] = -1.0
        self.pooled = [torch.empty_like(head.dense_bias) for head in heads]
        self.vectors = [torch.empty_like(head.dense_bias) for head in heads]
        self.is_direct = True
        """Whether the kernel writes into pinned memory itself, or a copy does."""
        self.rows = torch.zeros(len(heads), 2 + self.labels, dtype=torch.float64, device=device)

    def stage(self, staging: Tensor, inputs: Tensor, mask: Tensor) -> None:
        """
        # Parameters

        staging, inputs : `Tensor`
            `(rows, 1, tokens)` int64, pinned and on the device: what is copied, and where to.
        mask : `Tensor`
            `(1, tokens)` uint8 on the device: gets the last row.
        """
        size = staging.numel()
        self.kernels.stage[(-(-size // 256),)](staging, inputs, mask, size, mask.numel(), BLOCK=256)

    def run(self, exit_number: int, state: BackboneState, answer: Tensor) -> None:
        """
        Launches the kernels on the current stream.

        # Parameters

        exit_number : `int`
        state : `BackboneState`
            One sample, its hidden states contiguous.
        answer : `Tensor`
            `(2 + labels,)` float64, pinned or on the device: gets whether it leaves, score, log-probabilities.
        """
        index = exit_number - 1
        head, pooled, vector = self.heads[index], self.pooled[index], self.vectors[index]
        hidden = state.hidden_states
        size = hidden.shape[2]
        block = power_of_two(size)
        if head.is_mean:
            self.kernels.mean_vector[(-(-size // 64),)](
                hidden,
                state.attention_mask,
                vector,
                hidden.stride(1),
                size,
                LENGTH=hidden.shape[1],
                BLOCK=64,
                TOKENS=32,
            )
        else:
            vector = hidden
        self.kernels.dense_tanh[(-(-size // ROWS),)](
            vector, head.dense, head.dense_bias, pooled, size, ROWS=ROWS, BLOCK=block
        )
        self.kernels.decide[(1,)](
            pooled,
            head.classifier,
            head.classifier_bias,
            self.numbers[index],
            self.memory[index],
            self.memory[index + 1],
            answer if self.is_direct else self.rows[index],
            size,
            self.labels,
            RULE=self.rule.kind,
            SURER=self.rule.surer,
            STRICT=self.rule.strict,
            RESTART=self.rule.restart,
            LABELS=max(2, power_of_two(self.labels)),
            BLOCK=block,
        )
        if not self.is_direct:
            answer.copy_(self.rows[index], non_blocking=True)


def fused_decisions(network: SteppedNetwork, policy: ExitPolicy, device: torch.device) -> FusedDecisions | None:
    """`None` where there is no Triton, or the heads or the policy are not of the known kind."""
    rule = None if fused_kernels.triton is None or network.num_labels < 2 else fused_rule(policy)
    if rule is None:
        return None
    heads = [head_weights(network, number, policy) for number in range(1, network.num_exits + 1)]
    known = [head for head in heads if head is not None and head.dense.shape[0] == head.dense.shape[1]]
    if len(known) < len(heads):
        return None
    if max(2, power_of_two(network.num_labels)) * power_of_two(known[0].dense.shape[1]) > LARGEST_TILE:
        return None
    return FusedDecisions(network, known, rule, device)
