"""`allennlp evaluate`: runs the exit policy for real on labelled data."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from beem_plugin.archival import Archive, load_archive
from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.known_labels import known_labels
from beem_plugin.common.metrics import METRICS
from beem_plugin.common.outputs import check_outputs, check_writable
from beem_plugin.common.strict_json import json_line
from beem_plugin.data.collate import label_tensor, ragged_parts
from beem_plugin.data.instance import Instance
from beem_plugin.evaluation.caption_evaluation import CaptionEvaluation
from beem_plugin.evaluation.evaluation import ArchiveEvaluation, evaluation_loader, evaluation_of
from beem_plugin.execution import Engine
from beem_plugin.execution.engine import ExecutedBatch, gather_decisions
from beem_plugin.execution.file_engine import check_engine, file_engine
from beem_plugin.models import MultiExitModel
from beem_plugin.models.answers import answers

__all__ = ["CaptionEvaluation", "ClassificationEvaluation", "evaluate_archive", "evaluation_loader"]

logger = logging.getLogger(__name__)

BATCH_SIZE = 4096
"""Samples that an engine gets at once unless a batch size is given; it divides and sorts them."""


def evaluate_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/evaluate.py` parses them."""
    if args.extend_vocab or args.embedding_sources_mapping or args.batch_weight_key:
        raise ConfigurationError(
            "--extend-vocab, --embedding-sources-mapping, --batch-weight-key: allowed: none of them with this model"
        )
    sources = input_files(args.input_file)
    names = file_names(sources, args.auto_names in ("METRICS", "ALL"), args.output_file)
    prediction_names = file_names(
        sources, args.auto_names in ("PREDS", "ALL"), args.predictions_output_file, suffix=".preds"
    )
    # Of several inputs all metrics go into one file, unless there is a name for each.
    apart = args.auto_names in ("METRICS", "ALL") or "," in (args.output_file or "")
    whole = args.output_file if args.output_file and not apart else None
    written = {} if whole is None else {"--output-file": whole}
    for source, name, predictions_name in zip(sources, names, prediction_names, strict=True):
        if apart:
            written[f"--output-file of {source}"] = name
        written[f"--predictions-output-file of {source}"] = predictions_name
    if args.engine:
        check_engine(args.engine, "--engine")
    check_outputs(written, [args.archive_file, *sources, args.weights_file])
    check_writable(written)
    archive = load_archive(
        args.archive_file, cuda_device=args.cuda_device, overrides=args.overrides, weights_file=args.weights_file
    )
    engine = Engine.from_params({"type": args.engine}) if args.engine else None
    results: dict[str, Any] = {}
    for source, name, predictions_name in zip(sources, names, prediction_names, strict=True):
        metrics = evaluate_archive(archive, source, args.batch_size, engine, predictions_name)
        stems = [Path(other).stem for other in sources]
        stem = Path(source).stem if stems.count(Path(source).stem) == 1 else source
        prefix = "" if len(sources) == 1 else f"{stem}_"
        results.update({f"{prefix}{key}": value for key, value in metrics.items()})
        if name is not None and apart:
            write_json(name, metrics)
    if whole is not None:
        write_json(whole, results)
    logger.info("metrics: %s", json.dumps(results, indent=2))
    print(json.dumps(results, indent=2))
    return results


def input_files(text: str) -> list[str]:
    """One source, or several separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def file_names(sources: list[str], automatic: bool, given: str | None, suffix: str = ".outputs") -> list[str | None]:
    """An output file for each source: made from the source's name, or listed by commas, or one for all, or none."""
    if automatic:
        return [f"{Path(source).name}{suffix}" for source in sources]
    if given is None:
        return [None] * len(sources)
    names: list[str | None] = [name.strip() for name in given.split(",")]
    if len(names) == 1:
        return names * len(sources) if len(sources) == 1 else [f"{names[0]}.{Path(source).stem}" for source in sources]
    if len(names) != len(sources):
        raise ConfigurationError(
            f"found {len(sources)} input files and {len(names)} output files, allowed: as many, or 1"
        )
    return names


def evaluate_archive(
    archive: Archive,
    source: str,
    batch_size: int | None = None,
    engine: Engine | None = None,
    predictions_file: str | None = None,
) -> dict[str, Any]:
    """What `allennlp evaluate` writes, for a model of any kind; the parameters are those of `ArchiveEvaluation`."""
    return evaluation_of(archive).evaluate(archive, source, batch_size, engine, predictions_file)


@ArchiveEvaluation.register("classification")
class ClassificationEvaluation(ArchiveEvaluation):
    """
    The task's metrics of what left early, `layer_speedup`, `average_exit`, `exit_histogram`, `samples`, the policy, and
    which data it was calibrated on. Predictions are JSON lines: index, id, label, gold label, exit, score; of a
    regression value and gold value in the place of labels.

    Registered as an `ArchiveEvaluation` with name "classification".
    """

    def evaluate(
        self,
        archive: Archive,
        source: str,
        batch_size: int | None = None,
        engine: Engine | None = None,
        predictions_file: str | None = None,
    ) -> dict[str, Any]:
        return _evaluate_texts(archive, source, batch_size, engine, predictions_file)


def _evaluate_texts(
    archive: Archive, source: str, batch_size: int | None, engine: Engine | None, predictions_file: str | None
) -> dict[str, Any]:
    instances = archive.validation_dataset_reader.read(source)
    if not instances:
        raise ConfigurationError(f"{source}: found no sample to evaluate on")
    model = archive.model
    if not isinstance(model, MultiExitModel):
        raise ConfigurationError(
            f"evaluate: found a model {type(model).__name__}, allowed: multi_exit_classifier, multi_exit_regressor"
        )
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
        write_predictions(predictions_file, instances, decisions, model)
    known = known_labels(labels)
    metrics: dict[str, Any] = {}
    if bool(known.any()):
        metrics.update(METRICS[model.metric](labels[known].numpy(), decisions.predictions[known].numpy()))
    metrics.update(depth_summary(decisions.exits, model.encoder.exit_layers))
    metrics.update(model.encoder.depth_of_tokens(instance.encoding["input_ids"] for instance in instances))
    metrics["samples"] = len(instances)
    metrics["labelled_samples"] = int(known.sum())
    metrics["exit_policy"] = model.exit_policy.to_config()
    metrics["calibrated_on"] = archive.calibrated_on
    return metrics


def counted(runs: Iterable[ExecutedBatch], samples: int) -> Iterator[ExecutedBatch]:
    """Shows a progress bar."""
    with tqdm(total=samples, desc="evaluating", unit=" samples", mininterval=0.5) as bar:
        for executed in runs:
            yield executed
            bar.update(len(executed.index))


def write_predictions(
    path: str, instances: Sequence[Instance], decisions: ExitDecisions, model: MultiExitModel
) -> None:
    gold = "gold_value" if model.vocab.is_regression else "gold_label"
    with atomic_write(path) as file:
        for row, (instance, answer) in enumerate(zip(instances, answers(decisions, model.vocab), strict=True)):
            line: dict[str, Any] = {"index": row}
            if instance.id is not None:
                line["id"] = instance.id
            line["exit"] = int(decisions.exits[row])
            line.update(answer)
            if instance.label is not None:
                line[gold] = instance.label
            if decisions.scores is not None:
                line["score"] = float(decisions.scores[row])
            file.write(json_line(line))
