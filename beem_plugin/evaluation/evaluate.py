"""`allennlp evaluate`: runs the exit policy on labelled data. It prints tables, and JSON where output is redirected."""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from beem_plugin.archival import Archive, archive_of
from beem_plugin.calibration.report import binomial_interval
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.outputs import check_outputs, check_writable, listed
from beem_plugin.common.ranks import is_main, joined
from beem_plugin.evaluation.statistics import (
    Difference,
    Interval,
    mcnemar_of_counts,
    metric_intervals,
    speedup_interval,
)
from beem_plugin.execution import Engine
from beem_plugin.execution.engine import check_engine
from beem_plugin.execution.metering.macs import exit_costs
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.rendering.pages.evaluation import evaluation_page, shown_figures
from beem_plugin.rendering.tables import Table, text
from beem_plugin.tasks.task import task_of_archive, warn_without_exits


def evaluate_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/evaluate.py` parses them."""
    if args.extend_vocab or args.embedding_sources_mapping or args.batch_weight_key:
        raise ConfigurationError(
            "--extend-vocab, --embedding-sources-mapping, --batch-weight-key: allowed: none of them with this model"
        )
    sources = listed(args.input_file)
    names = file_names(sources, args.auto_names in ("METRICS", "ALL"), args.output_file)
    prediction_names = file_names(
        sources, args.auto_names in ("PREDS", "ALL"), args.predictions_output_file, suffix=".preds"
    )
    # Of several inputs all metrics go into one file, unless there is a name for each.
    apart = args.auto_names in ("METRICS", "ALL") or "," in (args.output_file or "")
    if args.html and len(sources) > 1:
        raise ConfigurationError(f"--html: found {len(sources)} input files, allowed: one")
    written = {} if apart else {"--output-file": args.output_file}
    for source, name, predictions_name in zip(sources, names, prediction_names, strict=True):
        written |= {f"--output-file of {source}": name} if apart else {}
        written[f"--predictions-output-file of {source}"] = predictions_name
    written["--html"] = args.html
    if args.engine:
        check_engine(args.engine, "--engine")
    check_outputs(written, [args.archive_file, *sources, args.weights_file])
    check_writable(written)
    with joined():
        return evaluate_sources(args, dict(zip(sources, zip(names, prediction_names), strict=True)), apart)


def evaluate_sources(
    args: argparse.Namespace, sources: Mapping[str, tuple[str | None, str | None]], apart: bool
) -> dict[str, Any]:
    """Evaluates each source; of several processes the first writes its metrics, if kept `apart`, and predictions."""
    archive = archive_of(args)
    warn_without_exits(archive.model)
    engine = Engine.from_params({"type": args.engine}) if args.engine else None
    results: dict[str, Any] = {}
    stems = [Path(source).stem for source in sources]
    for source, (name, predictions_name) in sources.items():
        found = evaluate_archive(archive, source, args.batch_size, engine, predictions_name)
        metrics = found.to_json()
        stem = Path(source).stem
        prefix = "" if len(sources) == 1 else f"{stem if stems.count(stem) == 1 else source}_"
        results.update({f"{prefix}{key}": value for key, value in metrics.items()})
        if not is_main():
            continue
        if name is not None and apart:
            write_json(name, metrics)
        for table in (found.summary(source), *found.tables):
            table.print(stderr=not sys.stdout.isatty())
        if args.html:
            with atomic_write(args.html) as file:
                file.write(evaluation_page(args.archive_file, source, metrics, found.tables))
    if args.output_file and not apart and is_main():
        write_json(args.output_file, results)
    if not sys.stdout.isatty() and is_main():
        print(readable_json(results))
    return results


def readable_json(value: Any) -> str:
    """Indented JSON with lists of numbers in one line each: a calibrated policy may have a hundred coefficients."""
    text = json.dumps(value, indent=2)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text)


def file_names(sources: list[str], automatic: bool, given: str | None, suffix: str = ".outputs") -> list[str | None]:
    """An output file for each source: made from the source's name, or listed by commas, or one for all, or none."""
    if automatic:
        return [f"{Path(source).name}{suffix}" for source in sources]
    if given is None:
        return [None] * len(sources)
    if len(sources) == 1:
        return [given]
    names: list[str | None] = [name.strip() for name in given.split(",")]
    if len(names) == 1:
        return [f"{names[0]}.{Path(source).stem}" for source in sources]
    if len(names) != len(sources):
        raise ConfigurationError(
            f"found {len(sources)} input files and {len(names)} output files, allowed: as many, or 1"
        )
    return names


@dataclass
class Evaluation:
    """What `evaluate` measured on one source."""

    metrics: dict[str, Any]  # as `Task.evaluate` gives them
    intervals: dict[str, Interval] = field(default_factory=dict)
    """95 %, of the metrics of labels and of `layer_speedup`, where samples are independent."""
    difference: Difference | None = None  # of accuracy from the last exit's, paired by sample
    tables: list[Table] = field(default_factory=list)  # the task's own, such as one a class

    def to_json(self) -> dict[str, Any]:
        """What `--output-file` holds."""
        found = {**self.metrics, "intervals": self.intervals} if self.intervals else dict(self.metrics)
        return found if self.difference is None else {**found, "difference_from_last_exit": self.difference.to_json()}

    def summary(self, source: str) -> Table:
        """Every number with its interval and the last exit's; policy and classes are left out."""
        table = Table(text("metric", "early exit", "95 % interval", "last exit"), title=source)
        table.rows += map(list, shown_figures(self.to_json()))
        if "exit_histogram" in self.metrics:
            table.notes.append(f"left at exit 1, 2, ...: {' '.join(map(str, self.metrics['exit_histogram']))}")
        if self.difference is not None:
            table.notes.append(
                f"accuracy against the last exit: {self.difference.text()}, McNemar's test on the same samples"
            )
        return table


def evaluate_archive(
    archive: Archive,
    source: str,
    batch_size: int | None = None,
    engine: Engine | None = None,
    predictions_file: str | None = None,
) -> Evaluation:
    """Runs the archive's task; the parameters are those of `Task.evaluate`."""
    task = task_of_archive(archive)
    metrics = task.evaluate(archive, source, batch_size, engine, predictions_file)
    found = Evaluation(metrics, tables=task.tables(metrics))
    labelled = metrics.get("labelled_samples")
    if labelled and (matrix := metrics.get("confusion_matrix")) is not None:
        gold, predicted = np.nonzero(matrix)
        counts = np.array(matrix)[gold, predicted]
        found.intervals |= metric_intervals([str(archive.model.metric)], gold, predicted, counts)
    elif labelled and "accuracy" in metrics:
        found.intervals["accuracy"] = binomial_interval(round(metrics["accuracy"] * labelled), labelled)
    if labelled is not None and "token_exit_histogram" not in metrics:
        network, policy = archive.model.exit_network, archive.model.exit_policy
        costs = exit_costs(network, cast(ExitPolicy, policy))
        interval = speedup_interval(metrics["exit_histogram"], list(network.exit_layers), costs)
        if interval is not None:
            found.intervals["layer_speedup"] = interval
    if labelled and (only := metrics.get("against_last_exit")) is not None:
        found.difference = mcnemar_of_counts(only["only_early"], only["only_last"], labelled)
    return found
