"""`allennlp calibrate`: fits an exit policy and shows the evidence."""

import argparse
import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beem_plugin.archival import Archive, load_archive, with_calibration
from beem_plugin.calibration.confidence import expected_calibration_error, reliability
from beem_plugin.calibration.curves import curve_of, has_scores
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.stored_calibration import Calibration
from beem_plugin.calibration.theory import theory_report
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import write_json
from beem_plugin.common.outputs import check_outputs
from beem_plugin.common.registry import Params
from beem_plugin.common.values import describe_value
from beem_plugin.comparison.operating_curve import CURVE_POINTS
from beem_plugin.comparison.plain_networks import load_plain, right_of_last_exit
from beem_plugin.comparison.policy_files import errors_at, policy_block
from beem_plugin.comparison.result import check_same_network, fixed_exits, measure
from beem_plugin.evaluation.trace import trace_archive
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.calibration_report import CalibrationReport
from beem_plugin.exits.policies.threshold_policy import ThresholdPolicy
from beem_plugin.exits.policies.wrapped import Calibrated
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.rendering.pages.calibration import calibration_page, exits_table
from beem_plugin.rendering.tables import write_all
from beem_plugin.tasks.classification import text_model

logger = logging.getLogger(__name__)
RELIABILITY_BINS = 10


def calibrate_from_args(args: argparse.Namespace) -> CalibrationReport:
    """Runs the command; `args` as `commands/calibrate.py` parses them."""
    if args.archive_file is None and args.trace is None:
        raise ConfigurationError("calibrate: found neither ARCHIVE nor --trace, allowed: one of them, or both")
    if args.archive_file is None and args.output_archive is not None:
        raise ConfigurationError("--output-archive: allowed with ARCHIVE only; without, use --output-policy")
    if args.dtype != "float32" and args.data is None:
        raise ConfigurationError(f"--dtype: found {args.dtype}, allowed: with --data, on which the model is run")
    directory = Path(args.report_dir) if args.report_dir else None
    outputs = {"--output-policy": args.output_policy}
    outputs |= {f"--report-dir ({name})": str(directory / name) for name in ("report.json", "report.html") if directory}
    inputs = [args.archive_file, args.policy, args.trace, args.data, *(args.plain or [])]
    check_outputs({**outputs, "--output-archive": args.output_archive}, [args.policy, args.trace, args.data])
    check_outputs(outputs, inputs)  # with --force an archive may be replaced: it has been read by then
    if args.output_archive and Path(args.output_archive).exists() and not args.force:
        raise ConfigurationError(f"--output-archive: {args.output_archive} exists, allowed: a new file, or --force")
    config = policy_block(args.policy, args.overrides)
    if args.speedup is not None:
        config = at_speed(config, args.speedup)
    trace = trace_for(args)
    with errors_at(args.policy):
        policy = ExitPolicy.from_params(Params(dict(config)))
        plain = load_plain(args.plain or [], trace, args.trace or trace.source)
        report = policy.calibrate(trace)
        content = calibration_evidence(policy, report, trace, plain)
    written = [] if not args.output_policy else [args.output_policy]
    if args.output_policy:
        write_json(args.output_policy, content["calibration"]["policy"])
    if directory:
        written += write_all(directory / "report", {".json": content, ".html": calibration_page(content)})
    if args.output_archive:
        calibration = Calibration(content["calibration"]["policy"], config, content["calibration"], trace)
        with_calibration(args.archive_file, args.output_archive, calibration)
        written.append(args.output_archive)
    table = exits_table(content["calibration"])
    warnings = [f"warning: {warning}" for warning in report.warnings]
    table.notes = [headline(report), *warnings, *(f"wrote {path}" for path in written)]
    table.print(140)
    return report


def trace_for(args: argparse.Namespace) -> ExitTrace:
    """The given trace, checked against the archive's network; or the model run on `--data`; or the archive's own."""
    trace = ExitTrace.load(args.trace) if args.trace else None
    if args.archive_file is None:
        assert trace is not None
        return trace
    archive = load_archive(args.archive_file, cuda_device=args.cuda_device)
    if args.data is not None:
        if args.dtype != "float32":
            cast_network(text_model(archive.model).encoder, args.dtype)
        return trace_archive(archive, args.data, args.batch_size)
    if trace is None:
        if archive.calibration is None or archive.calibration.trace is None:
            raise ConfigurationError(
                f"{args.archive_file}: the archive holds no calibration trace; give --data or --trace"
            )
        return archive.calibration.trace
    names, network = archive.model.vocab.labels or None, archive.model.exit_network
    check_same_network("--trace", args.trace, trace, args.archive_file, network, names)
    return trace


def policy_config(policy: str | dict[str, Any]) -> dict[str, Any]:
    """The config of a policy that is given by its name, its config, or a json or jsonnet file."""
    if isinstance(policy, dict):
        return copy.deepcopy(policy)
    if not isinstance(policy, str | Path):
        raise ConfigurationError(f"policy: found {describe_value(policy)}, allowed: a name, a file or a block {{...}}")
    return policy_block(str(policy))


def at_speed(config: dict[str, Any], speedup: float) -> dict[str, Any]:
    """The policy with thresholds that are chosen for a layer speed-up."""
    if not has_thresholds(config):
        raise ConfigurationError(
            f"speedup: found the policy {policy_name(config)!r}, which has no thresholds to fit, allowed: one that "
            "has, such as max_probability"
        )
    return with_thresholds(config, {"type": "budget", "speedup": speedup})


def with_thresholds(config: dict[str, Any], thresholds: Any) -> dict[str, Any]:
    """The policy, or the one that it wraps, with these thresholds."""
    if isinstance(config.get("policy"), dict):
        return {**config, "policy": with_thresholds(config["policy"], thresholds)}
    return {**config, "thresholds": thresholds}


def has_thresholds(config: Mapping[str, Any]) -> bool:
    """Whether thresholds of the policy can be fitted. An unknown name is an error where the policy is built."""
    name = policy_name(config)
    known = name in ExitPolicy.list_available()
    return not known or issubclass(ExitPolicy.resolve_class_name(name)[0], ThresholdPolicy)


def policy_name(config: Mapping[str, Any]) -> str:
    """The registered name of a policy, or of the one that it wraps."""
    inner = config.get("policy")
    return policy_name(inner) if isinstance(inner, dict) else str(config.get("type"))


def with_policy(archive: Archive, config: dict[str, Any], trace: ExitTrace | None = None) -> Archive:
    """The archive under another policy, fitted on `trace` or else its own; without one, open numbers are an error."""
    network: Any = archive.model.exit_network
    if trace is None and archive.calibration is not None:
        trace = archive.calibration.trace
    policy = ExitPolicy.from_params(Params(copy.deepcopy(config), history="policy."))
    policy.bind(network.exit_layers, network.num_labels)
    calibration, source = None, None
    if trace is not None:
        report = policy.calibrate(trace)
        for warning in report.warnings:
            logger.warning("calibration on %s: %s", report.source, warning)
        calibration, source = Calibration(report.policy, config, report.to_json(), trace), report.source
    elif not policy.is_calibrated:
        raise ConfigurationError(
            f"policy: found {policy.registered_name} with open numbers, and the archive holds no calibration trace; "
            "allowed: a policy with its numbers, a trace, or calibrate(texts, labels)"
        )
    model: Any = copy.copy(archive.model)
    model.exit_policy = policy
    given = archive.config.as_dict(quiet=True)
    changed = Params({**given, "model": {**given["model"], "exit_policy": config}})
    return archive._replace(model=model, config=changed, calibration=calibration, calibrated_on=source)


def headline(report: CalibrationReport) -> str:
    speed = f"layer speed-up {report.layer_speedup:.2f}x over all layers of this network, on the calibration data"
    if report.details.get("mean_squared_error") is not None:
        error, final_error = (report.details[name] for name in ("mean_squared_error", "final_mean_squared_error"))
        return f"{speed}, mean squared error {error:.4f}, last exit's {final_error:.4f}"
    if report.error is None or report.final_error is None:
        return f"{speed}; no labels, so no error"
    return f"{speed}, error {100 * report.error:.2f} %, last exit's {100 * report.final_error:.2f} %"


def calibration_evidence(
    policy: ExitPolicy, report: CalibrationReport, trace: ExitTrace, plain: Mapping[int, ExitTrace] | None = None
) -> dict[str, Any]:
    """
    `report.json` of a `policy` that was calibrated on `trace`: the report, metrics under the policy and of the last
    exit; `curve`, the policy's score with one threshold swept; `fixed_exits`, all samples at the same exit;
    `reliability` of every exit; `theory`. These four are `None` without labels and for a regression, `curve` also for
    policies without thresholds. `plain`: accuracy and speed of plain networks, given by depth.
    """
    found: dict[str, Any] = {
        "calibration": report.to_json(),
        "label_names": list(trace.meta.get("label_names") or []),
        "exit_layers": trace.exit_layers,
        "metrics": measure(trace, replay(policy, trace).predictions),
        "final_metrics": measure(trace, trace.predictions[:, -1]),
        **dict.fromkeys(("curve", "fixed_exits", "reliability", "theory", "plain")),
    }
    known = trace.known.nonzero().flatten()
    if len(known) == 0 or trace.is_regression:
        return found
    labelled = trace.select(known)
    fixed = fixed_exits(labelled, "accuracy")
    found["fixed_exits"] = {"accuracy": fixed.accuracy[::-1].tolist(), "speedup": fixed.speedup[::-1].tolist()}
    if plain:
        right = [float(right_of_last_exit(network).mean()) for network in plain.values()]
        found["plain"] = {"accuracy": right, "speedup": [trace.exit_layers[-1] / layers for layers in plain]}
    found["reliability"] = reliability_of_exits(policy, labelled)
    found["theory"] = theory_report(policy, labelled)
    if has_scores(policy):
        curve = curve_of(policy, labelled)
        shown = curve.thinned(CURVE_POINTS)
        points = {"accuracy": shown.accuracy.tolist(), "speedup": shown.speedup.tolist()}
        found["curve"] = {**curve.summary(), "settings": shown.settings, **points}
    return found


def reliability_of_exits(policy: ExitPolicy, trace: ExitTrace) -> list[dict[str, Any]]:
    """Bins and expected calibration error of every exit, as it is and after the policy's confidence calibration."""
    after = policy.calibration.apply(trace) if isinstance(policy, Calibrated) else None
    rows = []
    for number in range(1, trace.num_exits + 1):
        row: dict[str, Any] = {"exit": number}
        for name, one in (("before", trace), ("after", after)):
            row[name] = row[f"ece_{name}"] = None
            if one is not None:
                signals = one.exit_signals(number)
                outcome = signals.confidence, signals.prediction == one.labels
                row[name] = reliability(*outcome, RELIABILITY_BINS)
                row[f"ece_{name}"] = expected_calibration_error(*outcome)
        rows.append(row)
    return rows
