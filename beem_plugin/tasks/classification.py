"""Text classification: one label a text, from every exit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from beem_plugin.archival import Archive
from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write
from beem_plugin.common.known_labels import known_labels
from beem_plugin.common.metrics import METRICS
from beem_plugin.common.strict_json import json_line
from beem_plugin.data.collate import label_tensor, ragged_parts
from beem_plugin.data.instance import Instance
from beem_plugin.execution import Engine
from beem_plugin.execution.engine import ExecutedBatch, gather_decisions
from beem_plugin.execution.file_engine import file_engine
from beem_plugin.execution.metering.macs import exit_costs
from beem_plugin.execution.precision import cast_network
from beem_plugin.models.decision_records import decision_records
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.rendering.tables import Column, Table, text
from beem_plugin.tasks.engine_cases import batches_by_size, cases_by_size
from beem_plugin.tasks.task import BenchmarkOptions, Case, Task

logger = logging.getLogger(__name__)

BATCH_SIZE = 4096
"""Samples that an engine gets at once unless a batch size is given; it divides and sorts them."""

ENGINES = ("single", "compaction", "depth_pools")
"""What `benchmark` measures by default."""


@Task.register("classification")
class Classification(Task):
    """
    `evaluate` gives the metrics under the policy, `layer_speedup`, `average_exit`, `exit_histogram`, `samples`,
    `per_class` (precision, recall, F1 and number of samples of each label) and `confusion_matrix` (rows: gold label),
    the policy, and which data it was calibrated on. Predictions are JSON lines: index, id, label, gold label, exit,
    score.

    Registered as a `Task` with name "classification".
    """

    gold = "gold_label"

    def evaluate(
        self,
        archive: Archive,
        source: str,
        batch_size: int | None = None,
        engine: Engine | None = None,
        predictions_file: str | None = None,
    ) -> dict[str, Any]:
        instances = archive.validation_dataset_reader.read(source)
        if not instances:
            raise ConfigurationError(f"{source}: found no sample to evaluate on")
        model = text_model(archive.model)
        for warning in model.exit_policy.out_of_reach():
            logger.warning("exit policy: %s", warning)
        if engine is None and (chosen := file_engine(archive.config.as_dict(quiet=True))) is not None:
            engine = Engine.from_params(chosen)
        engine = engine if engine is not None else model.engine
        samples = ragged_parts(
            instances, archive.validation_dataset_reader.tokenizer.pad_token_id, batch_size or BATCH_SIZE
        )
        runs = counted(engine.run(model.encoder, model.exit_policy, samples), len(instances))
        _, decisions = gather_decisions(runs, model.encoder.num_labels, len(instances))
        labels = label_tensor(instances, model.vocab)
        if predictions_file is not None:
            self.write_predictions(predictions_file, instances, decisions, model)
        known = known_labels(labels)
        metrics: dict[str, Any] = {}
        if bool(known.any()):
            metrics.update(self.measure(model, labels[known], decisions.predictions[known]))
        costs = exit_costs(model.encoder, model.exit_policy)
        metrics.update(depth_summary(decisions.exits, model.encoder.exit_layers, costs))
        metrics.update(model.encoder.depth_of_tokens(instance.encoding["input_ids"] for instance in instances))
        metrics["samples"] = len(instances)
        metrics["labelled_samples"] = int(known.sum())
        metrics["exit_policy"] = model.exit_policy.to_config()
        metrics["calibrated_on"] = archive.calibrated_on
        return metrics

    def measure(self, model: MultiExitModel, labels: Tensor, predictions: Tensor) -> dict[str, Any]:
        """The model's metric of samples with a label, and a summary of each class."""
        from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

        found: dict[str, Any] = METRICS[model.metric](labels.numpy(), predictions.numpy())
        numbers = list(range(model.vocab.num_labels))
        columns = precision_recall_fscore_support(labels, predictions, labels=numbers, zero_division=0.0)
        found["per_class"] = {
            name: {"precision": float(p), "recall": float(r), "f1": float(f), "samples": int(n)}
            for name, p, r, f, n in zip(model.vocab.labels, *columns, strict=True)
        }
        found["confusion_matrix"] = confusion_matrix(labels, predictions, labels=numbers).tolist()
        return found

    def tables(self, metrics: dict[str, Any]) -> list[Table]:
        """One row a class: precision, recall, F1, samples, and how often each label was predicted instead."""
        classes = metrics.get("per_class")
        if not classes:
            return []
        columns = text("class") + [Column(name, factor=100) for name in ("precision", "recall", "F1")]
        columns += [Column(name, digits=0) for name in ("samples", *(f"as {name}" for name in classes))]
        rows = [
            [name, *values.values(), *counts]
            for (name, values), counts in zip(classes.items(), metrics["confusion_matrix"], strict=True)
        ]
        return [Table(columns, rows, "each class, and what its samples were predicted as")]

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
            for row, (instance, answer) in enumerate(
                zip(instances, decision_records(decisions, model.vocab), strict=True)
            ):
                line: dict[str, Any] = {"index": row}
                if instance.id is not None:
                    line["id"] = instance.id
                line["exit"] = int(decisions.exits[row])
                line.update(answer)
                if instance.label is not None:
                    line[self.gold] = instance.label
                if decisions.scores is not None:
                    line["score"] = float(decisions.scores[row])
                file.write(json_line(line))


def text_model(model: Any) -> MultiExitModel:
    """The model, if it is of labelled texts."""
    if not isinstance(model, MultiExitModel):
        raise ConfigurationError(
            f"found a model {type(model).__name__}, allowed: multi_exit_classifier, multi_exit_regressor"
        )
    return model


def counted(runs: Iterable[ExecutedBatch], samples: int) -> Iterator[ExecutedBatch]:
    """Shows a progress bar."""
    with tqdm(total=samples, desc="evaluating", unit=" samples", mininterval=0.5) as bar:
        for executed in runs:
            yield executed
            bar.update(len(executed.index))


def trace_model(
    model: MultiExitModel, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str
) -> ExitTrace:
    """See `Task.trace`."""
    was_training = model.training
    model.eval()
    indices, logits, labels = [], [], []
    signals: dict[str, list[Tensor]] = {name: [] for name in sorted(model.encoder.available_signals)}
    unknown = torch.tensor(float("nan") if model.vocab.is_regression else -1)
    tokens: list[Tensor] = []
    with torch.inference_mode():
        for batch in batches:
            inputs = {name: value.to(model.device) for name, value in batch.items() if name not in ("index", "label")}
            outputs = model.encoder.outputs(inputs)
            logits.append(outputs.logits.cpu())
            for name, values in signals.items():
                values.append(outputs.signals[name].float().cpu())
            indices.append(batch["index"].cpu())
            if model.encoder.tokens_leave:
                masks = batch["attention_mask"].cpu().bool()
                tokens += [ids[mask] for ids, mask in zip(batch["input_ids"].cpu(), masks, strict=True)]
            labels.append(batch["label"].cpu() if "label" in batch else unknown.expand(len(batch["index"])))
    model.train(was_training)
    meta: dict[str, Any] = {
        "exit_layers": model.encoder.exit_layers,
        "label_names": model.vocab.labels,
        "metric": model.metric,
        "source": source,
    }
    if (costs := exit_costs(model.encoder)) != model.encoder.exit_layers:
        meta["exit_costs"] = costs
    if not indices:
        empty = torch.zeros(0, model.encoder.num_exits, model.encoder.num_labels)
        none = {name: torch.zeros(0, model.encoder.num_exits) for name in signals}
        return ExitTrace(empty, unknown.new_zeros(0), ids, none, meta)
    # Outside of inference mode, so that a rule can be fitted on the trace by gradients.
    order = torch.cat(indices).argsort()
    stacked = {name: torch.cat(values)[order] for name, values in signals.items()}
    depth = model.encoder.token_depth([tokens[row] for row in order.tolist()]) if tokens else None
    return ExitTrace(torch.cat(logits)[order], torch.cat(labels)[order], ids, stacked, meta, depth)
