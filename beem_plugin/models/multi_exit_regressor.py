"""Regression on a text or a pair of texts with an exit at every layer."""

from collections.abc import Sequence
from typing import cast

import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Lazy
from beem_plugin.data.instance import Instance
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.execution.engine import Engine
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.model import Model
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.objectives import Objective


@Model.register("multi_exit_regressor")
class MultiExitRegressor(MultiExitModel):
    """
    As `multi_exit_classifier`, for a task whose labels are values (STS-B): every exit predicts one value, trained with
    the squared error. A value has no confidence, so the exit policy must not need one: BERxiT's `predicted_error`,
    PABEE's `patience` with a `tolerance`, `halting`, `similarity`, or a fixed exit.

    Registered as a `Model` with name "multi_exit_regressor".

    # Parameters

    vocab : `Vocabulary`
        Filled in.
    encoder : `MultiExitEncoder`
    objective : `Objective`, optional (default = `"weighted_distillation"`)
        One that supports regression: `weighted_distillation`, `final_exit`, `early_exits`, `alternating`,
        `learned_exit`, `annealed`, `pondering`.
    exit_policy : `ExitPolicy`, optional (default = `"final"`)
    engine : `Engine`, optional (default = `"compaction"`)
        Runs the policy.
    metric : `str`, optional (default = the dataset reader's)
        `"pearson_spearman"`.
    is_regression : `bool`, optional (default = the dataset reader's)
        Filled in, to reject classification tasks.
    start_at_mean : `bool`, optional (default = `True`)
        Whether the bias of new exits is initialized to the mean of the training labels. `false` starts from 0, as the
        published methods do; exits then need their first steps (on small data, their first epochs) to learn the mean.
        (BERxiT on MiniLM, 1,500 pairs of STS-B, five epochs: validation Pearson 0.79 at the last exit, 0.31 with
        `false`.)
    """

    task = "regression"
    default_metric = "pearson_spearman"

    def __init__(
        self,
        vocab: Vocabulary,
        encoder: Lazy[MultiExitEncoder],
        objective: Objective | None = None,
        exit_policy: ExitPolicy | None = None,
        engine: Engine | None = None,
        metric: str | None = None,
        is_regression: bool | None = None,
        start_at_mean: bool = True,
    ) -> None:
        super().__init__(vocab, encoder, objective, exit_policy, engine, metric, is_regression)
        self.start_at_mean = start_at_mean

    @classmethod
    def check_labels(cls, vocab: Vocabulary, is_regression: bool | None) -> None:
        if is_regression is False or not vocab.is_regression:
            raise ConfigurationError(
                "multi_exit_regressor: found a task with labels, allowed: a regression, such as STS-B; `type: "
                '"multi_exit_classifier"` is for labels'
            )

    def prepare(self, instances: Sequence[Instance]) -> None:
        super().prepare(instances)
        values = [float(instance.label) for instance in instances if instance.label is not None]
        if not self.start_at_mean or not values:
            return
        for head in self.encoder.exits:
            bias = cast(torch.nn.Linear, head.classifier).bias
            # A bias other than 0 comes from trained weights and is kept.
            if not bool(bias.detach().any()):
                torch.nn.init.constant_(bias, sum(values) / len(values))
