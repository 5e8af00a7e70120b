"""`allennlp replay`: what exit policies would do on stored traces."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beem_plugin.calibration.replay import ExitDecisions, replay
from beem_plugin.calibration.speed import trace_depth
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import BeemError, ConfigurationError, not_allowed
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.outputs import check_outputs
from beem_plugin.comparison.families import JudgedFamily, JudgedTrace, build, family_curve, fit_families, judge_families
from beem_plugin.comparison.measuring import ON_ITSELF, describe_result, measure
from beem_plugin.comparison.policy_files import Variant, error_at, load_variants
from beem_plugin.comparison.replay_files import shortest_names, trace_paths
from beem_plugin.comparison.replay_output import curve_rows, result_rows, write_results_csv
from beem_plugin.comparison.table import print_curves_table, print_results_table
from beem_plugin.exits.policy import ExitPolicy

__all__ = ["measure", "replay_from_args"]  # `measure` is what other reports take from here


CURVE_METRICS = ("accuracy", "f1", "accuracy_f1", "macro_f1", "matthews")
REGRESSION_METRIC = "pearson_spearman"


def replay_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/replay.py` parses them."""
    paths, calibrations = trace_paths(args.trace, args.calibrate_on or [])
    variants = load_variants(args.policy or [], args.policies or [], args.overrides)
    check_arguments(args, paths, variants)
    check_outputs(
        {
            "--output-file": args.output_file,
            "--csv": args.csv,
            "--plot": args.plot,
            "--predictions-output-file": args.predictions_output_file,
        },
        [*paths, *calibrations, *(args.policy or []), *(args.policies or [])],
    )
    judged: list[JudgedTrace] = []
    metric = args.metric
    for name, path, other in zip(shortest_names(paths), paths, calibrations, strict=True):
        trace = ExitTrace.load(path)
        calibration = ExitTrace.load(other) if other else None
        if calibration is not None:
            check_same_network(trace, calibration, path, str(other))
        metric = metric_for(trace, metric, path)
        with errors_at(path):  # not every metric is one for every number of labels
            measure(trace, trace.predictions[:, -1], [metric])
        families: list[JudgedFamily] = []
        for variant in variants:
            with errors_at(variant.where):
                families += judge(variant, trace, calibration, args, metric)
        judged.append(JudgedTrace(name if len(paths) > 1 else None, trace, families))

    results, curves = result_rows(judged), curve_rows(judged, metric, with_points=args.curve)
    output = results[0] if len(results) == 1 and not curves else {"results": results}
    if curves:
        output["curves"] = curves
    if args.output_file:
        write_json(args.output_file, output)
    if args.csv:
        write_results_csv(args.csv, judged, metric)
    if args.plot:
        from beem_plugin.comparison.curve_plot import write_curve_plot

        write_curve_plot(args.plot, judged, metric)
    print_results_table(judged, metric)
    if curves:
        print_curves_table(curves, metric)
    return output


def judge(
    variant: Variant, trace: ExitTrace, calibration: ExitTrace | None, args: argparse.Namespace, metric: str
) -> list[JudgedFamily]:
    """All settings of `variant` on `trace`, with their curves."""
    if variant.is_sweep:
        fitted = fit_families(variant, trace, calibration)
        found = judge_families(fitted, trace, calibration, [metric])
        pairs = [(family.policies[0], judged) for family, judged in zip(fitted, found, strict=True)]
    else:
        policy, result, decisions = replay_policy(variant.settings[0].config, trace, calibration, [metric])
        if args.predictions_output_file:
            write_predictions(args.predictions_output_file, decisions)
        pairs = [(policy, JudgedFamily(variant.name, [{"name": variant.name, **result}]))]
    for policy, judged in pairs:
        judged.curve = family_curve(policy, judged.results, trace, metric, args.curve)
    return [judged for _, judged in pairs]


def replay_policy(
    config: dict[str, Any], trace: ExitTrace, calibration: ExitTrace | None, metrics: Sequence[str] = ()
) -> tuple[ExitPolicy, dict[str, Any], ExitDecisions]:
    """
    # Parameters

    config : `dict[str, Any]`
        An exit policy's config.
    trace : `ExitTrace`
        What is judged on.
    calibration : `ExitTrace`, optional
        What open weights and thresholds are fitted on.
    metrics : `Sequence[str]`, optional (default = `()`)
        Beside accuracy and the task's own.

    # Returns

    `tuple[ExitPolicy, dict[str, Any], ExitDecisions]`
        The fitted policy; the metrics of what leaves early, those of the last exit, the layer speed-up, what was
        calibrated; and the decisions.
    """
    policy = build(config, trace)
    report = None
    if calibration is not None:
        report = policy.calibrate(calibration)
        if calibration.same_data(trace):
            report.warnings.append(ON_ITSELF)
    decisions = replay(policy, trace)
    result = describe_result(
        trace,
        policy,
        metrics=measure(trace, decisions.predictions, metrics),
        final_metrics=measure(trace, trace.predictions[:, -1], metrics),
        depth=trace_depth(trace, decisions.exits),
        warnings=[*([] if report is None else report.warnings), *policy.out_of_reach()],
        report=report,
    )
    return policy, result, decisions


def check_arguments(args: argparse.Namespace, paths: Sequence[str], variants: Sequence[Variant]) -> None:
    """Raises a `ConfigurationError` for arguments that do not go together, before anything is computed."""
    if args.metric is not None and args.metric not in (*CURVE_METRICS, REGRESSION_METRIC):
        raise ConfigurationError(not_allowed("--metric", args.metric, [*CURVE_METRICS, REGRESSION_METRIC]))
    settings = sum(len(variant.settings) for variant in variants)
    if args.predictions_output_file and (len(paths) > 1 or settings > 1 or variants[0].is_sweep):
        raise ConfigurationError(
            f"--predictions-output-file: found {len(paths)} trace(s) and {settings} setting(s) of policies, allowed: "
            "one trace and one policy, without a grid"
        )
    if args.plot and Path(args.plot).suffix.lower() not in (".png", ".svg"):
        raise ConfigurationError(f"--plot: found {args.plot}, allowed: a file name that ends in .png or .svg")


def metric_for(trace: ExitTrace, wanted: str | None, path: str) -> str:
    """What curves on `trace` are about: `wanted`, or accuracy; a regression has one metric."""
    allowed = [REGRESSION_METRIC] if trace.is_regression else list(CURVE_METRICS)
    if wanted is not None and wanted not in allowed:
        raise ConfigurationError(not_allowed(f"{path}: --metric", wanted, allowed))
    return wanted or allowed[0]


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Errors get the name of the file that they are about in front."""
    try:
        yield
    except BeemError as error:
        raise error_at(where, error) from None


def check_same_network(trace: ExitTrace, calibration: ExitTrace, path: str, other: str) -> None:
    """Raises a `ConfigurationError` if the two traces cannot come from one network."""
    for what, here, there in (
        ("exits", trace.exit_layers, calibration.exit_layers),
        ("labels", trace.num_labels, calibration.num_labels),
        ("label names", trace.meta.get("label_names"), calibration.meta.get("label_names")),
    ):
        # A trace that was made elsewhere may know no names.
        if here != there and None not in (here, there):
            raise ConfigurationError(f"--calibrate-on: {other} has {what} {there}, found {here} in {path}")


def write_predictions(path: str, decisions: ExitDecisions) -> None:
    exits, labels = decisions.exits.tolist(), decisions.predictions.tolist()
    name = "value" if decisions.predictions.is_floating_point() else "label"
    scores = None if decisions.scores is None else decisions.scores.tolist()
    with atomic_write(path) as file:
        for index, (exit_number, label) in enumerate(zip(exits, labels, strict=True)):
            line: dict[str, Any] = {"index": index, "exit": exit_number, name: label}
            if scores is not None:
                line["score"] = scores[index]
            file.write(json.dumps(line) + "\n")
