"""Token classification: every exit predicts a label for every word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from beem_plugin.common.registry import Lazy
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.exits.heads.head import NO_MEMORY, ExitHead, HeadFamily, HeadSizes
from beem_plugin.exits.outputs import HeadOutput
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.poolers import as_input_of
from beem_plugin.models.exit_metrics import ExitMetrics
from beem_plugin.models.model import Model
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.models.multi_exit_model import check_objective
from beem_plugin.objectives import Objective, WeightedDistillation


class TokenHead(ExitHead):
    """Dropout and a linear classifier of every token; logits are `(batch, tokens, labels)`."""

    def __init__(self, classifier: torch.nn.Linear, dropout: float) -> None:
        super().__init__()
        self.classifier = classifier
        self.dropout = torch.nn.Dropout(dropout)
        self.pooled_size = classifier.in_features

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, memory: Mapping[str, Tensor] = NO_MEMORY
    ) -> HeadOutput:
        hidden_states = as_input_of(self.classifier, hidden_states)
        return HeadOutput(self.classifier(self.dropout(hidden_states)), hidden_states[:, 0])


@HeadFamily.register("token")
class TokenHeads(HeadFamily):
    """
    A linear classifier of every token at every exit.

    Registered as a `HeadFamily` with name "token".
    """

    def build(self, sizes: HeadSizes) -> list[ExitHead]:
        return [TokenHead(classifier, sizes.dropout) for classifier in sizes.classifiers(sizes.hidden_size)]


@Model.register("multi_exit_tagger")
class MultiExitTagger(Model):
    """
    A multi-exit encoder with token heads. A sentence exits if all of its words meet the criterion: the policy gets the
    smallest confidence and margin and the largest entropy over the words, and the sequence of tags as the label.

    Registered as a `Model` with name "multi_exit_tagger".

    # Parameters

    vocab : `Vocabulary`
        Filled in.
    encoder : `MultiExitEncoder`
        With `head: "token"`.
    objective : `Objective`, optional (default = `"weighted_distillation"`)
        Its samples are words.
    exit_policy : `ExitPolicy`, optional (default = `"final"`)
    """

    task = "token_classification"
    metric = "accuracy"

    def __init__(
        self,
        vocab: Vocabulary,
        encoder: Lazy[MultiExitEncoder],
        objective: Objective | None = None,
        exit_policy: ExitPolicy | None = None,
    ) -> None:
        super().__init__(vocab)
        self.encoder = encoder.construct(num_labels=vocab.num_labels)
        self.objective = objective if objective is not None else WeightedDistillation()
        self.exit_policy = exit_policy if exit_policy is not None else ExitPolicy.from_params({"type": "final"})
        self.exit_layers = self.encoder.exit_layers
        # A sequence of tags is numbered by the first exit that predicts it.
        self.num_labels = max(vocab.num_labels, len(self.exit_layers) + 1)
        self.exit_policy.bind(self.exit_layers, self.num_labels)
        check_objective(self.objective, self.encoder)
        self.metrics = ExitMetrics("accuracy", vocab.num_labels)

    @property
    def exit_network(self) -> MultiExitTagger:
        return self

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, words: Tensor, label: Tensor | None = None, **inputs: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """
        # Parameters

        words : `Tensor`
            `(batch, tokens)` bool, true at the first token of each word.
        label : `Tensor`, optional
            `(batch, tokens)` int64, -1 if unknown.
        """
        inputs.pop("index", None)
        outputs = self.encoder.outputs(inputs)
        if label is None:
            return {}
        known = words & (label >= 0)
        logits = outputs.logits.permute(0, 2, 1, 3)[known]  # (words, exits, labels)
        self.metrics.update(logits, label[known])
        vectors = [states[known] for states in outputs.hidden_states]
        return self.objective.loss(replace(outputs, logits=logits, pooled=vectors), label[known])

    def start_step(self, step: int, total_steps: int) -> None:
        self.objective.start_step(step, total_steps)
        self.encoder.start_step(step, total_steps)

    def get_metrics(self, reset: bool = False) -> dict[str, float]:
        return self.metrics.compute(reset)
