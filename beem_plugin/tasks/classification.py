"""Text classification: one label a text, from every exit."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write
from beem_plugin.common.metrics import METRICS, known_labels
from beem_plugin.common.progress import counted
from beem_plugin.common.ranks import gathered, is_main, share
from beem_plugin.common.strict_json import json_line
from beem_plugin.data.collate import label_tensor, ragged_parts
from beem_plugin.data.instance import Instance
from beem_plugin.execution import Engine
from beem_plugin.execution.engine import build_file_engine, gather_decisions
from beem_plugin.execution.metering.baselines import FullDepth
from beem_plugin.execution.metering.macs import exit_costs
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.models.multi_exit_trace import trace_model
from beem_plugin.rendering.tables import Column, Table, text
from beem_plugin.tasks.engine_cases import batches_by_size, cases_by_size
from beem_plugin.tasks.task import BenchmarkOptions, Case, Task, read_instances

logger = logging.getLogger(__name__)

BATCH_SIZE = 4096  # samples that an engine gets at once unless a batch size is given; it divides and sorts them

ENGINES = ("single", "compaction", "depth_pools")  # what `benchmark` measures by default


@dataclass
class Measured:
    """What is measured of predictions."""

    metrics: dict[str, float]  # of the samples with a label; empty if there are none
    details: dict[str, Any]  # each class, JSON-able
    right: Tensor | None  # `(labelled,)` bool: whether each prediction is right; `None` of values
    labelled: int  # samples with a label


@Task.register("classification")
class Classification(Task):
    """
    `evaluate` gives the metrics under the policy, `layer_speedup`, `average_exit`, `exit_histogram`, `samples`,
    `per_class` (precision, recall, F1 and number of samples of each label) and `confusion_matrix` (rows: gold label),
    the policy, and which data it was calibrated on; `last_exit`, the metrics of the network at full depth, and
    `against_last_exit`, how many samples only one of the two predicts right. Predictions are JSON lines: index, id,
    label, gold label, exit, score.

    Registered as a `Task` with name "classification".

    # Parameters

    full_depth : `bool`, optional (default = `True`)
        Whether `evaluate` also runs the network at full depth, to compare with.
    """

    answer = "label"  # the field of the prediction; the gold one is `gold_` and this

    def __init__(self, full_depth: bool = True) -> None:
        self.full_depth = full_depth

    def evaluate(
        self,
        archive: Archive,
        source: str,
        batch_size: int | None = None,
        engine: Engine | None = None,
        predictions_file: str | None = None,
    ) -> dict[str, Any]:
        instances = read_instances(archive, source)
        model = text_model(archive.model)
        policy, network = model.exit_policy, model.encoder
        for warning in policy.out_of_reach():
            logger.warning("exit policy: %s", warning)
        runner = engine if engine is not None else build_file_engine(archive.config.as_dict(quiet=True))
        pad_token_id = archive.validation_dataset_reader.tokenizer.pad_token_id

        def run(network: Any, policy: ExitPolicy, what: str) -> ExitDecisions:
            samples = share(ragged_parts(instances, pad_token_id, batch_size or BATCH_SIZE))
            runs = runner.run(network, policy, samples)
            runs = counted(runs, len(instances), what, " samples", lambda executed: len(executed.index))
            return gather_decisions(gathered(list(runs)), network.num_labels, len(instances))[1]

        decisions = run(network, policy, "evaluating")
        if predictions_file is not None and is_main():
            self.write_predictions(predictions_file, instances, decisions, model)
        found = self.measure(model, instances, decisions)
        metrics: dict[str, Any] = {**found.metrics, **found.details}
        metrics.update(depth_summary(decisions.exits, network.exit_layers, exit_costs(network, policy)))
        metrics.update(network.depth_of_tokens(instance.encoding["input_ids"] for instance in instances))
        if self.full_depth and policy.leaves_early and found.labelled:
            last = self.measure(model, instances, run(FullDepth(network), Final(), "evaluating at full depth"))
            metrics["last_exit"] = last.metrics
            if found.right is not None and last.right is not None:
                only = found.right & ~last.right, ~found.right & last.right
                metrics["against_last_exit"] = {"only_early": int(only[0].sum()), "only_last": int(only[1].sum())}
        metrics["samples"] = len(instances)
        metrics["labelled_samples"] = found.labelled
        metrics["exit_policy"] = policy.to_config()
        metrics["calibrated_on"] = archive.calibrated_on
        return metrics

    def measure(self, model: MultiExitModel, instances: Sequence[Instance], decisions: ExitDecisions) -> Measured:
        """The model's metric of samples with a label, and a summary of each class."""
        labels = label_tensor(instances, model.vocab)
        known = known_labels(labels)
        labels, predictions = labels[known], decisions.predictions[known]
        if not len(labels):
            return Measured({}, {}, None, 0)
        metrics = METRICS[model.metric](labels.numpy(), predictions.numpy())
        if model.vocab.is_regression:
            return Measured(metrics, {}, None, len(labels))
        count = model.vocab.num_labels
        matrix = torch.bincount(labels * count + predictions, minlength=count**2).view(count, count)
        hits, of_label, of_prediction = matrix.diagonal().double(), matrix.sum(1), matrix.sum(0)
        precision, recall = hits / of_prediction.clamp_min(1), hits / of_label.clamp_min(1)
        columns = precision, recall, 2 * hits / (of_label + of_prediction).clamp_min(1), of_label
        per_class = {
            name: dict(zip(("precision", "recall", "f1", "samples"), values, strict=True))
            for name, *values in zip(model.vocab.labels, *(column.tolist() for column in columns), strict=True)
        }
        found = {"per_class": per_class, "confusion_matrix": matrix.tolist()}
        return Measured(metrics, found, predictions == labels, len(labels))

    def records(
        self, model: MultiExitModel, decisions: ExitDecisions, fields: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """What was predicted of each sample, as in the output of `predict`; `fields` are those of the inputs."""
        names, probabilities = model.vocab.labels, decisions.log_probabilities.exp().tolist()
        return [
            {"label": names[label], "probabilities": row}
            for label, row in zip(decisions.predictions.tolist(), probabilities, strict=True)
        ]

    def legend(self, model: Any) -> str:
        policy = getattr(model, "exit_policy", None)
        if policy is None:  # a user's own model class without a policy
            return ""
        confident = getattr(getattr(policy, "policy", policy), "higher_is_more_confident", None)
        labels = [name if name.isprintable() and "," not in name else repr(name) for name in model.vocab.labels]
        shown = [f"probabilities are those of {', '.join(labels)}"] if self.answer == "label" else []
        if confident is not None:
            shown.append(f"a {'higher' if confident else 'lower'} score is more confident")
        return "; ".join(shown)

    def tables(self, metrics: dict[str, Any]) -> list[Table]:
        """One row a class: precision, recall, F1, samples, and how often each label was predicted instead."""
        classes = metrics.get("per_class")
        if not classes:
            return []
        matrix = metrics.get("confusion_matrix") or [[]] * len(classes)
        columns = text("class") + [Column(name, factor=100) for name in ("precision", "recall", "F1")]
        columns += [Column("samples", digits=0)]
        columns += [Column(f"as {name}", digits=0) for name in list(classes)[: len(matrix[0])]]
        rows = [
            [name, *values.values(), *counts] for (name, values), counts in zip(classes.items(), matrix, strict=True)
        ]
        return [Table(columns, rows, "each class" + ", and what its samples were predicted as" * bool(matrix[0]))]

    def trace(self, model: Any, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str) -> ExitTrace:
        return trace_model(text_model(model), batches, ids, source)

    def benchmark_cases(self, archive: Archive, options: BenchmarkOptions) -> Iterator[tuple[int, list[Case]]]:
        model = text_model(archive.model)
        cast_network(model.encoder, options.dtype)
        batches = batches_by_size(archive, options.instances or options.source, options.max_instances)
        engines = list(ENGINES) if options.engines is None else options.engines
        yield from cases_by_size(model.encoder, model.exit_policy, batches, options.batch_sizes, engines)

    def write_predictions(
        self, path: str, instances: Sequence[Instance], decisions: ExitDecisions, model: MultiExitModel
    ) -> None:
        with atomic_write(path) as file:
            answers = self.records(model, decisions, [instance.fields for instance in instances])
            for row, (instance, answer) in enumerate(zip(instances, answers, strict=True)):
                line: dict[str, Any] = {"index": row}
                if instance.id is not None:
                    line["id"] = instance.id
                line["exit"] = int(decisions.exits[row])
                line.update(answer)
                if instance.label is not None:
                    line[f"gold_{self.answer}"] = instance.label
                if decisions.scores is not None:
                    line["score"] = float(decisions.scores[row])
                file.write(json_line(line))


def text_model(model: Any) -> MultiExitModel:
    """The model, if it is of labelled texts."""
    if not isinstance(model, MultiExitModel):
        raise ConfigurationError(
            f"found a model {type(model).__name__}, allowed: multi_exit_classifier, multi_exit_regressor, "
            "multi_exit_tagger"
        )
    return model
