"""A network and a policy, prepared for inference."""

from __future__ import annotations

import copy
import inspect
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.backbones import BackboneState
from beem_plugin.backbones.inference import inference_backbone
from beem_plugin.execution.compiled.origin import Origin
from beem_plugin.execution.compiled.policy_kernel import ClassifierSignals, Decider, make_decider
from beem_plugin.execution.stepped_network import SteppedNetwork, device_of
from beem_plugin.exits.heads.head import PooledHead
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.poolers import BertPooler
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.kernels import mean_tokens as mean_kernel
from beem_plugin.kernels.launch import triton


class CompiledNetwork:
    """
    A network and a policy, prepared for inference. It has the network's interface, and is immutable: when the network
    or the policy has changed, which `origin` tells, make a new one. The network is in evaluation mode, on its device;
    the policy, bound and calibrated, is copied.

    Blocks are computed by the backbone's inference form where it has one (see `backbones/inference.py`). A head that
    reads one vector a sample (the first token, or the mean of all tokens) gets this vector as a sequence of one token.
    The policy is stepped by a generated kernel on a GPU.

    `use_kernels` says whether blocks, token means and policy steps run in Triton kernels; by default where they serve,
    on a GPU. With `True` on a CPU, they run in Triton's interpreter. Without `policy_kernel` the policy is stepped by
    torch operations in any case.
    """

    def __init__(
        self,
        network: SteppedNetwork,
        policy: ExitPolicy,
        use_kernels: bool | None = None,
        policy_kernel: bool = True,
    ) -> None:
        self.origin = Origin(network, policy)
        self.network, self.policy = network, copy.deepcopy(policy)
        self.device = device_of(network)
        self._one_token = torch.ones(1, 1, dtype=torch.bool, device=self.device)
        self.num_exits, self.num_labels, self.exit_layers = network.num_exits, network.num_labels, network.exit_layers
        self.backbone = network.backbone
        self.output_per_token = getattr(network, "output_per_token", False)
        self._arguments: dict[str, Any] = {}
        if not self.origin.is_intercepted and "backbone" in inspect.signature(network.advance).parameters:
            faster = inference_backbone(network.backbone, use_kernels)
            if faster is not None:
                self.backbone = faster
                self._arguments = {"backbone": faster}
        exits = range(1, self.num_exits + 1)
        self.can_exit = {number: number < self.num_exits and self.policy.can_leave(number) for number in exits}
        """Whether samples can exit early at an exit."""
        self.needed = {
            number: number == self.num_exits or self.can_exit[number] or self.policy.needs(number) for number in exits
        }
        """Whether the head of an exit must be computed."""
        self._reads = {number: self._read_by(number) for number in exits}
        self.use_kernels = self.device.type == "cuda" if use_kernels is None else use_kernels
        self._policy_kernel = self.use_kernels and policy_kernel

    @cached_property
    def decider(self) -> Decider:
        with_kernel = self._policy_kernel and not self.output_per_token and not self.policy.adapts
        return make_decider(self.policy, self.device, with_kernel)

    @property
    def obstacle(self) -> str | None:
        """Why the steps of this network cannot be captured; `None` if they can."""
        if self.origin.is_intercepted:
            return "forward hooks, or a replaced forward, of a module"
        return getattr(self.network, "obstacle", None)

    @property
    def carries_memory(self) -> bool:
        """Whether an exit must be computed before the layers after it."""
        return getattr(self.network, "carries_memory", False)

    def _read_by(self, exit_number: int) -> str | None:
        """`"first"` or `"mean"` for a head that reads nothing but this vector of each sample."""
        heads = getattr(self.network, "exits", None)
        if heads is None or self.network.available_signals or self.carries_memory or self.origin.is_intercepted:
            return None
        return getattr(heads[exit_number - 1], "reads", None)

    def can_pack(self, longest: int) -> bool:
        """Whether samples of at most `longest` tokens can be packed: blocks and states allow it."""
        packs = getattr(self.backbone, "can_pack", None)
        return packs is not None and getattr(self.network, "is_packable", False) and packs(longest)

    def embed(self, batch: dict[str, Tensor]) -> BackboneState:
        return self.network.embed(batch, **self._arguments)

    def advance(self, exit_number: int, state: BackboneState) -> BackboneState:
        return self.network.advance(exit_number, state, **self._arguments)

    def exit_signals(self, exit_number: int, state: BackboneState) -> ExitSignals:
        reads = self._reads[exit_number]
        if reads is not None:
            vectors = first_tokens(state) if reads == "first" else mean_tokens(state, self.use_kernels)
            head = self.network.exits[exit_number - 1]  # type: ignore[attr-defined]
            if type(head) is PooledHead and type(head.classifier) is torch.nn.Linear:
                return ClassifierSignals(pooled(head, vectors), head.classifier)
            state = BackboneState(vectors[:, None], self._one_token.expand(len(vectors), 1))
        elif state.packed is not None:
            state = self.backbone.make_state(*state.packed.padded(state.hidden_states))
        return self.network.exit_signals(exit_number, state)


def pooled(head: PooledHead, vectors: Tensor) -> Tensor:
    """`head.pool` of `(samples, hidden)`; BERT's pooler without its modules, whose calls cost as much as the result."""
    dense = getattr(head.pooler, "dense", None)
    if type(head.pooler) is not BertPooler or type(dense) is not torch.nn.Linear:
        return head.pool(vectors[:, None])
    return functional.linear(vectors.to(dense.weight.dtype), dense.weight, dense.bias).tanh_()


def first_tokens(state: BackboneState) -> Tensor:
    """`(samples, hidden)`: the first token of each sample, padded or packed."""
    if state.packed is None:
        return state.hidden_states[:, 0]
    return state.hidden_states[0].index_select(0, state.packed.starts)


def mean_tokens(state: BackboneState, use_kernel: bool) -> Tensor:
    """`(samples, hidden)`: the mean over the tokens of each sample, padded or packed."""
    hidden, mask, packed = state.hidden_states, state.attention_mask, state.packed
    if use_kernel and triton is not None:
        return mean_kernel.mean_tokens(hidden.contiguous(), mask.contiguous() if packed is None else None, packed)
    return mean_kernel.mean_tokens_reference(hidden, mask, packed)
