"""`allennlp replay`: what exit policies would do on a stored trace."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import BeemError, ConfigurationError, NotCalibratedError
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.metrics import METRICS
from beem_plugin.common.params import load_config
from beem_plugin.common.registry import Params
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.exits.replay import ExitDecisions, replay
from beem_plugin.exits.speed import depth_summary
from beem_plugin.exits.trace import ExitTrace
from beem_plugin.reports.table import print_results_table


def replay_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/replay.py` parses them."""
    trace = ExitTrace.load(args.trace)
    calibration = ExitTrace.load(args.calibrate_on) if args.calibrate_on else None
    if calibration is not None:
        check_same_network(trace, calibration, args.trace, args.calibrate_on)
    if args.predictions_output_file and len(args.policy) > 1:
        raise ConfigurationError(
            f"--predictions-output-file: allowed with one --policy, found {len(args.policy)} of them"
        )
    results = []
    for path in args.policy:
        params = load_config(path, args.overrides)
        name = Path(path).stem
        try:
            result, decisions = replay_policy(params, trace, calibration)
        except NotCalibratedError as error:
            raise NotCalibratedError(f"{path}: {error}") from None
        except BeemError as error:
            raise type(error)(f"{path}: {error}") from None
        results.append({"name": name, **result})
        if args.predictions_output_file:
            write_predictions(args.predictions_output_file, decisions)
    output = results[0] if len(results) == 1 else {"results": results}
    if args.output_file:
        write_json(args.output_file, output)
    print_results_table(results)
    return output


def replay_policy(
    params: Params, trace: ExitTrace, calibration: ExitTrace | None
) -> tuple[dict[str, Any], ExitDecisions]:
    """
    # Parameters

    params : `Params`
        An exit policy's config.
    trace : `ExitTrace`
        What is judged on.
    calibration : `ExitTrace`, optional
        What open weights and thresholds are fitted on.

    # Returns

    `tuple[dict[str, Any], ExitDecisions]`
        The metrics of what leaves early, those of the last exit, the layer speed-up, what was calibrated; and the
        decisions.
    """
    policy = ExitPolicy.from_params(params)
    policy.bind(trace.exit_layers, trace.num_labels)
    report = None
    if calibration is not None:
        report = policy.calibrate(calibration)
        if calibration.logits.shape == trace.logits.shape and bool((calibration.logits == trace.logits).all()):
            report.warnings.append("calibrated on the very data it is judged on: these figures are too good")
    decisions = replay(policy, trace)
    final = trace.logits[:, -1].argmax(-1)
    resolved = policy.to_config()
    # A policy that wraps another one keeps the numbers in the inner block.
    inner = resolved["policy"] if isinstance(resolved.get("policy"), dict) else resolved
    result: dict[str, Any] = {
        "n": len(trace),
        "num_exits": trace.num_exits,
        "metrics": measure(trace, decisions.predictions),
        "final_metrics": measure(trace, final),
        **depth_summary(decisions.exits, trace.exit_layers),
        "policy": resolved,
        "weights": inner.get("weights"),
        "thresholds": inner.get("thresholds"),
        "warnings": [] if report is None else report.warnings,
        "calibration": None if report is None else report.to_json(),
    }
    return result, decisions


def measure(trace: ExitTrace, predictions: Any) -> dict[str, float]:
    """Accuracy and the task's own metrics over the samples with a label; empty where there is none."""
    known = trace.labels >= 0
    if not bool(known.any()):
        return {}
    labels, given = trace.labels[known].numpy(), predictions[known].numpy()
    return {**METRICS["accuracy"](labels, given), **METRICS[trace.metric](labels, given)}


def check_same_network(trace: ExitTrace, calibration: ExitTrace, path: str, other: str) -> None:
    """Raises a `ConfigurationError` if the two traces cannot come from one network."""
    for what, here, there in (
        ("exits", trace.exit_layers, calibration.exit_layers),
        ("labels", trace.num_labels, calibration.num_labels),
    ):
        if here != there:
            raise ConfigurationError(f"--calibrate-on: {other} has {what} {there}, found {here} in {path}")


def write_predictions(path: str, decisions: ExitDecisions) -> None:
    exits, labels = decisions.exits.tolist(), decisions.predictions.tolist()
    scores = None if decisions.scores is None else decisions.scores.tolist()
    with atomic_write(path) as file:
        for index, (exit_number, label) in enumerate(zip(exits, labels, strict=True)):
            line: dict[str, Any] = {"index": index, "exit": exit_number, "label": label}
            if scores is not None:
                line["score"] = scores[index]
            file.write(json.dumps(line) + "\n")
