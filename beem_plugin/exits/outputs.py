"""The outputs of all exits for a batch, for the training objective."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class HeadOutput:
    """The output of one exit head."""

    logits: Tensor  # (batch, labels)
    pooled: Tensor  # (batch, size), the classifier's input before dropout
    signals: dict[str, Tensor] = field(default_factory=dict)  # further signals by name, each (batch,)
    extras: dict[str, Tensor] = field(default_factory=dict)  # for the objective or later exits, the samples first


@dataclass
class ExitOutputs:
    """The outputs of all exits."""

    logits: Tensor  # (batch, exits, labels) float32
    pooled: list[Tensor] = field(default_factory=list)  # (batch, size) of each exit
    signals: dict[str, Tensor] = field(default_factory=dict)  # (batch, exits) by name, with their gradient
    extras: dict[str, list[Tensor]] = field(default_factory=dict)  # by name, one per exit that has it
    inputs: dict[str, Tensor] = field(default_factory=dict)  # the batch that the network read
    hidden_states: list[Tensor] = field(default_factory=list)  # in training, what each exit read


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
