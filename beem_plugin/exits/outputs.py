"""The outputs of all exits for a batch, for the training objective."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class HeadOutput:
    """
    The output of one exit head.

    # Parameters

    logits : `Tensor`
        `(batch, labels)`
    pooled : `Tensor`
        `(batch, size)`, the classifier's input before dropout.
    signals : `dict[str, Tensor]`, optional (default = `{}`)
        Further signals by name, each `(batch,)`.
    extras : `dict[str, Tensor]`, optional (default = `{}`)
        Tensors of a head for its objective or the next exits, each with the samples first.
    """

    logits: Tensor
    pooled: Tensor
    signals: dict[str, Tensor] = field(default_factory=dict)
    extras: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class ExitOutputs:
    """
    The outputs of all exits.

    # Parameters

    logits : `Tensor`
        `(batch, exits, labels)` float32
    pooled : `list[Tensor]`, optional (default = `[]`)
        For each exit the classifier's input before dropout, `(batch, size)`.
    signals : `dict[str, Tensor]`, optional (default = `{}`)
        Further signals by name (`predicted_error`, `halt`, ...), each `(batch, exits)`, with their gradient.
    extras : `dict[str, list[Tensor]]`, optional (default = `{}`)
        Tensors of the heads for the objective, by name, one per exit that has it, the samples first.
    inputs : `dict[str, Tensor]`, optional (default = `{}`)
        The batch that the network read.
    hidden_states : `list[Tensor]`, optional (default = `[]`)
        In training, for each exit the backbone's output that it read, `(batch, tokens, hidden)`.
    """

    logits: Tensor
    pooled: list[Tensor] = field(default_factory=list)
    signals: dict[str, Tensor] = field(default_factory=dict)
    extras: dict[str, list[Tensor]] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    hidden_states: list[Tensor] = field(default_factory=list)


def collect(outputs: list[HeadOutput]) -> ExitOutputs:
    """Joins the outputs of the exits."""
    signals = {name: torch.stack([output.signals[name] for output in outputs], 1) for name in outputs[0].signals}
    names = {name: None for output in outputs for name in output.extras}
    return ExitOutputs(
        torch.stack([output.logits for output in outputs], 1),
        [output.pooled for output in outputs],
        signals,
        {name: [output.extras[name] for output in outputs if name in output.extras] for name in names},
    )
