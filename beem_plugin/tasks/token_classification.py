"""Token classification: a tag for every word, scored by entities."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.common.ranks import gathered
from beem_plugin.data.instance import Instance
from beem_plugin.dataset_readers.conll import words_of
from beem_plugin.exits.token_signals import SUMMARIES, TokenSummary
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.models.multi_exit_trace import all_exits, trace_meta
from beem_plugin.tasks.classification import Classification, Measured, text_model
from beem_plugin.tasks.task import Task


@Task.register("token_classification")
class TokenClassification(Classification):
    """
    As classification, but a prediction is a tag for every word. The metrics are `precision`, `recall` and `f1` of
    entities as seqeval counts them, `token_accuracy`, and `accuracy`, the share of sentences without a wrong tag;
    `per_class` has a row a kind of entity.

    Registered as a `Task` with name "token_classification".
    """

    answer = "tags"

    def records(
        self, model: MultiExitModel, decisions: ExitDecisions, fields: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """`tags`, one a word. A sentence is cut at the tokenizer's limit: words behind it have the first tag."""
        found = []
        for row, given in zip(decisions.predictions.tolist(), fields, strict=True):
            words = words_of(given)
            tags = [model.vocab.label_name(number) for number in row if number >= 0]
            found.append({"tags": tags + model.vocab.labels[:1] * (len(words) - len(tags))})
        return found

    def measure(self, model: MultiExitModel, instances: Sequence[Instance], decisions: ExitDecisions) -> Measured:
        from seqeval.metrics import classification_report

        records = self.records(model, decisions, [instance.fields for instance in instances])
        pairs = [(list(one.label), found["tags"]) for one, found in zip(instances, records) if one.label is not None]
        if not pairs:
            return Measured({}, {}, None, 0)
        gold, tags = zip(*pairs, strict=True)
        report = classification_report(list(gold), list(tags), output_dict=True, zero_division=0)
        rows = {
            kind: dict(zip(("precision", "recall", "f1", "samples"), map(float, row.values()), strict=True))
            for kind, row in report.items()
        }
        right = torch.tensor([one == other for one, other in pairs])
        words = [one == other for pair in pairs for one, other in zip(*pair, strict=True)]
        metrics = {name: value for name, value in rows["micro avg"].items() if name != "samples"}
        metrics |= {"token_accuracy": sum(words) / len(words), "accuracy": float(right.double().mean())}
        per_class = {kind: row for kind, row in rows.items() if not kind.endswith(" avg")}
        return Measured(metrics, {"per_class": per_class}, right, len(pairs))

    def trace(self, model: Any, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str) -> TokenTrace:
        summaries, targets, indices = [], [], []
        for batch, exits in all_exits(text_model(model), batches):
            right = torch.stack([(one.output.cpu() == batch["label"]).all(1) for one in exits], 1)
            # The number of the tags; 0 if no exit predicts them, -1 if they are unknown.
            targets.append(torch.where(right.any(1), right.int().argmax(1) + 1, (batch["label"] >= 0).any(1).int() - 1))
            found = [one.summary for one in exits]
            summaries.append([TokenSummary(*(getattr(one, name).cpu() for name in SUMMARIES)) for one in found])
            indices.append(batch["index"])
        summaries, targets, indices = gathered(summaries), gathered(targets), gathered(indices)
        meta = trace_meta(model, source)
        return TokenTrace.of_summaries(summaries, targets, indices, model.encoder.num_labels, meta)
