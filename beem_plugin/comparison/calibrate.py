"""`allennlp calibrate`: fits an exit policy and lays out the evidence."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import BeemError, ConfigurationError
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.common.outputs import check_outputs
from beem_plugin.common.params import load_config
from beem_plugin.common.registry import Params
from beem_plugin.comparison.calibration_evidence import calibration_evidence, evidence_row
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.rendering.calibration_page import calibration_page


def calibrate_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/calibrate.py` parses them."""
    if args.archive_file is None and args.trace is None:
        raise ConfigurationError("calibrate: found neither ARCHIVE nor --trace, allowed: one of them, or both")
    if args.archive_file is None and args.output_archive is not None:
        raise ConfigurationError("--output-archive: allowed with ARCHIVE only; without, use --output-policy")
    report = Path(args.report_dir) if args.report_dir else None
    outputs = {
        "--output-policy": args.output_policy,
        "--report-dir (report.json)": str(report / "report.json") if report else None,
        "--report-dir (report.html)": str(report / "report.html") if report else None,
    }
    inputs = [args.archive_file, args.policy, args.trace, args.data]
    check_outputs({**outputs, "--output-archive": args.output_archive}, [args.policy, args.trace, args.data])
    check_outputs(outputs, inputs)  # an archive may take its own place: it has been read by then
    config = load_config(args.policy, args.overrides).as_dict(quiet=True)
    trace = ExitTrace.load(args.trace) if args.trace else None
    if args.archive_file is not None:
        trace = trace_for(args.archive_file, trace, args.data, args.batch_size, args.cuda_device, args.trace)
    assert trace is not None, "given, or made from the archive"
    try:
        evidence = calibrate_policy(config, trace)
    except BeemError as error:
        raise type(error)(f"{args.policy}: {error}") from None
    written = write_outputs(evidence, args.output_policy, args.report_dir)
    if args.output_archive:
        written.append(write_archive(args.archive_file, args.output_archive, config, evidence, trace))
    print_evidence(evidence, written)
    return evidence


def trace_for(
    archive_file: str,
    trace: ExitTrace | None,
    data: str | None,
    batch_size: int | None,
    cuda_device: int,
    path: str | None,
) -> ExitTrace:
    """The given trace, checked against the archive's network; or the model run on `data`; or the archive's own."""
    from beem_plugin.archival import load_archive
    from beem_plugin.evaluation.trace import trace_archive
    from beem_plugin.models import MultiExitCaptioner, MultiExitModel

    archive = load_archive(archive_file, cuda_device=cuda_device)
    if data is not None:
        return trace_archive(archive, data, batch_size)
    if trace is None:
        if archive.calibration is None or archive.calibration.trace is None:
            raise ConfigurationError(f"{archive_file}: the archive holds no calibration trace; give --data or --trace")
        return archive.calibration.trace
    model = archive.model
    if isinstance(model, MultiExitModel | MultiExitCaptioner):
        network = model.decoder if isinstance(model, MultiExitCaptioner) else model.encoder
        for what, here, there in (
            ("exits", trace.exit_layers, network.exit_layers),
            ("labels", trace.num_labels, network.num_labels),
        ):
            if list_or_number(here) != list_or_number(there):
                raise ConfigurationError(f"--trace: {path} has {what} {here}, found {there} in {archive_file}")
    return trace


def list_or_number(value: Any) -> Any:
    return value if isinstance(value, int) else list(value)


def calibrate_policy(config: dict[str, Any], trace: ExitTrace) -> dict[str, Any]:
    """
    # Parameters

    config : `dict[str, Any]`
        An exit policy's config.
    trace : `ExitTrace`
        The calibration data.

    # Returns

    `dict[str, Any]`
        See `calibration_evidence`; all of it JSON.
    """
    policy = ExitPolicy.from_params(Params(dict(config)))
    return calibration_evidence(policy, policy.calibrate(trace), trace)


def write_outputs(evidence: dict[str, Any], output_policy: str | None, report_dir: str | None) -> list[str]:
    written = []
    if output_policy:
        write_json(output_policy, evidence["calibration"]["policy"])
        written.append(output_policy)
    if report_dir:
        folder = Path(report_dir)
        write_json(folder / "report.json", evidence)
        with atomic_write(folder / "report.html") as file:
            file.write(calibration_page(evidence))
        written += [str(folder / "report.json"), str(folder / "report.html")]
    return written


def write_archive(
    archive_file: str, output: str, config: dict[str, Any], evidence: dict[str, Any], trace: ExitTrace
) -> str:
    from beem_plugin.archival import Calibration, with_calibration

    report = evidence["calibration"]
    with_calibration(archive_file, output, Calibration(report["policy"], config, report, trace))
    return output


def print_evidence(evidence: dict[str, Any], written: list[str]) -> None:
    """The thresholds with their evidence, what they did on the calibration data, and the warnings."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    report = evidence["calibration"]
    table = Table(title=f"{report['policy'].get('type')} on {report['samples']} samples {report['source']}".strip())
    for name in ("exit", "threshold", "left here", "errors", "error rate", "95 % interval", "last exit's errors"):
        table.add_column(name, justify="right")
    for entry in report["evidence"]:
        table.add_row(*evidence_row(entry))
    console.print(table)
    console.print(headline(report), highlight=False)
    for warning in report["warnings"]:
        console.print(f"warning: {warning}", style="yellow", highlight=False)
    for path in written:
        console.print(f"wrote {path}", highlight=False)


def headline(report: dict[str, Any]) -> str:
    speed = f"layer speed-up {report['layer_speedup']:.2f}x on the calibration data"
    if report["details"].get("mean_squared_error") is not None:
        error, final_error = (report["details"][name] for name in ("mean_squared_error", "final_mean_squared_error"))
        return f"{speed}, mean squared error {error:.4f}, last exit's {final_error:.4f}"
    if report["error"] is None:
        return f"{speed}; no labels, so no error"
    return f"{speed}, error {100 * report['error']:.2f} %, last exit's {100 * report['final_error']:.2f} %"
