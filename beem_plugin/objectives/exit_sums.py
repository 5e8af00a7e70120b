"""Sums of the exits' own losses: the last exit, the early ones, both by turns, and early ones whose weights grow."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.objectives.exit_loss import mean_exit_losses
from beem_plugin.objectives.exit_weights import Curriculum, WeightedObjective, one_each, relative_depths
from beem_plugin.objectives.objective import Objective


@Objective.register("final_exit")
class FinalExit(Objective):
    """
    Ordinary fine-tuning,

        loss = CE(p_L, y),

    with p_L the probabilities of the last exit: the first stage of DeeBERT, FastBERT, ZTW and JEI-DNN, and of a network
    with fewer layers; in a regression (y_L - y)^2. The other exits get no gradient.

    Registered as an `Objective` with name "final_exit".
    """

    serves_regression = True

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        return {"loss": mean_exit_losses(logits[:, -1:], label).squeeze(0)}


@Objective.register("early_exits")
class EarlyExits(WeightedObjective):
    """
    The labels, for the exits before the last,

        loss = sum_{i<L} w_i CE(p_i, y):

    the sum, as DeeBERT's second stage (Xin et al. 2020, section 2.2), or the mean, as the heads of ZTW (Wolczyk et
    al. 2021); in a regression CE is (y_i - y)^2. It freezes no parameter: a stage lists those in `no_grad`. (DeeBERT's
    release clips by a norm that counts the backbone in; that is not reproduced.)

    Registered as an `Objective` with name "early_exits".

    # Parameters

    layer_weights, reduction, curriculum
        See `WeightedObjective`; `"uniform"` and `"sum"` by default, over the exits included.
    include_last : `bool`, optional (default = `False`)
        Whether to include the last exit.
    """

    serves_regression = True

    def __init__(
        self,
        reduction: str = "sum",
        layer_weights: str | list[float] = "uniform",
        include_last: bool = False,
        curriculum: Curriculum | None = None,
    ) -> None:
        super().__init__(layer_weights, reduction, curriculum)
        self.include_last = include_last

    def num_weights(self, num_exits: int) -> int:
        if num_exits == 1 and not self.include_last:
            raise ConfigurationError(
                "objective.include_last: found false and 1 exit, allowed: true, or 2 exits or more"
            )
        return num_exits if self.include_last else num_exits - 1

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        weights = self.exit_weights(logits.shape[1], logits.device)
        return {"loss": (weights * mean_exit_losses(logits[:, : len(weights)], label)).sum()}


@Objective.register("alternating")
class Alternating(Objective):
    """
    BERxiT's alternating fine-tuning (Xin et al. 2021, section 3.2): with steps counted from 0,

        loss = CE(p_L, y)                     in even steps,
        loss = sum_{i<=L} CE(p_i, y)          in odd steps.

    Steps are optimizer steps from the beginning of training; the release counts batches within an epoch. In evaluation
    the loss is that of odd steps.

    In a regression CE is (y_i - y)^2. BERxiT is this objective inside `learned_exit`.

    Registered as an `Objective` with name "alternating".

    # Parameters

    include_final_on_odd : `bool`, optional (default = `True`)
        Whether the sum of odd steps goes up to L, as in the paper and in the release's `alternate`; `false` excludes
        the last exit, as in the release's `alternate-lte`.
    """

    serves_regression = True

    def __init__(self, include_final_on_odd: bool = True) -> None:
        super().__init__()
        self.include_final_on_odd = include_final_on_odd

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        losses = mean_exit_losses(logits, label)
        final, early = losses[-1], losses[:-1].sum()
        if self.training and self.progress[0] % 2 == 0:
            loss = final
        else:
            loss = early + final if self.include_final_on_odd else early
        return {"loss": loss, "final_exit": final.detach(), "early_exits": early.detach()}


@Objective.register("annealed")
class Annealed(Objective):
    """
    Shallow-Deep networks (Kaya et al. 2019, section 3.2):

        loss = CE(p_L, y) + sum_{i<L} tau_i(t) CE(p_i, y),

    tau_i grows linearly from `start` in the first step to the exit's relative depth in the last. The release raises it
    once an epoch. In evaluation tau_i has its last value. In a regression CE is (y_i - y)^2.

    Registered as an `Objective` with name "annealed".

    # Parameters

    start : `float`, optional (default = `0.01`)
    end : `list[float]`, optional (default = each exit's relative depth)
        The last tau_i, one number for every exit but the last.
    """

    serves_regression = True

    def __init__(self, start: float = 0.01, end: list[float] | None = None) -> None:
        super().__init__()
        for key, value in (("start", start), *(("end", value) for value in end or [])):
            check_number(key, value)
        self.start = start
        self.end = end

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        self._end(len(exit_layers), "cpu")

    def _end(self, num_exits: int, device: torch.device | str) -> Tensor:
        if self.end is None:
            return relative_depths(self.exit_layers, num_exits, device)[:-1]
        return one_each("end", self.end, num_exits - 1, device, "one per exit but the last")

    def exit_weights(self, num_exits: int, device: torch.device | str = "cpu") -> Tensor:
        """`(exits,)` tau_i in this step, and 1 for the last exit."""
        end = self._end(num_exits, device)
        if self.training:
            end = self.start + self.done() * (end - self.start)
        return functional.pad(end, (0, 1), value=1.0)

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        losses = mean_exit_losses(logits, label)
        weighted = self.exit_weights(logits.shape[1], logits.device) * losses
        return {"loss": weighted.sum(), "final_exit": losses[-1].detach(), "early_exits": weighted[:-1].sum().detach()}
