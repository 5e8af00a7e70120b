"""One sample after another, layer by layer, with as little as possible beside the layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.pooled_heads import HeadWeights, agree, head_weights
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals

Answer = tuple[int, Tensor, Tensor | None]
"""Exit, log-probabilities `(1, labels)`, score `(1,)`."""


class SampleRunner:
    """
    Skips the heads of exits that cannot matter, and does not read the policy's result at exits where no sample can
    exit. On a CPU the ordinary head is computed without its modules.

    # Parameters

    network : `SteppedNetwork`
    policy : `ExitPolicy`
        Bound.
    device : `torch.device`
    plain : `bool`, optional (default = `True`)
        Whether the ordinary head may be computed without its modules.
    """

    def __init__(self, network: SteppedNetwork, policy: ExitPolicy, device: torch.device, plain: bool = True) -> None:
        self.network, self.policy, self.device = network, policy, device
        exits = range(1, network.num_exits + 1)
        self.asked = [number < network.num_exits and policy.can_leave(number) for number in exits]
        self.needed = [
            number == network.num_exits or asked or policy.needs(number) for number, asked in zip(exits, self.asked)
        ]
        self.heads: list[HeadWeights | None] = [None] * network.num_exits
        if plain and device.type == "cpu" and not policy.required_signals:
            self.heads = [head_weights(network, number, policy) for number in exits]
            self.heads = [
                head if head is not None and head.dense.dtype == torch.float32 else None for head in self.heads
            ]

    def __call__(self, batch: dict[str, Tensor], agreed: set[tuple[int, ...]]) -> Answer:
        """
        # Parameters

        batch : `dict[str, Tensor]`
            One sample without padding, on the device.
        agreed : `set[tuple[int, ...]]`
            Places of head weights that were found to say what the network says; others are compared, and added.
        """
        network, policy = self.network, self.policy
        state = network.embed(batch)
        memory = policy.start(1, network.num_exits, state.hidden_states.device)
        signals: Any = None
        for exit_number in range(1, network.num_exits + 1):
            state = network.advance(exit_number, state)
            if not self.needed[exit_number - 1]:
                continue
            signals = self._signals(exit_number, state, agreed)
            leaves, memory = policy.step(exit_number, signals, memory)
            if self.asked[exit_number - 1] and leaves.item():
                break
        return exit_number, policy.output(exit_number, signals, memory), policy.score(memory)

    def _signals(self, exit_number: int, state: Any, agreed: set[tuple[int, ...]]) -> Any:
        head = self.heads[exit_number - 1]
        if head is not None and head.place not in agreed:
            logits = torch.tensor([head.logits(state.hidden_states)])
            if agree(self.network, exit_number, state, logits):
                agreed.add(head.place)
            else:
                head = self.heads[exit_number - 1] = None
        if head is not None:
            return ExitSignals(torch.tensor([head.logits(state.hidden_states)]))
        return self.network.exit_signals(exit_number, state)
