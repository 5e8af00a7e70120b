"""Heads and policy steps for the captured graphs of batches."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from torch import Tensor

from beem_plugin.backbones import BackboneState
from beem_plugin.backbones.untouched import is_touched, is_written_down
from beem_plugin.execution import pool_kernels
from beem_plugin.execution.chunks import Chunk, first_chunks
from beem_plugin.execution.engine import SteppedNetwork
from beem_plugin.execution.fused_window import WindowKernels, holds_no_more, window_kernels
from beem_plugin.execution.pooling import compare_kernels, make_up_samples
from beem_plugin.exits.policy import ExitPolicy

logger = logging.getLogger(__name__)


class Decider(Protocol):
    """Asks the device nothing."""

    has_score: bool

    def logits(self, exit_number: int, state: BackboneState) -> Tensor: ...

    def decide(
        self, exit_number: int, logits: Tensor, rows: Tensor, state: dict[str, Tensor], flags: Tensor, is_last: bool
    ) -> None: ...


class KernelDecider:
    """
    With the kernels of `pool_kernels`.

    # Parameters

    kernels : `WindowKernels`
    """

    def __init__(self, kernels: WindowKernels) -> None:
        self.kernels = kernels
        self.has_score = kernels.rule.has_score

    def logits(self, exit_number: int, state: BackboneState) -> Tensor:
        """`(samples, labels)` float32"""
        lengths = torch.empty(len(state.hidden_states), dtype=torch.int64)  # which are only counted
        return self.kernels.logits(exit_number, [Chunk(state, lengths)])

    def decide(
        self, exit_number: int, logits: Tensor, rows: Tensor, state: dict[str, Tensor], flags: Tensor, is_last: bool
    ) -> None:
        """See `pool_kernels.decide`."""
        numbers = self.kernels.numbers[exit_number - 1]
        pool_kernels.decide(self.kernels.rule, numbers, exit_number, logits, rows, state, flags, is_last)


def kernels_for(
    network: SteppedNetwork, policy: ExitPolicy, device: torch.device, agreed: set[tuple[int, ...]]
) -> WindowKernels | None:
    """
    `None` where the heads or the policy are not of the known kind, or somebody listens to a module, which a graph does
    not call. Parameters as `window_kernels`.
    """
    modules = getattr(network.backbone, "modules", None)
    if modules is None or is_written_down(device.type) or any(is_touched(module) for module in modules()):
        return None
    return window_kernels(network, policy, device, agreed)


def checked_decider(
    network: SteppedNetwork, policy: ExitPolicy, device: torch.device, kernels: WindowKernels
) -> KernelDecider | None:
    """
    `None` for a network whose states hold more of a sample than what the backbone makes anew of its length, and, with a
    warning, if a few made-up samples get other answers than without kernels.
    """
    made_up = make_up_samples(getattr(network.backbone, "max_tokens", None)).to(device)
    if not holds_no_more(network.backbone, next(first_chunks(network, made_up, 64))):
        return None
    try:
        compare_kernels(network, policy, device, kernels)
    except Exception as error:  # Triton and its compiler fail in many ways
        first_line = (str(error).strip().splitlines() or [""])[0]
        logger.warning("CUDA graphs are not used for batches: %s: %s", type(error).__name__, first_line)
        return None
    return KernelDecider(kernels)
