"""What all exits of a network say about a batch, for the objective that trains them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class HeadOutput:
    """
    What one exit says.

    # Parameters

    logits : `Tensor`
        `(batch, labels)`
    pooled : `Tensor`
        `(batch, size)`, the vector that the classifier saw, before dropout.
    signals : `dict[str, Tensor]`, optional (default = `{}`)
        Further signals by name, each `(batch,)`.
    extras : `dict[str, Tensor]`, optional (default = `{}`)
        What a head has for its objective or for the next exits, each with the samples first.
    """

    logits: Tensor
    pooled: Tensor
    signals: dict[str, Tensor] = field(default_factory=dict)
    extras: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class ExitOutputs:
    """
    What all exits say.

    # Parameters

    logits : `Tensor`
        `(batch, exits, labels)` float32
    pooled : `list[Tensor]`, optional (default = `[]`)
        For each exit the vector that its classifier saw, `(batch, size)`.
    signals : `dict[str, Tensor]`, optional (default = `{}`)
        Further signals by name (`predicted_error`, `halt`, ...), each `(batch, exits)`, with their gradient.
    extras : `dict[str, list[Tensor]]`, optional (default = `{}`)
        What the heads have for the objective, by name, one tensor an exit that has it, the samples first.
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
    """The outputs of the exits, one after the other, as one."""
    signals = {name: torch.stack([output.signals[name] for output in outputs], 1) for name in outputs[0].signals}
    names = {name: None for output in outputs for name in output.extras}
    return ExitOutputs(
        torch.stack([output.logits for output in outputs], 1),
        [output.pooled for output in outputs],
        signals,
        {name: [output.extras[name] for output in outputs if name in output.extras] for name in names},
    )
