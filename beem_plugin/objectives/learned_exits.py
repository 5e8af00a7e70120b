"""Where samples exit, learned beside the labels: JEI-DNN's gates, and PALBERT's distribution of halting exits."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import check_choice, check_number
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.exit_loss import exit_loss, kl_divergence, loss_name, mean_over_known
from beem_plugin.objectives.exit_weights import exit_weights, one_each, relative_depths
from beem_plugin.objectives.objective import Objective

NEAR_ZERO = 1e-6
"""Gates and rates of halting are kept this far from 0 and 1, so that their logarithms are finite in float32."""


@Objective.register("joint_gates")
class JointGates(Objective):
    """
    JEI-DNN (Regol et al. 2024, section 4): with g_i the encoder's signal `gate`, for i < L; all samples exit at the
    last exit.

    *Warm-up*: sum_i (L - i + 1) CE_i / sum_i (L - i + 1), early exits weighted more. Then, each for `period` steps:

    *Gates.* With c_i an exit's cost, t = argmin_i CE_i + beta c_i is a sample's target exit, and the target of g_i is 1
    from there on: mean_{i<L} BCE(g_i, [t <= i]). At each gate the positive samples are weighted by their rarity, up to
    `max_positive_weight`. Heads get no gradient.

    *Heads.* sum_i P_i CE_i with the probability of exiting at exit i, as in the policy `gate`,

        P_i = max(min(g_i, 1 - sum_{j<i} g_j), 0),    g_L = 1,

    renormalised for each sample to sum to 1. Gates get no gradient.

    The release takes the gates' class weights from validation data, this implementation from the batch; it ends the
    warm-up of each exit separately, this implementation after a share of the steps. In evaluation the loss is that of
    gates and heads together.

    Registered as an `Objective` with name "joint_gates".

    # Parameters

    beta : `float`, optional (default = `0.7`)
        The weight of the cost, which sets the trade-off.
    costs : `list[float]`, optional (default = each exit's relative depth)
        c_i, one number per exit.
    warmup_fraction : `float`, optional (default = `0.25`)
        Of all steps.
    period : `int`, optional (default = `200`)
        Steps of each phase.
    max_positive_weight : `float`, optional (default = `5.0`)
    """

    required_signals = ("gate",)

    def __init__(
        self,
        beta: float = 0.7,
        costs: list[float] | None = None,
        warmup_fraction: float = 0.25,
        period: int = 200,
        max_positive_weight: float = 5.0,
    ) -> None:
        super().__init__()
        check_number("beta", beta)
        check_number("warmup_fraction", warmup_fraction, high=1)
        check_number("period", period, low=1)
        check_number("max_positive_weight", max_positive_weight, low=1)
        self.beta = beta
        self.costs = costs
        self.warmup_fraction = warmup_fraction
        self.period = period
        self.max_positive_weight = max_positive_weight

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        self._costs(len(exit_layers), "cpu")

    @property
    def phase(self) -> str:
        """The phase of this step: `"warmup"`, `"gates"` or `"heads"`."""
        step, total_steps = self.progress
        after = step - round(self.warmup_fraction * total_steps)
        if after < 0:
            return "warmup"
        return "heads" if after // self.period % 2 else "gates"

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        cross_entropy = exit_loss(outputs.logits, label)  # (batch, exits)
        gate = outputs.signals["gate"].float()
        if self.training and self.phase == "warmup":
            weights = exit_weights("descending", cross_entropy.shape[1], cross_entropy.device)
            return {"loss": (weights * mean_over_known(cross_entropy, label)).sum()}
        gates = self.gate_loss(gate, cross_entropy, label)
        heads = mean_over_known((leaving_probabilities(gate.detach()) * cross_entropy).sum(1), label)
        if self.training:
            loss = gates if self.phase == "gates" else heads
        else:
            loss = gates + heads
        return {"loss": loss, "gates": gates.detach(), "heads": heads.detach()}

    def gate_loss(self, gate: Tensor, cross_entropy: Tensor, label: Tensor) -> Tensor:
        num_exits = gate.shape[1]
        target = (cross_entropy + self.beta * self._costs(num_exits, gate.device)).argmin(1)
        numbers = torch.arange(num_exits - 1, device=gate.device)
        leave = (target.unsqueeze(1) <= numbers).float()  # (batch, exits - 1): exits here or earlier
        # Shares of the samples with a label; a gate can have no positive sample.
        positive = mean_over_known(leave, label)
        negative = mean_over_known(1 - leave, label)
        positive_weight = (negative / positive.clamp_min(NEAR_ZERO)).clamp(1, self.max_positive_weight)
        # Not functional.binary_cross_entropy: it refuses to run under mixed precision.
        open_gate = gate[:, :-1].clamp(NEAR_ZERO, 1 - NEAR_ZERO)
        error = -(positive_weight * leave * open_gate.log() + (1 - leave) * (-open_gate).log1p())
        return mean_over_known(error, label).sum() / max(num_exits - 1, 1)

    def _costs(self, num_exits: int, device: torch.device | str) -> Tensor:
        if self.costs is None:
            return relative_depths(self.exit_layers, num_exits, device)
        return one_each("costs", self.costs, num_exits, device)


def leaving_probabilities(gate: Tensor) -> Tensor:
    """`(batch, exits)` g_i to P_i, which sums to 1; see `JointGates`."""
    gate = functional.pad(gate[:, :-1], (0, 1), value=1.0)
    left = 1 - functional.pad(gate[:, :-1].cumsum(1), (1, 0))
    leaving = torch.minimum(gate, left).clamp_min(0)
    return leaving / leaving.sum(1, keepdim=True)


@Objective.register("pondering")
class Pondering(Objective):
    """
    PALBERT (Balagansky and Gavrilov 2022, section 3.1), after PonderNet: with lambda_i the encoder's signal `halt` and
    p(i) = lambda_i prod_{j<i} (1 - lambda_j),

        loss = sum_i p(i) CE(p_i, y) + beta KL(prior || p),

    the prior a geometric distribution with rate lambda_p, cut off after the last exit and normalised. Both the exits
    and the halting probabilities get the gradient of the first term. In a regression CE is (y_i - y)^2.

    Registered as an `Objective` with name "pondering".

    # Parameters

    beta : `float`, optional (default = `0.5`)
    lambda_p : `float`, optional (default = `0.1`)
    epsilon : `float`, optional (default = `0.05`)
        After more than 1 - epsilon has halted, p(i) is the constant epsilon / L. 0: never.
    direction : `str`, optional (default = `"prior_halting"`)
        `"prior_halting"`: KL(prior || p), the release; `"halting_prior"`: KL(p || prior), as PonderNet prints it.
    last_halts : `bool`, optional (default = `True`)
        Whether the remaining mass halts at the last exit, lambda_L = 1, as at inference, so that p sums to 1. With
        `false` the last exit has a lambda_L like the others, and the mass that does not halt there has no loss.
    """

    required_signals = ("halt",)
    serves_regression = True

    def __init__(
        self,
        beta: float = 0.5,
        lambda_p: float = 0.1,
        epsilon: float = 0.05,
        direction: str = "prior_halting",
        last_halts: bool = True,
    ) -> None:
        super().__init__()
        check_number("beta", beta)
        check_number("lambda_p", lambda_p, high=1, open_low=True, open_high=True)
        check_number("epsilon", epsilon, high=1, open_high=True)
        check_choice("direction", direction, ("prior_halting", "halting_prior"))
        self.beta = beta
        self.lambda_p = lambda_p
        self.epsilon = epsilon
        self.direction = direction
        self.last_halts = last_halts

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        log_p = self.log_halting(outputs.signals["halt"])  # (batch, exits)
        log_prior = truncated_geometric(self.lambda_p, log_p.shape[1], log_p.device).expand_as(log_p)
        pair = (log_prior, log_p) if self.direction == "prior_halting" else (log_p, log_prior)
        expected = mean_over_known((log_p.exp() * exit_loss(outputs.logits, label)).sum(1), label)
        divergence = mean_over_known(kl_divergence(*pair), label)
        return {
            "loss": expected + self.beta * divergence,
            loss_name(label): expected.detach(),
            "divergence": divergence.detach(),
        }

    def log_halting(self, halt: Tensor) -> Tensor:
        """`(batch, exits)` lambda_i to `(batch, exits)` ln p(i)."""
        rate = halt.float().clamp(NEAR_ZERO, 1 - NEAR_ZERO)
        log_left = functional.pad((-rate).log1p()[:, :-1].cumsum(1), (1, 0))  # ln prod_{j<i} (1 - lambda_j)
        log_rate = rate.log()
        if self.last_halts:
            log_rate = functional.pad(log_rate[:, :-1], (0, 1))
        log_p = log_left + log_rate
        if self.epsilon == 0:
            return log_p
        # The mass *before* exit i; that up to i would freeze an exit at which nearly all samples halt.
        return log_p.masked_fill(log_left < math.log(self.epsilon), math.log(self.epsilon / halt.shape[1]))


def truncated_geometric(rate: float, num_exits: int, device: torch.device | str = "cpu") -> Tensor:
    """`(exits,)` ln of rate (1 - rate)^(i - 1), normalised over the exits."""
    return (torch.arange(num_exits, dtype=torch.float32, device=device) * math.log1p(-rate)).log_softmax(0)
