"""Every exit learns from the labels and from all other exits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.distillation import check_has_students
from beem_plugin.objectives.exit_loss import mean_exit_losses, mean_over_known, pairwise_kl
from beem_plugin.objectives.objective import Objective


@Objective.register("mutual_distillation")
class MutualDistillation(Objective):
    """
    LeeBERT-style: after the description of LeeBERT (Zhu 2021), which has no public code,

        loss = sum_i w_i CE(p_i, y) + sum_{i != j} w_ij KL(p_j || p_i),

    with the teacher p_j detached, and all K = L^2 weights together the softmax of the parameters `loss_weights`, of
    which labels and teachers have equal shares at first. How LeeBERT initialises and updates them is not known. They
    get no gradient, which would only reduce the hardest terms; the training callback `cross_level` learns them.

    Registered as an `Objective` with name "mutual_distillation".

    # Parameters

    temperature : `float`, optional (default = `1.0`)
        The distributions of the KL terms are softened by it, and the KL multiplied by its square.
    cross_entropy_share : `float`, optional (default = `0.5`)
        The initial share of the cross-entropies, equal for all exits; the rest is equal for all pairs.
    """

    def __init__(self, temperature: float = 1.0, cross_entropy_share: float = 0.5) -> None:
        super().__init__()
        check_number("temperature", temperature, open_low=True)
        check_number("cross_entropy_share", cross_entropy_share, high=1, open_low=True, open_high=True)
        self.temperature = temperature
        self.cross_entropy_share = cross_entropy_share
        self.loss_weights: torch.nn.Parameter | None
        self.register_parameter("loss_weights", None)

    def bind(self, exit_layers: Sequence[int], num_labels: int) -> None:
        super().bind(exit_layers, num_labels)
        check_has_students(len(exit_layers))
        num_exits = len(exit_layers)
        # Binding again keeps the learned weights.
        if self.loss_weights is None or len(self.loss_weights) != num_exits**2:
            share, pairs = self.cross_entropy_share, num_exits * (num_exits - 1)
            weights = [share / num_exits] * num_exits + [(1 - share) / pairs] * pairs
            self.loss_weights = torch.nn.Parameter(torch.tensor(weights).log(), requires_grad=False)

    def weights(self) -> Tensor:
        """`(K,)`, summing to 1."""
        if self.loss_weights is None:
            raise RuntimeError("MutualDistillation has a weight a pair of exits: call bind first")
        return self.loss_weights.float().softmax(0)

    def terms(self, outputs: ExitOutputs, label: Tensor) -> Tensor:
        """`(K,)` unweighted: CE of exits 1 to L; then, student by student, KL(p_j || p_i) from each teacher j."""
        logits = outputs.logits
        num_exits = logits.shape[1]
        check_has_students(num_exits)
        cross_entropy = mean_exit_losses(logits, label)  # (exits,)
        log_p = (logits.float() / self.temperature).log_softmax(-1)
        # (student, teacher)
        divergence = mean_over_known(pairwise_kl(log_p.detach(), log_p), label) * self.temperature**2
        # All entries but the diagonal, in their order; a mask as index would wait for the device.
        others = divergence.flatten()[1:].view(num_exits - 1, num_exits + 1)[:, :-1].flatten()
        return torch.cat([cross_entropy, others])

    def forward(self, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        terms, num_exits = self.terms(ExitOutputs(logits), label), logits.shape[1]
        weights = self.weights().detach()
        if len(weights) != len(terms):
            raise ConfigurationError(
                f"objective: found logits of {num_exits} exits, allowed: {len(self.exit_layers or ())} as it was bound"
            )
        weighted = weights * terms
        return {
            "loss": weighted.sum(),
            "cross_entropy": weighted[:num_exits].sum().detach(),
            "divergence": weighted[num_exits:].sum().detach(),
        }
