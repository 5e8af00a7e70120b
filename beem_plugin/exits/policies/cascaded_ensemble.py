"""Exit when the geometric mean of the exits so far is confident."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.exits.fitting import check_numbers
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.signals import ExitSignals
from beem_plugin.exits.state import ExitState
from beem_plugin.exits.threshold_strategy import Thresholds
from beem_plugin.exits.trace_interface import Trace, require_labels

UNIFORM, FIT, ADAM = "uniform", "fit", "adam"
RIDGE = 1e-4  # keeps the weights finite on calibration data that the exits classify without an error


@ExitPolicy.register("cascaded_ensemble")
class CascadedEnsemble(ThresholdPolicy):
    """
    Zero Time Waste (Wołczyk et al. 2021, section 3.2): exit m < L answers with the weighted geometric mean of all exits
    so far,

        q_m = softmax(1/m sum_{j<=m} a_{m,j} ln p_j + b_m),

    and a sample exits at the first exit with max_c q_m(c) > threshold, strictly, with q_m, and at the last with that
    exit's own output. As in the release, the mean over j is outside of the weights: a = 1 is the geometric mean.

    Registered as an `ExitPolicy` with name "cascaded_ensemble".

    # Parameters

    thresholds, min_exit
        See `ThresholdPolicy`; probabilities.
    weights : `str` or `list[list[float]]`, optional (default = `"uniform"`)
        `"uniform"`, all 1; `"adam"` or `"fit"`, chosen together with `bias` by the cross-entropy of each q_m, as in
        the release (5 epochs of Adam at 0.1, batches of 32) or to the minimum (L-BFGS), on the calibration data or on
        `parameters_data` of the callback `calibrate_exits`; or the a_{m,j} themselves, none negative: a list for
        every exit m but the last, of m numbers.
    bias : `list[list[float]]`, optional (default = none)
        b_m: a list for every exit but the last, with a number for every label. Not with weights that are fitted.
    """

    strict: ClassVar[bool] = True
    fitted: ClassVar[str | None] = "weights"

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        weights: str | list[list[float]] = UNIFORM,
        bias: list[list[float]] | None = None,
        min_exit: int = 1,
    ) -> None:
        super().__init__(thresholds, min_exit)
        if isinstance(weights, str):
            check_choice("weights", weights, (UNIFORM, FIT, ADAM))
        if weights in (FIT, ADAM) and bias is not None:
            raise ConfigurationError(f'bias: found one beside weights "{weights}", which fits it; leave it out')
        self.weighting = weights
        self.weights: list[list[float]] | None = None if isinstance(weights, str) else weights
        self.bias = bias

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        if self.weighting == UNIFORM:
            self.weights = [[1.0] * exit_number for exit_number in range(1, self.num_exits)]
        if self.weights is not None:
            if len(self.weights) != self.num_exits - 1:
                found, allowed = len(self.weights), self.num_exits - 1
                raise ConfigurationError(
                    f"weights: found {found} lists, allowed: {allowed}, one for every exit but the last"
                )
            for number, row in enumerate(self.weights, start=1):
                check_numbers(f"weights.{number - 1}", row, (number,))
                check_number(f"weights.{number - 1}", min(row))
        if self.bias is not None:
            check_numbers("bias", self.bias, (self.num_exits - 1, num_labels))

    def fit_parameters(self, trace: Trace) -> None:
        if self.weighting not in (FIT, ADAM):
            return
        require_labels(trace, f'weights "{self.weighting}"')
        numbers = range(1, trace.num_exits)
        if not numbers:
            self.weights, self.bias = [], []
            return
        outputs = torch.stack([trace.exit_signals(number).log_probabilities for number in numbers])
        if self.weighting == ADAM:
            self.weights, self.bias = train_ensembles(outputs, trace.labels)
            return
        found = [fit_ensemble(outputs[:number], trace.labels) for number in numbers]
        self.weights, self.bias = [weights for weights, _ in found], [bias for _, bias in found]

    def update(self, exit_number: int, signals: ExitSignals, state: ExitState) -> ExitState:
        own = signals.log_probabilities
        if exit_number >= self.num_exits:
            return ExitState(score=signals.confidence, ensemble=own)
        assert self.weights is not None, "bound and calibrated before use"
        # Every exit has its own weights for all earlier ones, so all their outputs are stored.
        seen = {f"exit_{j}": state[f"exit_{j}"] for j in range(1, exit_number)} | {f"exit_{exit_number}": own}
        total = torch.zeros_like(own)
        for j, weight in enumerate(self.weights[exit_number - 1], start=1):
            total = total + weight * seen[f"exit_{j}"]
        logits = total / exit_number
        if self.bias is not None:
            logits = logits + torch.tensor(self.bias[exit_number - 1], dtype=own.dtype, device=own.device)
        ensemble = logits.log_softmax(-1)
        return ExitState(score=ensemble.amax(-1).exp(), ensemble=ensemble, **seen)

    def score_range(self, exit_number: int) -> tuple[float, float] | None:
        return 1 / self.num_labels, 1.0

    def output(self, exit_number: int, signals: ExitSignals, state: ExitState) -> Tensor:
        return state["ensemble"]

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), **({"weights": UNIFORM} if self.weighting == UNIFORM else {})}


def fit_ensemble(log_probabilities: Tensor, labels: Tensor) -> tuple[list[float], list[float]]:
    """Weights a = exp(w) and bias of one ensemble of `(exits so far, samples, labels)` log-probabilities, by L-BFGS."""
    exits, _, num_labels = log_probabilities.shape
    w = torch.zeros(exits, dtype=log_probabilities.dtype, requires_grad=True)
    b = torch.zeros(num_labels, dtype=log_probabilities.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([w, b], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = torch.einsum("e,enc->nc", w.exp(), log_probabilities) / exits + b
        loss = torch.nn.functional.cross_entropy(logits, labels) + RIDGE * (w.square().sum() + b.square().sum())
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return w.detach().exp().tolist(), b.detach().tolist()


def train_ensembles(log_probabilities: Tensor, labels: Tensor) -> tuple[list[list[float]], list[list[float]]]:
    """As the release: 5 epochs of Adam at 0.1 on the mean cross-entropy of all ensembles, in batches of 32."""
    exits, samples, num_labels = log_probabilities.shape
    w = log_probabilities.new_zeros(exits, exits).requires_grad_()
    b = log_probabilities.new_zeros(exits, 1, num_labels).requires_grad_()
    past = torch.ones_like(w).tril().detach()
    count = past.sum(1).view(-1, 1, 1)
    optimizer, generator = torch.optim.Adam([w, b], lr=0.1), torch.Generator().manual_seed(0)
    with torch.enable_grad():
        for rows in (rows for _ in range(5) for rows in torch.randperm(samples, generator=generator).split(32)):
            logits = torch.einsum("me,enc->mnc", past * w.exp(), log_probabilities[:, rows]) / count + b
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[rows].repeat(exits))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    weights = w.detach().exp().tolist()
    return [row[: number + 1] for number, row in enumerate(weights)], b.detach().squeeze(1).tolist()
