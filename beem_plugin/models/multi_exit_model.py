"""Base class of models with a multi-exit text encoder, a training objective and an exit policy."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from beem_plugin.calibration.replay import check_signals
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import check_metric
from beem_plugin.common.registry import Lazy
from beem_plugin.data.instance import Instance
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.execution.engine import Engine
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.exit_metrics import ExitMetrics
from beem_plugin.models.model import ExitModel
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.objectives import Objective, WeightedDistillation


class MultiExitModel(ExitModel):
    """
    A multi-exit encoder with its training objective and exit policy: `multi_exit_classifier` and
    `multi_exit_regressor`, where the parameters are described.
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
        self.objective = objective if objective is not None else WeightedDistillation()
        self.exit_policy = exit_policy if exit_policy is not None else ExitPolicy.from_params({"type": "final"})
        self.engine = engine if engine is not None else Engine.from_params({"type": "compaction"})
        self.metrics = ExitMetrics(metric, vocab.num_labels)
        # Checks that need the shape of the network only, so that errors in the config are raised before training.
        self.exit_policy.bind(self.encoder.exit_layers, self.encoder.num_labels)
        check_signals(self.exit_policy, self.encoder.available_signals, "the model")
        self.check_objective()
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
        # Parameters

        input_ids, attention_mask, token_type_ids : `Tensor`
            `(batch, tokens)` int64.
        label : `Tensor`, optional
            `(batch,)` int64, -1 if unknown; for a regression float32, NaN if unknown.

        # Returns

        `dict[str, Any]`
            `logits` `(batch, exits, labels)` float32; with labels also the `loss` of the objective and its components.
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

    def start_step(self, step: int, total_steps: int) -> None:
        self.objective.start_step(step, total_steps)
        self.encoder.start_step(step, total_steps)

    def update_metrics(self, logits: Tensor, label: Tensor) -> None:
        self.metrics.update(logits, label)

    def parts(self) -> dict[str, list[torch.nn.Parameter]]:
        """
        `backbone`, `exits` (all heads, branches included), `branches`, `last_exit`, `early_exits` (parameters of heads
        that are not shared with the last one), `signals`, `objective`.
        """
        last = list(self.encoder.exits[-1].parameters())
        exits = list(self.encoder.exits.parameters())
        in_last = {id(parameter) for parameter in last}
        parts = {
            "backbone": list(self.encoder.backbone.parameters()),
            "exits": exits,
            "branches": [value for name, value in self.encoder.exits.named_parameters() if ".branch." in name],
            "last_exit": last,
            "early_exits": [parameter for parameter in exits if id(parameter) not in in_last],
            "signals": list(self.encoder.signal_modules.parameters()),
            "objective": list(self.objective.parameters()),
        }
        return {name: parameters for name, parameters in parts.items() if parameters}
