"""Base class of models."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Registrable
from beem_plugin.data.instance import Instance
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy, check_signals
from beem_plugin.objectives import Objective, WeightedDistillation


class Model(torch.nn.Module, Registrable):
    """
    A network with a loss and metrics.

    `forward` takes the tensors of the data loader's collator and returns a dictionary with at least `logits`, and
    `loss` if there are labels. In training mode `forward` updates the metrics. In evaluation the caller gathers the
    outputs of all processes and calls `update_metrics`, so that every sample counts once for any number of processes.

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
        """The module with exits; it has `exit_layers` and `num_labels`."""
        raise ConfigurationError(f"found a model {type(self).__name__}, allowed: one with exits")

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, **batch: Tensor) -> dict[str, Any]:
        """Logits, and the mean loss of the batch if it has labels."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raises a `ConfigurationError` if the ids of the reader's tokenizer, `None` without one, do not fit."""

    def check_objective(self) -> None:
        """Binds a new `objective` to the network; raises a `ConfigurationError` if the two do not fit."""

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens of an input; `None` if there is no limit."""
        return None

    def prepare(self, instances: Sequence[Instance]) -> None:
        """Called once before training with the training data, to compute statistics of them."""

    def start_step(self, step: int, total_steps: int) -> None:
        """Called before each optimizer step, with the numbers of completed and planned steps, for schedules."""

    def update_metrics(self, logits: Tensor, label: Tensor) -> None:
        """Adds the samples of one (gathered) batch; samples without a label (-1) are ignored."""
        raise TypeError(f"{type(self).__name__} does not define update_metrics")

    def loss_units(self, batch: Mapping[str, Tensor]) -> int | None:
        """
        The number of units that the loss of a batch is a mean over, to weight the losses of several batches and
        processes. `None`, the default, stands for the number of samples; for captions it is the number of tokens.
        """
        return None

    def parts(self) -> dict[str, list[torch.nn.Parameter]]:
        """Groups of parameters by name; `no_grad` refers to a group as "@NAME"."""
        return {}

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        """The metrics over all samples since the last reset."""
        return {}

    def metric_state(self) -> dict[str, Any] | None:
        """
        The accumulated metrics, for checkpoints and for sums over processes: lists are joined, numbers and tensors
        added, dictionaries merged. `None`, the default, if a model does not support this.
        """
        return None

    def load_metric_state(self, state: dict[str, Any]) -> None:
        """The inverse of `metric_state`."""
        raise TypeError(f"{type(self).__name__} does not define load_metric_state")


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode within the block; restores the mode of every module."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        model.train(modes[model])
        for module, is_training in modes.items():
            module.training = is_training


class ExitModel(Model):
    """A model whose `metrics` collect the outputs of all exits."""

    metrics: Any
    objective: Objective
    exit_policy: ExitPolicy

    def _set_rules(self, objective: Objective | None, exit_policy: ExitPolicy | None) -> None:
        """Sets both, or their defaults, and checks them against the network, so that errors come before training."""
        self.objective = objective if objective is not None else WeightedDistillation()
        self.exit_policy = exit_policy if exit_policy is not None else Final()
        network = self.exit_network
        self.exit_policy.bind(network.exit_layers, network.num_labels)
        check_signals(self.exit_policy, network.available_signals, "the model")
        self.check_objective()

    def start_step(self, step: int, total_steps: int) -> None:
        self.objective.start_step(step, total_steps)
        self.exit_network.start_step(step, total_steps)

    def parts(self) -> dict[str, list[torch.nn.Parameter]]:
        """
        `backbone`, `exits` (all heads, branches included), `branches`, `last_exit`, `early_exits` (parameters of heads
        that are not shared with the last one), `signals`, `objective`; those that have parameters.
        """
        network = self.exit_network
        last, exits = list(network.exits[-1].parameters()), list(network.exits.parameters())
        in_last = {id(parameter) for parameter in last}
        parts = {
            "backbone": list(network.backbone.parameters()),
            "exits": exits,
            "branches": [value for name, value in network.exits.named_parameters() if ".branch." in name],
            "last_exit": last,
            "early_exits": [parameter for parameter in exits if id(parameter) not in in_last],
            "signals": list(network.signal_modules.parameters()),
            "objective": list(self.objective.parameters()),
        }
        return {name: parameters for name, parameters in parts.items() if parameters}

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        return self.metrics.compute(reset)

    def metric_state(self) -> dict[str, Any]:
        """The accumulated metrics, for a checkpoint within an epoch."""
        return self.metrics.state_dict()

    def load_metric_state(self, state: dict[str, Any]) -> None:
        self.metrics.load_state_dict(state)
