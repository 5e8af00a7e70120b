"""`allennlp replay`: what exit policies do on stored traces, without the network."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.outputs import check_outputs
from beem_plugin.comparison.operating_curve import (
    CURVE_POINTS,
    FamilyResult,
    TraceResult,
    family_curve,
    fit_families,
    judge_families,
)
from beem_plugin.comparison.policy_files import NamedPolicy, errors_at, load_policies, shortest_names, trace_paths
from beem_plugin.comparison.replay_tables import csv_records, curves_table, pairs_table, results_table, speed_panels
from beem_plugin.comparison.result import measure, replay_policy
from beem_plugin.evaluation.statistics import Difference, mcnemar
from beem_plugin.rendering.plots import need_plots, save_figure, speed_plot
from beem_plugin.rendering.tables import write_csv

CURVE_METRICS = ("accuracy", "f1", "accuracy_f1", "macro_f1", "matthews")
REGRESSION_METRIC = "pearson_spearman"
MAX_PAIRED = 8
"""Paired tests are made of so many single policies at most."""


@dataclass
class Replay:
    """
    # Parameters

    traces : `list[TraceResult]`
    metric : `str`
        What curves and the order of tables are about.
    with_points : `bool`
        Whether curves go into JSON with their points.
    """

    traces: list[TraceResult]
    metric: str
    with_points: bool = False
    decisions: dict[str, ExitDecisions] = field(default_factory=dict)

    def curves(self) -> list[dict[str, Any]]:
        """One entry a curve: `area`, the value `at` each speed-up, that of the last exit, and points if wanted."""
        rows = []
        for trace, family in ((one, family) for one in self.traces for family in one.families):
            if family.curve is None:
                continue
            label = {} if trace.name is None else {"trace": trace.name}
            row = {"name": family.name, **label, "settings": len(family.results), **family.summary(self.metric)}
            if self.with_points:
                shown = family.curve.thinned(CURVE_POINTS)
                points = {"layer_speedup": shown.speedup.tolist(), self.metric: shown.accuracy.tolist()}
                row["points"] = {**points, "settings": shown.settings}
            rows.append(row)
        return rows

    def pairs(self) -> list[tuple[str | None, str, str, Difference]]:
        """Single policies of each trace, two by two, and each against the last exit: accuracy on the same samples."""
        found = []
        for trace in self.traces:
            first = [family.results[0] for family in trace.families]
            right = {result.name: result.right for result in first if result.right is not None}
            if not right or len(right) > MAX_PAIRED:
                continue
            last = (trace.trace.predictions[:, -1] == trace.trace.labels)[trace.trace.known]
            found += [(trace.name, name, "last exit", mcnemar(one, last.numpy())) for name, one in right.items()]
            for (name, one), (other_name, other) in itertools.combinations(right.items(), 2):
                found.append((trace.name, name, other_name, mcnemar(one, other)))
        return found

    def to_json(self) -> dict[str, Any]:
        """What `--output-file` holds."""
        results = [
            result.to_json(trace.name)
            for trace in self.traces
            for family in trace.families
            for result in family.results
        ]
        curves = self.curves()
        pairs = [
            {**({} if trace is None else {"trace": trace}), "first": first, "second": second, **difference.to_json()}
            for trace, first, second, difference in self.pairs()
        ]
        output: dict[str, Any] = results[0] if len(results) == 1 and not curves else {"results": results}
        if curves:
            output["curves"] = curves
        if pairs:
            output["paired_tests"] = pairs
        return output


def replay_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/replay.py` parses them."""
    paths, calibrations = trace_paths(args.trace, args.calibrate_on or [])
    policies = load_policies(args.policy or [], args.policies or [], args.overrides)
    check_arguments(args, paths, policies)
    outputs = ("output_file", "csv", "plot", "table", "predictions_output_file")
    check_outputs(
        {f"--{name.replace('_', '-')}": getattr(args, name) for name in outputs},
        [*paths, *calibrations, *(args.policy or []), *(args.policies or [])],
    )
    found = replay_traces(paths, calibrations, policies, args.metric, args.curve)
    output = found.to_json()
    if args.output_file:
        write_json(args.output_file, output)
    if args.csv:
        write_csv(args.csv, csv_records(found.traces, found.metric))
    if args.plot:
        save_figure(speed_plot(speed_panels(found.traces, found.metric)), args.plot)
    if args.predictions_output_file:
        write_predictions(args.predictions_output_file, found.decisions)
    table = results_table(found.traces, found.metric)
    if args.table:
        results_table(found.traces, found.metric, max_rows=None).write(args.table)
    table.print()
    if curves := found.curves():
        curves_table(curves, found.metric).print()
    if pairs := found.pairs():
        pairs_table(pairs).print()
    return output


def replay_traces(
    paths: Sequence[str],
    calibrations: Sequence[str | None],
    policies: Sequence[NamedPolicy],
    metric: str | None = None,
    sweep: bool = False,
) -> Replay:
    """
    # Parameters

    paths : `Sequence[str]`
        Trace files.
    calibrations : `Sequence[str | None]`
        For each of them the trace that weights and thresholds are fitted on.
    policies : `Sequence[NamedPolicy]`
    metric : `str`, optional (default = accuracy, or a regression's own)
    sweep : `bool`, optional (default = `False`)
        Whether curves go through all thresholds that make a difference.
    """
    found = Replay([], metric or "", sweep)
    for name, path, other in zip(shortest_names(paths), paths, calibrations, strict=True):
        trace = ExitTrace.load(path)
        calibration = ExitTrace.load(other) if other else None
        if calibration is not None:
            check_same_network(trace, calibration, path, str(other))
        found.metric = metric_for(trace, metric or found.metric or None, path)
        with errors_at(path):  # not every metric is defined for every number of labels
            measure(trace, trace.predictions[:, -1], [found.metric])
        families: list[FamilyResult] = []
        for policy in policies:
            with errors_at(policy.where):
                families += _judge(policy, trace, calibration, sweep, found)
        found.traces.append(TraceResult(name if len(paths) > 1 else None, trace, families))
    return found


def _judge(
    policy: NamedPolicy, trace: ExitTrace, calibration: ExitTrace | None, sweep: bool, found: Replay
) -> list[FamilyResult]:
    """All settings of `policy` on `trace`, with their curves."""
    if policy.is_sweep:
        fitted = fit_families(policy, trace, calibration)
        judged = judge_families(fitted, trace, calibration, [found.metric])
        pairs = [(family.policies[0], result) for family, result in zip(fitted, judged, strict=True)]
    else:
        config = policy.settings[0].config
        one, result, decisions = replay_policy(config, trace, calibration, [found.metric], policy.name)
        found.decisions[policy.name] = decisions
        pairs = [(one, FamilyResult(policy.name, [result]))]
    for one, judged_family in pairs:
        judged_family.curve = family_curve(one, judged_family.results, trace, found.metric, sweep)
    return [judged_family for _, judged_family in pairs]


def check_arguments(args: argparse.Namespace, paths: Sequence[str], policies: Sequence[NamedPolicy]) -> None:
    """Raises a `ConfigurationError` for arguments that do not go together, before anything is computed."""
    if args.metric is not None and args.metric not in (*CURVE_METRICS, REGRESSION_METRIC):
        raise ConfigurationError(not_allowed("--metric", args.metric, [*CURVE_METRICS, REGRESSION_METRIC]))
    settings = sum(len(policy.settings) for policy in policies)
    if args.predictions_output_file and (len(paths) > 1 or any(policy.is_sweep for policy in policies)):
        raise ConfigurationError(
            f"--predictions-output-file: found {len(paths)} trace(s) and {settings} setting(s) of policies, allowed: "
            "one trace and policies without a grid"
        )
    if args.plot:
        if Path(args.plot).suffix.lower() not in (".png", ".svg"):
            raise ConfigurationError(f"--plot: found {args.plot}, allowed: a file name that ends in .png or .svg")
        need_plots("--plot")


def metric_for(trace: ExitTrace, wanted: str | None, path: str) -> str:
    """What curves on `trace` are about: `wanted`, or accuracy; a regression has one metric."""
    allowed = [REGRESSION_METRIC] if trace.is_regression else list(CURVE_METRICS)
    if wanted is not None and wanted not in allowed:
        raise ConfigurationError(not_allowed(f"{path}: --metric", wanted, allowed))
    return wanted or allowed[0]


def check_same_network(trace: ExitTrace, calibration: ExitTrace, path: str, other: str) -> None:
    """Raises a `ConfigurationError` if the two traces cannot come from one network."""
    for what, here, there in (
        ("exits", trace.exit_layers, calibration.exit_layers),
        ("labels", trace.num_labels, calibration.num_labels),
        ("label names", trace.meta.get("label_names"), calibration.meta.get("label_names")),
    ):
        # A trace that was made elsewhere may have no names.
        if here != there and None not in (here, there):
            raise ConfigurationError(f"--calibrate-on: {other} has {what} {there}, found {here} in {path}")


def write_predictions(path: str, decisions: dict[str, ExitDecisions]) -> None:
    """JSON lines with `index`, `exit`, `label` (or `value`) and `score`; of several policies with `policy` first."""
    with atomic_write(path) as file:
        for policy, found in decisions.items():
            first = {} if len(decisions) == 1 else {"policy": policy}
            name = "value" if found.predictions.is_floating_point() else "label"
            columns = {"exit": found.exits.tolist(), name: found.predictions.tolist()}
            if found.scores is not None:
                columns["score"] = found.scores.tolist()
            for index, values in enumerate(zip(*columns.values(), strict=True)):
                file.write(json.dumps({**first, "index": index, **dict(zip(columns, values, strict=True))}) + "\n")
