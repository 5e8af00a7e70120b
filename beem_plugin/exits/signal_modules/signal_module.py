"""Base class of modules that compute signals in addition to logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from beem_plugin.common.registry import Registrable


@dataclass
class ExitView:
    """
    The inputs of a signal module at one exit.

    # Parameters

    exit_number : `int`
        From 1.
    logits : `Tensor`
        `(batch, labels)` float32
    pooled : `Tensor`
        `(batch, size)`
    hidden_states, attention_mask : `Tensor`
        `(batch, tokens, hidden)` and `(batch, tokens)` bool.
    memory : `Mapping[str, Tensor]`
        Tensors of earlier exits (`previous_pooled`), and `previous_hidden_states`, the input of the block that the exit
        reads, for modules that declare them. At exit 1 there is no `previous_pooled`.
    """

    exit_number: int
    logits: Tensor
    pooled: Tensor
    hidden_states: Tensor
    attention_mask: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)


class SignalModule(torch.nn.Module, Registrable):
    """
    Produces the signal `name` at every exit: the block `signals` of a multi-exit encoder.

    Built with `num_exits`, `pooled_size` and `num_labels`, which the encoder fills in.
    """

    name: ClassVar[str]
    needs_previous_pooled: ClassVar[bool] = False
    needs_previous_hidden_states: ClassVar[bool] = False

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int) -> None:
        super().__init__()
        self.num_exits = num_exits
        self.pooled_size = pooled_size
        self.num_labels = num_labels

    def forward(self, view: ExitView) -> Tensor:
        """`(batch,)` float32"""
        raise TypeError(f"{type(self).__name__} does not define forward")
