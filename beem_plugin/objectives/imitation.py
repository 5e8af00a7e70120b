"""Exits that imitate the states of deeper layers."""

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.exit_loss import mean_exit_losses, mean_over_known
from beem_plugin.objectives.exit_weights import Curriculum, WeightedObjective
from beem_plugin.objectives.objective import Objective


@Objective.register("imitation")
class Imitation(WeightedObjective):
    """
    Global Past-Future (Liao et al. 2021, section 3.3): with h_k the pooled state of layer k and h'_ik exit i's
    estimate of it,

        loss = (sum_i w_i CE(p_i, y) + weight * mean_{i<k} (1 - cos(h'_ik, h_k))) / 2,

    h_k detached, the mean over all pairs i < k. For an encoder, or a caption decoder (DeeCap), with `head: {"type":
    "past_future"}`.

    Registered as an `Objective` with name "imitation".

    # Parameters

    layer_weights, curriculum
        See `WeightedObjective`; `"linear"` by default, divided by their sum. The curriculum is of the cross-entropies.
    weight : `float`, optional (default = `1.0`)
    """

    def __init__(
        self, layer_weights: str | list[float] = "linear", weight: float = 1.0, curriculum: Curriculum | None = None
    ) -> None:
        super().__init__(layer_weights, "mean", curriculum)
        check_number("weight", weight)
        self.weight = weight

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        weights = self.exit_weights(outputs.logits.shape[1], outputs.logits.device)
        cross_entropy = (weights * mean_exit_losses(outputs.logits, label)).sum()
        imitation = mean_over_known(imitation_distance(outputs), label)
        return {
            "loss": (cross_entropy + self.weight * imitation) / 2,
            "cross_entropy": cross_entropy.detach(),
            "imitation": imitation.detach(),
        }


def imitation_distance(outputs: ExitOutputs) -> Tensor:
    """`(batch,)` the mean of 1 - cos over the pairs of an exit and a later one."""
    num_exits = outputs.logits.shape[1]
    imitated = outputs.extras.get("imitated", [])  # of exit i: (batch, exits - i, size), of exits i + 1, ... in order
    if num_exits < 2 or len(imitated) != num_exits - 1:
        raise ConfigurationError(
            f"objective: 'imitation' trains what the exits before the last take later states to be, found "
            f"{len(imitated)} of {num_exits} exits that do; allowed: 2 exits or more, of a head such as 'past_future'"
        )
    true = torch.stack(outputs.pooled, 1).detach().float()  # (batch, exits, size)
    distances = [
        1 - functional.cosine_similarity(guess.float(), true[:, number:], dim=-1)
        for number, guess in enumerate(imitated, start=1)
    ]
    return torch.cat(distances, 1).mean(1)
