"""The base class of everything that is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable
from beem_plugin.data.instance import Instance
from beem_plugin.data.vocabulary import Vocabulary


class Model(torch.nn.Module, Registrable):
    """
    A network with a loss and metrics.

    `forward` takes the tensors that the data loader's collator made and returns a dictionary with at least `logits`,
    and `loss` when labels were given. In training mode it updates the metrics by itself; in evaluation the caller
    gathers the outputs of all processes first and hands them to `update_metrics`, so that every sample counts once
    however many processes there are.

    # Parameters

    vocab : `Vocabulary`
        The label names.
    """

    default_predictor: str | None = None
    task: str | None = None
    """The registered name of its `Task`."""

    default_evaluation: str | None = None
    """The old name of `task`."""

    def __init__(self, vocab: Vocabulary) -> None:
        super().__init__()
        self.vocab = vocab

    @property
    def exit_network(self) -> Any:
        """The part of the model whose exits a policy chooses between: it has `exit_layers` and `num_labels`."""
        raise ConfigurationError(f"found a model {type(self).__name__}, allowed: one with exits")

    def forward(self, **batch: Tensor) -> dict[str, Any]:
        """Logits, and the mean loss over the batch when it has labels."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def check_tokenizer(self, tokenizer: Any) -> None:
        """
        Called once the model is built, in training and when an archive is loaded. Raises a `ConfigurationError` if the
        model cannot take what the dataset reader's tokenizer makes.

        # Parameters

        tokenizer : `Any`
            `None` for a reader without one.
        """

    @property
    def max_tokens(self) -> int | None:
        """The longest input of text that the model takes; `None` for one without a limit."""
        return None

    def prepare(self, instances: Sequence[Instance]) -> None:
        """
        Called once before training, for what is counted rather than trained.

        # Parameters

        instances : `Sequence[Instance]`
            The training data.
        """

    def start_step(self, step: int, total_steps: int) -> None:
        """
        Called in training before each optimizer step's first batch, for what changes in the course of training.

        # Parameters

        step : `int`
            How many optimizer steps are done.
        total_steps : `int`
            How many are planned.
        """

    def update_metrics(self, logits: Tensor, label: Tensor) -> None:
        """Counts the samples of one (gathered) batch in; samples without a label (-1) do not count."""
        raise TypeError(f"{type(self).__name__} does not define update_metrics")

    def loss_units(self, batch: Mapping[str, Tensor]) -> int | None:
        """
        How many units the loss of a batch is the mean of, so that losses of several batches and processes can be put
        together exactly. `None`, the default, means its samples; of captions it is their words.
        """
        return None

    def parts(self) -> dict[str, list[torch.nn.Parameter]]:
        """Parameters that belong together by a name that `no_grad` takes after an "@"."""
        return {}

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        """The metrics over all samples since the last reset."""
        return {}
