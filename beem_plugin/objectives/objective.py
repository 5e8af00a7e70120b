"""The contract of objectives: losses over all exits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable, registered_name
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.exits.outputs import ExitOutputs


class Objective(torch.nn.Module, Registrable):
    """
    A loss over the outputs of all exits. Objectives that need only logits define `forward`; others, which need signals
    or the heads' extras, define `loss`, the method that the model calls.
    """

    default_implementation = "weighted_distillation"

    required_signals: tuple[str, ...] = ()
    """Signals beside the logits that the objective trains: the encoder must produce them."""

    serves_regression: bool = False
    """Whether it works for a regression, whose exits give one value."""

    exit_layers: tuple[int, ...] | None = None
    """The layers with an exit, once bound; `None`: every layer."""

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        """
        Called once before training with the network's shape: checks the lengths of lists, and creates parameters of
        which there is one per exit.

        # Parameters

        exit_layers : `list[int]`
            The layer of each exit, rising; the last is the network's depth.
        num_labels : `int`
            1 for a regression.

        # Raises

        `ConfigurationError`
            For a regression, if the objective does not serve one.
        """
        if num_labels == 1 and not self.serves_regression:
            raise ConfigurationError(
                f"objective {registered_name(Objective, self)}: found a regression, whose exits give no probabilities; "
                f"allowed: {', '.join(regression_objectives())}"
            )
        self.exit_layers = tuple(exit_layers)

    def start_training(self, vocab: Vocabulary, tokenizer: Any) -> None:
        """
        Called once before training, with the model's labels and the reader's tokenizer (or `None`): loads what training
        needs beside the data. Inner objectives are called too.
        """
        for part in self.children():
            if isinstance(part, Objective):
                part.start_training(vocab, tokenizer)

    def start_step(self, step: int, total_steps: int) -> None:
        """
        Called in training before each optimizer step's first batch. Schedules depend on these arguments alone, so that
        a recovered run continues unchanged. In evaluation (`self.training` is false) an objective that alternates
        should have one loss for all steps.

        # Parameters

        step : `int`
            Completed optimizer steps: 0 before the first.
        total_steps : `int`
            Planned optimizer steps.
        """

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        """
        # Parameters

        outputs : `ExitOutputs`
        label : `Tensor`
            `(batch,)` int64; samples with label -1 are ignored.

        # Returns

        `dict[str, Tensor]`
            As `forward`, which this calls with the logits unless a subclass does otherwise.
        """
        return self(outputs.logits, label)

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        """
        # Parameters

        logits : `Tensor`
            `(batch, exits, labels)`
        label : `Tensor`
            `(batch,)` int64; samples with label -1 are ignored. Of a regression floating, NaN where unknown.

        # Returns

        `dict[str, Tensor]`
            `loss`, a scalar, the mean over the samples; and its components by name, detached, for the log.
        """
        raise TypeError(f"{type(self).__name__} does not define forward")


def regression_objectives() -> list[str]:
    """The registered objectives that serve a regression."""
    names = Objective.list_available()
    return sorted(name for name in names if Objective.resolve_class_name(name)[0].serves_regression)
