"""The expected loss over a learned distribution of halting exits."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import check_choice, check_number
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.exit_loss import exit_loss, kl_divergence, loss_name, mean_over_known
from beem_plugin.objectives.objective import Objective

NEAR_ZERO = 1e-6
"""Halting probabilities are kept this far from 0 and 1, so that their logarithms are finite in float32."""


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
