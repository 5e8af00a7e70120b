"""`allennlp replay`: what exit policies do on stored traces, without the network."""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.calibration.replay import ExitDecisions
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.outputs import check_outputs
from beem_plugin.comparison.operating_curve import CURVE_POINTS, TraceJudge, TraceResult
from beem_plugin.comparison.plain_networks import plain_of_each, with_plain
from beem_plugin.comparison.policy_files import NamedPolicy, errors_at, load_policies, shortest_names, trace_paths
from beem_plugin.comparison.replay_tables import csv_records, curves_table, pairs_table, results_table, speed_panels
from beem_plugin.comparison.result import SplitCost, check_same_network
from beem_plugin.evaluation.statistics import Difference, mcnemar, paired_difference
from beem_plugin.rendering.plots import need_plots, save_figure, speed_plot
from beem_plugin.rendering.tables import write_csv

CURVE_METRICS = ("accuracy", "f1", "accuracy_f1", "macro_f1", "matthews")
REGRESSION_METRIC = "pearson_spearman"
MAX_PAIRED = 8  # paired tests are made of so many single policies at most


@dataclass
class Replay:
    """
    What policies do on traces; `metric` is that of curves and of the order of tables, `with_points` puts curves into
    JSON point by point, `decisions` are those of policies without a grid on the last trace, by name; `reference`, the
    plain network of full depth, is what all others are tested against.
    """

    traces: list[TraceResult]
    metric: str
    with_points: bool = False
    decisions: dict[str, ExitDecisions] = field(default_factory=dict)
    reference: str | None = None

    def curves(self) -> list[dict[str, Any]]:
        """One entry a curve: `area`, the value `at` each speed-up, that of the last exit, and points if wanted."""
        rows = []
        for trace, family in ((one, family) for one in self.traces for family in one.families):
            if family.curve is None:
                continue
            row = {"name": family.name, **trace.label, "settings": len(family.results), **family.summary(self.metric)}
            if self.with_points:
                shown = family.curve.thinned(CURVE_POINTS)
                points = {"layer_speedup": shown.speedup.tolist(), self.metric: shown.accuracy.tolist()}
                row["points"] = {**points, "settings": shown.settings}
            rows.append(row)
        return rows

    def pairs(self) -> list[dict[str, Any]]:
        """
        Paired tests of policies and the last exit, two by two or all against `reference`: on each trace, over several.
        """
        return [
            {**label, "first": one, "second": other, **test(values[one], values[other]).to_json()}
            for label, test, values in (*self._right(), *self._metrics())
            for one, other in self._compared(list(values))
        ]

    def _compared(self, names: list[str]) -> list[tuple[str, str]]:
        if self.reference in names:
            return [(name, self.reference) for name in names if name != self.reference]
        return list(itertools.combinations(names, 2)) if 2 <= len(names) <= MAX_PAIRED + 1 else []

    def _right(self) -> Iterator[tuple[dict[str, Any], Callable[..., Difference], dict[str, Any]]]:
        """Of each trace: which samples are right, by policy. Accuracy is compared on the same samples."""
        for trace in self.traces:
            right = {one.name: one.right for one in trace.results if one.right is not None}
            if right:
                data = trace.trace
                right["last exit"] = (data.predictions[:, -1] == data.labels)[data.known].numpy()
            yield trace.label, mcnemar, right

    def _metrics(self) -> Iterator[tuple[dict[str, Any], Callable[..., Difference], dict[str, Any]]]:
        """Of several traces, such as those of seeds: the metric on each, by policy, paired by trace."""
        singles = [[one for one in trace.results if one.setting is None] for trace in self.traces]
        values: dict[str, list[Any]] = {}
        for one in (one for results in singles for one in results):
            values.setdefault(one.name, []).append(one.metrics.get(self.metric))
        values["last exit"] = [results[0].final_metrics.get(self.metric) for results in singles if results]
        if len(singles) > 1:
            whole = {name: found for name, found in values.items() if len(found) == len(singles) and None not in found}
            yield {"trace": "all"}, paired_difference, whole

    def to_json(self) -> dict[str, Any]:
        """What `--output-file` holds."""
        results = [one.to_json(trace.name) for trace in self.traces for one in trace.results]
        more = {"curves": self.curves(), "paired_tests": self.pairs()}
        output: dict[str, Any] = results[0] if len(results) == 1 and not more["curves"] else {"results": results}
        return output | {name: rows for name, rows in more.items() if rows}


def replay_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/replay.py` parses them."""
    paths, calibrations = trace_paths(args.trace, args.calibrate_on or [])
    plain = plain_of_each(args.plain or [], len(paths))
    policies = load_policies(args.policy or [], args.policies or [], args.overrides)
    check_arguments(args, paths, policies)
    outputs = ("output_file", "csv", "plot", "table", "predictions_output_file")
    check_outputs(
        {f"--{name.replace('_', '-')}": getattr(args, name) for name in outputs},
        [*paths, *calibrations, *(args.plain or []), *(args.policy or []), *(args.policies or [])],
    )
    split = None if args.edge_layers is None else SplitCost(args.edge_layers, args.offload_cost)
    found = replay_traces(paths, calibrations, policies, args.metric, args.curve, plain, split)
    output = found.to_json()
    if args.output_file:
        write_json(args.output_file, output)
    if args.csv:
        write_csv(args.csv, csv_records(found.traces, found.metric))
    if args.plot:
        save_figure(speed_plot(speed_panels(found.traces, found.metric)), args.plot)
    if args.predictions_output_file:
        write_predictions(args.predictions_output_file, found.decisions)
    if args.table:
        results_table(found.traces, found.metric, max_rows=None).write(args.table)
    if "curves" in output:
        curves_table(output["curves"], found.metric).print(line_a_row=True)
    if "paired_tests" in output:
        pairs_table(output["paired_tests"]).print()
    results_table(found.traces, found.metric).print(line_a_row=True)
    return output


def replay_traces(
    paths: Sequence[str],
    calibrations: Sequence[str | None],
    policies: Sequence[NamedPolicy],
    metric: str | None = None,
    sweep: bool = False,
    plain: Sequence[Sequence[str]] = (),
    split: SplitCost | None = None,
) -> Replay:
    """
    Policies on the traces in `paths`; parameters that are not set are fitted on those in `calibrations`, one for each.
    `metric` is that of curves (default: accuracy, or a regression's own), which with `sweep` go through all thresholds
    that make a difference. `plain` are traces or archives of plain networks for each path; `split` adds its figures to
    every result's `depth`.
    """
    found = Replay([], metric or "", sweep)
    for name, path, other in zip(shortest_names(paths), paths, calibrations, strict=True):
        trace = ExitTrace.load(path)
        calibration = ExitTrace.load(other) if other else None
        if calibration is not None:
            check_same_network("--calibrate-on", str(other), calibration, path, trace, trace.meta.get("label_names"))
        found.metric = metric_for(trace, metric or found.metric or None, path)
        with errors_at(path):  # not every metric is defined for every number of labels
            judge = TraceJudge(trace, calibration, [found.metric])
        found.traces.append(TraceResult(name if len(paths) > 1 else None, trace, []))
        for policy in policies:
            with errors_at(policy.where):
                if policy.is_sweep:
                    judged = judge.families(policy)
                else:
                    one, found.decisions[policy.name] = judge.single(policy.settings[0].config, policy.name)
                    judged = [one]
                for family in judged:
                    family.curve = judge.curve(family, found.metric, sweep)
            found.traces[-1].families += judged
        if split is not None:
            for result in found.traces[-1].results:
                result.depth |= split.figures(result.depth["exit_histogram"], trace.exit_layers)
        if plain and (own := plain[len(found.traces) - 1]):
            found.reference = with_plain(found.traces[-1], path, own, found.metric)
    return found


def check_arguments(args: argparse.Namespace, paths: Sequence[str], policies: Sequence[NamedPolicy]) -> None:
    """Raises a `ConfigurationError` for arguments that do not go together, before anything is computed."""
    if args.metric is not None:
        check_choice("--metric", args.metric, [*CURVE_METRICS, REGRESSION_METRIC])
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
    check_choice(f"{path}: --metric", wanted or allowed[0], allowed)
    return wanted or allowed[0]


def write_predictions(path: str, decisions: dict[str, ExitDecisions]) -> None:
    """JSON lines with `index`, `exit`, `label` (or `value`) and `score`; of several policies with `policy` first."""
    with atomic_write(path) as file:
        for policy, found in decisions.items():
            first = {} if len(decisions) == 1 else {"policy": policy}
            name = "value" if found.predictions.is_floating_point() else "label"
            columns = {"exit": found.exits, name: found.predictions, "score": found.scores}
            given = {name: column.tolist() for name, column in columns.items() if column is not None}
            for index, values in enumerate(zip(*given.values(), strict=True)):
                file.write(json.dumps({**first, "index": index, **dict(zip(given, values, strict=True))}) + "\n")
