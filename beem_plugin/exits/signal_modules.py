"""Modules that compute signals in addition to logits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.common.registry import Registrable
from beem_plugin.exits.poolers import as_input_of
from beem_plugin.exits.signals import confidence_of, entropy_of, margin_of


@dataclass
class ExitView:
    """The inputs of a signal module at one exit."""

    exit_number: int  # from 1
    logits: Tensor  # (batch, labels) float32
    pooled: Tensor  # (batch, size)
    hidden_states: Tensor  # (batch, tokens, hidden)
    attention_mask: Tensor  # (batch, tokens) bool
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    """
    For modules that declare them: `previous_pooled`, from exit 2 on, and `previous_hidden_states`, the input of the
    block that the exit reads.
    """


class SignalModule(torch.nn.Module, Registrable):
    """Produces the signal `name` at every exit: the block `signals` of an encoder, which fills in the arguments."""

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


@SignalModule.register("gate")
class GateModule(SignalModule):
    """
    JEI-DNN's gates (Regol et al. 2024): at every exit a linear map from four measures of its uncertainty to g_i, after
    the sigmoid. The measures are computed from the logits, without a gradient to them: the largest probability, the
    entropy, the gap between the two largest probabilities, and the entropy of the squared probabilities, normalised.

    Registered as a `SignalModule` with name "gate".
    """

    name: ClassVar[str] = "gate"

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int) -> None:
        super().__init__(num_exits, pooled_size, num_labels)
        if num_labels == 1:
            raise ConfigurationError(
                "signals.gate: found a regression, which has no probabilities; allowed: with labels"
            )
        self.gates = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(num_exits))

    def forward(self, view: ExitView) -> Tensor:
        gate = self.gates[view.exit_number - 1]
        features = as_input_of(gate, uncertainty_features(view.logits.detach()))
        return gate(features).squeeze(-1).float().sigmoid()


def uncertainty_features(logits: Tensor) -> Tensor:
    """`(batch, labels)` to `(batch, 4)`; see `GateModule`."""
    log_p = logits.float().log_softmax(-1)
    squared = (2 * log_p).log_softmax(-1)
    return torch.stack([confidence_of(log_p), entropy_of(log_p), margin_of(log_p), entropy_of(squared)], -1)


@SignalModule.register("halt")
class Halt(SignalModule):
    """
    PALBERT's exit head (Balagansky and Gavrilov 2022, section 3.1): one perceptron, shared by all exits, on the input
    vectors of the classifiers of this exit and the previous one, [h_i; h_{i-1}] with zeros before exit 1; lambda_i,
    the probability of halting at exit i if the sample reaches it, is the sigmoid of its output.

    Registered as a `SignalModule` with name "halt".

    # Parameters

    num_hidden_layers : `int`, optional (default = `3`)
        Layers of twice the vectors' size with tanh, before the linear output.
    """

    name: ClassVar[str] = "halt"
    needs_previous_pooled: ClassVar[bool] = True

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int, num_hidden_layers: int = 3) -> None:
        super().__init__(num_exits, pooled_size, num_labels)
        check_number("num_hidden_layers", num_hidden_layers)
        size = 2 * pooled_size
        layers: list[torch.nn.Module] = []
        for _ in range(num_hidden_layers):
            layers += [torch.nn.Linear(size, size), torch.nn.Tanh()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(size, 1))

    def forward(self, view: ExitView) -> Tensor:
        previous = view.memory.get("previous_pooled")
        if previous is None:
            previous = torch.zeros_like(view.pooled)
        return self.layers(torch.cat([view.pooled, previous], -1)).squeeze(-1).float().sigmoid()


@SignalModule.register("predicted_error")
class PredictedError(SignalModule):
    """
    BERxiT's learning-to-exit module (Xin et al. 2021, section 3.4): one linear map, shared by all exits, from the
    classifier's input to the probability that the exit is wrong, u_i = sigmoid(w h_i + b). Trained by
    `learned_exit` and the objectives that contain it. Its gradient reaches the backbone, as in the release, unless
    `detach` is set.

    Registered as a `SignalModule` with name "predicted_error".

    # Parameters

    detach : `bool`, optional (default = `False`)
    """

    name: ClassVar[str] = "predicted_error"

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int, detach: bool = False) -> None:
        super().__init__(num_exits, pooled_size, num_labels)
        self.detach = detach
        self.linear = torch.nn.Linear(pooled_size, 1)

    def forward(self, view: ExitView) -> Tensor:
        pooled = view.pooled.detach() if self.detach else view.pooled
        return self.linear(pooled).squeeze(-1).float().sigmoid()


@SignalModule.register("similarity")
class Similarity(SignalModule):
    """
    cos(h_i, h_{i-1}), the input and the output of the block that the exit reads (MuE, Tang et al. 2023; CALM's state
    variant). At exit 1 the input of the first block are the embeddings. The cosine of a sample is computed over its
    real tokens only: it depends neither on other samples nor on padding.

    Registered as a `SignalModule` with name "similarity".

    # Parameters

    over : `str`, optional (default = `"tokens"`)
        `"tokens"`: one cosine over the hidden states of all tokens, end to end; `"first"`: the first token's.
    """

    name: ClassVar[str] = "similarity"
    needs_previous_hidden_states: ClassVar[bool] = True

    def __init__(self, num_exits: int, pooled_size: int, num_labels: int, over: str = "tokens") -> None:
        super().__init__(num_exits, pooled_size, num_labels)
        check_choice("over", over, ("tokens", "first"))
        self.over = over

    def forward(self, view: ExitView) -> Tensor:
        after, before = view.hidden_states.float(), view.memory["previous_hidden_states"].float()
        if self.over == "first":
            return functional.cosine_similarity(after[:, 0], before[:, 0], dim=-1)
        real = view.attention_mask.unsqueeze(-1)
        return functional.cosine_similarity((after * real).flatten(1), (before * real).flatten(1), dim=-1)
