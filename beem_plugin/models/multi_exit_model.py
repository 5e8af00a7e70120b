"""Models with a multi-exit text encoder, a training objective and an exit policy: classification and regression."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import check_metric
from beem_plugin.common.registry import Lazy
from beem_plugin.data.instance import Instance
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.execution.engine import Engine
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.exit_metrics import ExitMetrics
from beem_plugin.models.model import ExitModel, Model
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.objectives import Objective


class MultiExitModel(ExitModel):
    """
    A multi-exit encoder with its training objective and exit policy: `multi_exit_classifier`, `multi_exit_regressor`.

    # Parameters

    vocab : `Vocabulary`
        Filled in, as `is_regression`.
    encoder : `MultiExitEncoder`
    objective : `Objective`, optional (default = `"weighted_distillation"`)
        The default is that of the BEEM paper.
    exit_policy : `ExitPolicy`, optional (default = `"final"`)
        Thresholds and weights that are not given are fitted by calibration.
    engine : `Engine`, optional (default = `"auto"`)
        Runs the policy.
    metric : `str`, optional (default = the dataset reader's)
        A name of `beem_plugin.common.metrics`.
    is_regression : `bool`, optional (default = the dataset reader's)
        Filled in, to reject tasks of the other kind.
    """

    default_predictor = "early_exit"
    task = "classification"
    default_metric: ClassVar[str] = "accuracy"

    def __init__(
        self,
        vocab: Vocabulary,
        encoder: Lazy[MultiExitEncoder],
        objective: Objective | None = None,
        exit_policy: ExitPolicy | None = None,
        engine: Engine | None = None,
        metric: str | None = None,
        is_regression: bool | None = None,
    ) -> None:
        self.check_labels(vocab, is_regression)
        metric = self.default_metric if metric is None else metric
        check_metric("model.metric", metric, vocab.is_regression)
        super().__init__(vocab)
        self.metric = metric
        self.encoder = encoder.construct(num_labels=vocab.num_labels)
        self.engine = engine if engine is not None else Engine.from_params({"type": "auto"})
        self.metrics = ExitMetrics(metric, vocab.num_labels)
        self._set_rules(objective, exit_policy)
        if self.encoder.output_per_token and self.exit_policy.needs_all_labels:
            raise ConfigurationError(
                f"model.exit_policy: found {self.exit_policy.registered_name}, which reads the probabilities of all "
                "labels; allowed with tags of words: policies on the confidence, margin, entropy or label of an exit"
            )

    @classmethod
    def check_labels(cls, vocab: Vocabulary, is_regression: bool | None) -> None:
        """Raises a `ConfigurationError` if the task is of another kind than the model."""

    @property
    def exit_network(self) -> MultiExitEncoder:
        return self.encoder

    def forward(  # type: ignore[override]  # named arguments instead of **batch
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        label: Tensor | None = None,
        **other: Any,
    ) -> dict[str, Any]:
        """
        `logits` `(batch, exits, labels)` float32; with labels also the `loss` of the objective and its components.
        `label` is `(batch,)` int64, -1 if unknown; for a regression float32, NaN if unknown.
        """
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            batch["token_type_ids"] = token_type_ids
        outputs = self.encoder.outputs(batch)
        output: dict[str, Any] = {"logits": outputs.logits}
        if label is not None:
            output.update(self.objective.loss(outputs, label))
            if self.training:
                self.metrics.update(output["logits"], label)
        return output

    def check_objective(self) -> None:
        """See `Model.check_objective`; the encoder must produce the signals that the objective trains."""
        objective, encoder = self.objective, self.encoder
        missing = sorted(set(objective.required_signals) - encoder.available_signals)
        if missing:
            raise ConfigurationError(
                f"model.objective: {type(objective).__name__} trains the signals {missing}, found "
                f"{sorted(encoder.available_signals) or 'none'}; allowed: an encoder with `signals: "
                f"{json.dumps(missing)}`"
            )
        objective.bind(encoder.exit_layers, encoder.num_labels)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """See `Model.check_tokenizer`; a token id outside the backbone's vocabulary would raise an index error."""
        needed = getattr(tokenizer, "vocab_size", None)
        found = getattr(self.encoder.backbone.config, "vocab_size", None)
        # Many published models pad the vocabulary: the backbone's may be larger than the tokenizer's.
        if needed is not None and found is not None and found < needed:
            raise ConfigurationError(
                f"model.encoder.backbone: found a vocabulary of {found} tokens, but the tokenizer "
                f"{tokenizer.model_name!r} has token ids up to {needed - 1}; allowed: a backbone with vocab_size "
                f"{needed} or more, or the backbone's own tokenizer"
            )

    @property
    def max_tokens(self) -> int | None:
        return getattr(self.encoder.backbone, "max_tokens", None)

    def prepare(self, instances: Sequence[Instance]) -> None:
        self.encoder.prepare(instances)

    def update_metrics(self, logits: Tensor, label: Tensor) -> None:
        self.metrics.update(logits, label)


@Model.register("multi_exit_classifier")
class MultiExitClassifier(MultiExitModel):
    """
    A multi-exit encoder with its training objective and exit policy.

    Training and validation run all exits. `evaluate` and `predict` run the policy on an engine, which skips the layers
    after the exit of a sample.

    Registered as a `Model` with name "multi_exit_classifier". The keys are those of `MultiExitModel`.
    """

    @classmethod
    def check_labels(cls, vocab: Vocabulary, is_regression: bool | None) -> None:
        if is_regression:
            raise ConfigurationError(
                "multi_exit_classifier: found a regression task (STS-B), allowed: classification; `type: "
                '"multi_exit_regressor"` is for regressions'
            )
        if vocab.num_labels < 2:
            raise ConfigurationError(
                f"multi_exit_classifier: found {vocab.num_labels} label in the training data "
                f"({', '.join(vocab.labels)}), allowed: 2 or more"
            )


@Model.register("multi_exit_regressor")
class MultiExitRegressor(MultiExitModel):
    """
    As `multi_exit_classifier`, for a task whose labels are values (STS-B): every exit predicts one value, trained with
    the squared error. A value has no confidence, so the exit policy must not need one: BERxiT's `predicted_error`,
    PABEE's `patience` with a `tolerance`, `halting`, `similarity`, or a fixed exit.

    Registered as a `Model` with name "multi_exit_regressor". The keys are those of `MultiExitModel`, and:

    # Parameters

    objective : `Objective`, optional (default = `"weighted_distillation"`)
        One that supports regression: `weighted_distillation`, `final_exit`, `early_exits`, `alternating`,
        `learned_exit`, `annealed`, `pondering`.
    start_at_mean : `bool`, optional (default = `True`)
        Whether the bias of new exits is initialized to the mean of the training labels. `false` starts from 0, as the
        published methods do; exits then need their first steps (on small data, their first epochs) to learn the mean.
        (BERxiT on MiniLM, 1,500 pairs of STS-B, five epochs: validation Pearson 0.79 at the last exit, 0.31 with
        `false`.)
    """

    task = "regression"
    default_metric = "pearson_spearman"

    def __init__(self, vocab: Vocabulary, start_at_mean: bool = True, **options: Any) -> None:
        super().__init__(vocab, **options)
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
        for module in self.encoder.exits.modules():
            classifier = getattr(module, "classifier", None)
            # A bias other than 0 comes from trained weights and is kept.
            if isinstance(classifier, torch.nn.Linear) and not bool(classifier.bias.detach().any()):
                torch.nn.init.constant_(classifier.bias, sum(values) / len(values))
