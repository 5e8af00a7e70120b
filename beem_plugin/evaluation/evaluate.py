"""`allennlp evaluate`: runs the exit policy on labelled data and scores it."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, cast

from beem_plugin.archival import Archive, load_archive
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.outputs import check_outputs, check_writable
from beem_plugin.evaluation.statistics import binomial_interval, speedup_interval
from beem_plugin.execution import Engine
from beem_plugin.execution.file_engine import check_engine
from beem_plugin.execution.metering.macs import exit_costs
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.rendering.pages.evaluation import evaluation_page
from beem_plugin.tasks.task import task_of_archive


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
    if args.html:
        if len(sources) > 1:
            raise ConfigurationError(f"--html: found {len(sources)} input files, allowed: one")
        written["--html"] = args.html
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
        tables = task_of_archive(archive).tables(metrics)
        for table in tables:
            table.print(stderr=True)
        if args.html:
            with atomic_write(args.html) as file:
                file.write(evaluation_page(args.archive_file, source, metrics, tables))
    if whole is not None:
        write_json(whole, results)
    print(readable_json(results))
    return results


def readable_json(value: Any) -> str:
    """Indented JSON with lists of numbers in one line each: a calibrated policy may have a hundred coefficients."""
    text = json.dumps(value, indent=2)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text)


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
    """
    The metrics of the archive's task, and the 95 % `intervals` of `accuracy` and `layer_speedup` where samples are
    independent; the parameters are those of `Task.evaluate`.
    """
    metrics = task_of_archive(archive).evaluate(archive, source, batch_size, engine, predictions_file)
    intervals: dict[str, Any] = {}
    labelled = metrics.get("labelled_samples")
    if labelled and "accuracy" in metrics:
        intervals["accuracy"] = binomial_interval(round(metrics["accuracy"] * labelled), labelled)
    if labelled is not None and "token_exit_histogram" not in metrics:
        network, policy = archive.model.exit_network, archive.model.exit_policy
        costs = exit_costs(network, cast(ExitPolicy, policy))
        intervals["layer_speedup"] = speedup_interval(metrics["exit_histogram"], list(network.exit_layers), costs)
    return {**metrics, "intervals": intervals} if intervals else metrics
