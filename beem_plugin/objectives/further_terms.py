"""Objectives with a further term beside another objective: predicted errors, and contrasts between samples."""

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.common.metrics import known_labels
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.objectives.distillation import WeightedDistillation
from beem_plugin.objectives.exit_loss import exit_error, mean_over_known
from beem_plugin.objectives.exit_sums import Alternating
from beem_plugin.objectives.exit_weights import REDUCTIONS
from beem_plugin.objectives.objective import Objective


class ExtendedObjective(Objective):
    """loss of `objective` + weight * term, with a weight from 0."""

    serves_regression = True  # where `objective` does

    def __init__(self, objective: Objective, weight: float) -> None:
        super().__init__()
        check_number("weight", weight)
        self.objective = objective
        self.weight = weight
        self.required_signals = tuple(dict.fromkeys((*objective.required_signals, *type(self).required_signals)))

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        own = self.objective.loss(outputs, label)
        ((name, term),) = self.term(outputs, label).items()
        return {**own, "loss": own["loss"] + self.weight * term, name: term.detach()}

    def term(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        """The term, a scalar, under its name in the log. Parameters as of `loss`."""
        raise TypeError(f"{type(self).__name__} does not define term")


@Objective.register("learned_exit")
class LearnedExit(ExtendedObjective):
    """
    BERxiT's learning to exit (Xin et al. 2021, section 3.4): with u_i, in (0, 1), the module's predicted probability
    that exit i is wrong,

        loss = loss of `objective` + weight * mean_i (u_i - [argmax p_i != y])^2,

    over all exits; in a regression |tanh(y_i - y)| replaces [argmax p_i != y].
    Whether an exit is wrong has no gradient; u_i's own reaches the pooled vector and so the backbone, as in the
    release, unless the encoder's `predicted_error` detaches it.

    Registered as an `Objective` with name "learned_exit".

    # Parameters

    objective : `Objective`, optional (default = `"alternating"`)
        The objective of the exits. `{"type": "alternating"}`: BERxiT as published.
        `{"type": "alternating", "include_final_on_odd": false}`: the release's `alternate-lte`.
        `{"type": "early_exits"}` and the like: the module in a second stage.
    weight : `float`, optional (default = `1.0`)
    reduction : `str`, optional (default = `"mean"`)
        Over the exits; `"sum"`: the sum.
    """

    required_signals = ("predicted_error",)

    def __init__(self, objective: Objective | None = None, weight: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(objective if objective is not None else Alternating(), weight)
        check_choice("reduction", reduction, REDUCTIONS)
        self.reduction = reduction

    def term(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        wrong = exit_error(outputs.logits, label)  # (batch, exits)
        error = mean_over_known((outputs.signals["predicted_error"].float() - wrong) ** 2, label)
        return {"predicted_error": error.mean() if self.reduction == "mean" else error.sum()}


@Objective.register("contrastive")
class Contrastive(ExtendedObjective):
    """
    Vectors of all exits of samples with the same label attract each other (cross-layer contrastive learning, after
    ACL-CL, Zhu 2026, with the loss of Khosla et al. 2020, Eq. 2): with z_a the normalised pooled vectors, one of each
    sample at each exit, and P(a) the keys k with the label of a,

        loss = loss of `objective` + weight * mean_a mean_{p in P(a)} (ln sum_{k != a} e^(z_a z_k / T) - z_a z_p / T).

    ACL-CL's label embeddings and its gate on conflicting gradients are not included. In evaluation the loss is that of
    `objective`, as the term depends on which samples are in a batch.

    Registered as an `Objective` with name "contrastive".

    # Parameters

    objective : `Objective`, optional (default = `"weighted_distillation"` with uniform weights and distillation off)
    weight : `float`, optional (default = `0.1`)
    temperature : `float`, optional (default = `0.1`)
        T.
    keys : `str`, optional (default = `"all"`)
        `"all"`: the vectors of all exits; `"last"`: those of the last exit without gradient, which guides the others,
        as in ACL-CL.
    """

    serves_regression = False

    def __init__(
        self, objective: Objective | None = None, weight: float = 0.1, temperature: float = 0.1, keys: str = "all"
    ) -> None:
        super().__init__(objective if objective is not None else WeightedDistillation("uniform", "off"), weight)
        check_number("temperature", temperature, open_low=True)
        check_choice("keys", keys, ("all", "last"))
        self.temperature = temperature
        self.keys = keys

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        return super().loss(outputs, label) if self.training else self.objective.loss(outputs, label)

    def term(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        vectors, num_exits = outputs.pooled, outputs.logits.shape[1]
        if len(vectors) != num_exits or len({value.shape for value in vectors}) > 1 or len(vectors[0]) != len(label):
            raise ConfigurationError(
                "objective: 'contrastive' needs a pooled vector of each sample at each exit, all of one size; found "
                f"{[tuple(value.shape) for value in vectors]} for {len(label)} labels"
            )
        anchors = functional.normalize(torch.cat(vectors).float(), dim=-1)  # (exits * batch, size), exit by exit
        keys = anchors if self.keys == "all" else anchors[-len(label) :].detach()
        of_anchor, of_key = label.repeat(num_exits), label.repeat(len(keys) // max(len(label), 1))
        with torch.autocast(anchors.device.type, enabled=False):
            scores = anchors @ keys.T / self.temperature
        # An anchor is no key of its own; with the last exit's vectors as keys, its sample's is.
        number = torch.arange(len(anchors), device=label.device)
        itself = number.unsqueeze(1) == number[-len(keys) :]
        usable = known_labels(of_key) & ~itself
        log_p = scores - scores.masked_fill(~usable, -torch.inf).logsumexp(1, keepdim=True).nan_to_num(neginf=0.0)
        positive = ((of_anchor.unsqueeze(1) == of_key) & usable & known_labels(of_anchor).unsqueeze(1)).float()
        count = positive.sum(1)
        losses = -(positive * log_p).sum(1) / count.clamp_min(1)
        return {"contrastive": losses.sum() / (count > 0).sum().clamp_min(1)}
