"""The contract of objectives: losses over all exits."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable, names_where, registered_name
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

    serves_regression: bool = False  # whether it works for a regression, whose exits give one value
    exit_layers: tuple[int, ...] | None = None  # the layers with an exit, once bound; `None`: every layer
    schedule: Tensor
    """`(2,)` steps done and planned, updated in place, so that a captured CUDA graph reads the current values."""

    _progress: tuple[int, int] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("schedule", torch.tensor([0.0, 1.0]), persistent=False)

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        """
        Called before training with the layer of each exit, the last the depth, and the number of labels, 1 for
        a regression: checks them, creates what there is one of per exit, and binds inner objectives.
        """
        if num_labels == 1 and not self.serves_regression:
            raise ConfigurationError(
                f"objective {registered_name(Objective, self)}: found a regression, whose exits give no probabilities; "
                f"allowed: {names_where(Objective, 'serves_regression')}"
            )
        self.exit_layers = tuple(exit_layers)
        for part in self._inner():
            part.bind(exit_layers, num_labels)

    def start_training(self, vocab: Vocabulary, tokenizer: Any) -> None:
        """Called before training with the labels and the tokenizer, or `None`, also of inner objectives."""
        for part in self._inner():
            part.start_training(vocab, tokenizer)

    def _inner(self) -> "list[Objective]":
        return [part for part in self.children() if isinstance(part, Objective)]

    def start_step(self, step: int, total_steps: int) -> None:
        """
        Called before each optimizer step with the steps done and planned, on which alone schedules depend, here
        and for inner objectives. In evaluation the loss is the same for all steps.
        """
        self._progress = step, total_steps
        self.schedule[0], self.schedule[1] = step, total_steps
        for part in self._inner():
            part.start_step(step, total_steps)

    @property
    def progress(self) -> tuple[int, int]:
        """Steps done and planned; a `RuntimeError` if no step was started."""
        if self._progress is None:
            raise RuntimeError(f"{type(self).__name__} depends on the step: call start_step before each step")
        return self._progress

    def done(self) -> Tensor:
        """The share of the steps that is done, a scalar: 0 in the first step, 1 in the last."""
        _ = self.progress
        return (self.schedule[0] / (self.schedule[1] - 1).clamp_min(1)).clamp_max(1)

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        """As `forward`, which this calls with the logits unless a subclass does otherwise."""
        return self(outputs.logits, label)

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        """
        `loss`, a scalar, the mean over the samples, and its components by name, detached, for the log, of `(batch,
        exits, labels)` logits and `(batch,)` int64 labels; samples with label -1 are ignored. Labels of a regression
        are floating, NaN where unknown.
        """
        raise TypeError(f"{type(self).__name__} does not define forward")
