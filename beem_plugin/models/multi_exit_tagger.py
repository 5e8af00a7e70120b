"""Token classification: every exit predicts a tag for every word."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones import Backbone, BackboneState
from beem_plugin.common.registry import Lazy
from beem_plugin.exits.poolers import EveryToken
from beem_plugin.exits.signals import confidence_of, entropy_of, margin_of
from beem_plugin.exits.token_signals import TokenSignals, TokenSummary
from beem_plugin.models.encoder_exits import MEMORY, with_memory
from beem_plugin.models.model import Model
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.models.multi_exit_model import MultiExitClassifier

WORDS, TAGS = f"{MEMORY}words", f"{MEMORY}tags"


@MultiExitEncoder.register("tagging")
class TaggingEncoder(MultiExitEncoder):
    """
    A `multi_exit` encoder that classifies every token at each exit. A sentence exits if all of its words meet the
    criterion: the policy gets the smallest confidence and margin and the largest entropy over the words, and as the
    label the number of the first exit that predicted the same tags.

    Registered as a `MultiExitEncoder` with name "tagging"; the parameters are those of "multi_exit", without
    `pooler`.
    """

    output_per_token = True
    carries_memory = True  # type: ignore[assignment]
    obstacle = "exits that compare the tags of a sentence with those of earlier exits"  # type: ignore[assignment]

    def __init__(self, num_labels: int, backbone: Backbone, **options: Any) -> None:
        super().__init__(num_labels, backbone, pooler=Lazy(EveryToken), **options)
        self.num_labels = max(num_labels, self.num_exits + 1)

    def embed(self, batch: dict[str, Tensor], backbone: Any = None) -> BackboneState:
        words = batch.get("words", torch.ones_like(batch["input_ids"])).bool()
        state = super().embed({name: value for name, value in batch.items() if name != "words"}, backbone)
        tags = torch.zeros(len(words), self.num_exits, words.shape[1], dtype=torch.int16, device=words.device)
        return with_memory(state, {WORDS: words, TAGS: tags}, {WORDS: (1,), TAGS: (2,)})

    def exit_signals(self, exit_number: int, state: BackboneState) -> TokenSignals:
        words, earlier = state.batched[WORDS], state.batched[TAGS]
        log_probabilities = self.exit_logits(exit_number, state).double().log_softmax(-1)  # (batch, tokens, labels)
        tags = torch.where(words, log_probabilities.argmax(-1) + 1, 0).to(earlier.dtype)
        seen = torch.cat([earlier[:, : exit_number - 1], tags[:, None], earlier[:, exit_number:]], 1)
        state.batched[TAGS] = seen
        summary = TokenSummary(
            (seen == tags[:, None]).all(2).int().argmax(1) + 1,
            torch.where(words, confidence_of(log_probabilities), 1.0).amin(1).float(),
            torch.where(words, entropy_of(log_probabilities), 0.0).amax(1).float(),
            torch.where(words, margin_of(log_probabilities), 1.0).amin(1).float(),
        )
        return TokenSignals(len(tags), tags.device, summary=lambda: summary, output=tags.double() - 1)


@Model.register("multi_exit_tagger")
class MultiExitTagger(MultiExitClassifier):
    """
    As `multi_exit_classifier`, with a tag for every word. The objective's samples are words, the encoder is of type
    "tagging", and the policy is one on the confidence, margin, entropy or label of an exit.

    Registered as a `Model` with name "multi_exit_tagger".
    """

    task = "token_classification"
    update_metrics = Model.update_metrics  # `forward` does: batches have different numbers of words

    def forward(self, label: Tensor | None = None, **inputs: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """`label`: `(batch, tokens)` int64, -1 at tokens that are not counted."""
        outputs = self.encoder.outputs(inputs)
        if label is None:
            return {}
        logits, label = outputs.logits.permute(0, 2, 1, 3)[label >= 0], label[label >= 0]  # (words, exits, labels)
        self.metrics.update(logits, label)
        return self.objective.loss(replace(outputs, logits=logits), label)

    def loss_units(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["label"] >= 0).sum())
