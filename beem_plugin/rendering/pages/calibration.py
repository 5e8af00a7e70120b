"""A calibration report as one HTML page: its tables, its plots, and what fills `calibration.html`."""

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from beem_plugin.rendering import plots
from beem_plugin.rendering.pages import data_uri, render_page
from beem_plugin.rendering.tables import Column, Table

CONDITIONS = {True: "holds at every exit", False: "does not hold", None: "cannot be estimated at every exit"}
ANSWERS = {True: "yes", False: "no", None: "-"}


def calibration_page(evidence: dict[str, Any]) -> str:
    """HTML of `calibration_evidence`, or of what `report.json` holds; without matplotlib only tables."""
    report, rows, theory = evidence["calibration"], evidence["reliability"], evidence["theory"]
    wrong = None if report["error"] is None else [one["errors"] for one in report["evidence"]]
    drawn, name = plots.plots_available(), policy_name(report["policy"])
    return render_page(
        "calibration.html",
        name=name,
        report=report,
        cards=_cards(evidence),
        plots=drawn,
        fixed_exits=evidence["fixed_exits"],
        curve_image=data_uri(curve_figure(evidence)) if drawn and evidence["fixed_exits"] else None,
        curve_table=_curve_table(evidence["curve"]),
        exits_image=data_uri(plots.exits_plot(report["exit_histogram"], wrong, report["samples"])) if drawn else None,
        exits_table=exits_table(report),
        recalibrated=bool(rows) and rows[0]["after"] is not None,
        reliability_image=data_uri(reliability_figure(rows)) if drawn and rows else None,
        reliability_table=_reliability_table(rows) if rows else None,
        theory=theory,
        condition=CONDITIONS[theory["condition_holds"]] if theory and name.split()[-1] == "beem" else None,
        theory_table=_theory_table(theory) if theory else None,
        policy=json.dumps(report["policy"], indent=2),
        details=json.dumps(report["details"], indent=2),
    )


def policy_name(policy: dict[str, Any]) -> str:
    """The policy's registered name, with that of the policy inside if there is one."""
    inner = policy.get("policy")
    name = str(policy.get("type", "policy"))
    return f"{name} {policy_name(inner)}" if isinstance(inner, dict) else name


def exits_table(report: dict[str, Any]) -> Table:
    """One row an exit of a `CalibrationReport`: threshold, samples that left, errors with interval."""
    columns = [Column(name, digits=0) for name in ("exit", "threshold", "left here", "errors")]
    columns += [Column("error rate", digits=1, unit=" %", factor=100), Column("95 % interval")]
    columns += [Column("last exit's errors on the same", digits=0)]
    title = f"{report['policy'].get('type')} on {report['samples']} samples {report['source']}"
    table = Table(columns, title=title.strip())
    for entry in report["evidence"]:
        threshold, interval = entry["threshold"], entry["interval"]
        shown = f"{threshold:.4g}" if isinstance(threshold, float | int) else threshold
        bounds = None if interval is None else f"{100 * interval[0]:.1f} - {100 * interval[1]:.1f} %"
        numbers = [entry["samples"], entry["errors"], entry["error_rate"]]
        table.rows.append([entry["exit"], shown, *numbers, bounds, entry["final_errors"]])
    return table


def curve_figure(evidence: dict[str, Any]) -> Any:
    """The rule's curve, the fixed exits, the last exit, and the chosen point."""
    report, fixed, curve = evidence["calibration"], evidence["fixed_exits"], evidence["curve"]
    speed, accuracy = report["layer_speedup"], 1 - report["error"]
    fixed_points = fixed["speedup"], fixed["accuracy"]
    series = [plots.Series("all samples at the same exit", -1, line=fixed_points, dots=fixed_points)]
    if curve is not None:
        line = curve["speedup"], curve["accuracy"]
        series.append(plots.Series("this score, one threshold for all exits", 0, line=line))
    if (plain := evidence.get("plain")) is not None:
        series.append(plots.Series("plain networks", 2, dots=(plain["speedup"], plain["accuracy"])))
    note = f"{speed:.2f}x, {100 * accuracy:.1f} %"
    series.append(plots.Series("chosen", 1, dots=([speed], [accuracy]), note=note))
    label, last = "accuracy on the calibration data (%)", 1 - report["final_error"]
    return plots.speed_plot([plots.SpeedPanel(label, last, series, farthest=max(3.0, 1.25 * speed))])


def reliability_figure(rows: Sequence[dict[str, Any]]) -> Any:
    """One small diagram an exit: accuracy against confidence, before and after confidence calibration."""
    columns = min(4, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure, axes = plots.new_figure(8.2, 2.25 * lines + 0.3, lines, columns)
    for panel, row in zip(axes, rows, strict=False):
        panel.plot([0, 1], [0, 1], color=plots.LIGHT, linewidth=1.2, zorder=1)
        title = f"exit {row['exit']}   ECE {100 * row['ece_before']:.1f}"
        lines_shown = [(row["before"], plots.GREY if row["after"] else plots.BLUE)]
        if row["after"]:
            lines_shown.append((row["after"], plots.BLUE))
            title += f" → {100 * row['ece_after']:.1f}"
        for bins, colour in lines_shown:
            filled = [entry for entry in bins if entry["samples"]]
            total = sum(entry["samples"] for entry in filled)
            points = [entry["confidence"] for entry in filled], [entry["accuracy"] for entry in filled]
            panel.plot(*points, color=colour, linewidth=1.4, zorder=2)
            sizes = [6 + 70 * entry["samples"] / total for entry in filled]
            panel.scatter(*points, s=sizes, color=colour, alpha=0.75, zorder=3, linewidths=0)
        panel.set_title(title, fontsize=8.5, loc="left")
        panel.set(xlim=(0, 1.03), ylim=(0, 1.05), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    for panel in axes[len(rows) :]:
        panel.set_visible(False)
    figure.supxlabel("confidence", fontsize=9.5)
    figure.supylabel("accuracy", fontsize=9.5)
    return figure


def _cards(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    report = evidence["calibration"]
    cards = [(f"{report['layer_speedup']:.2f}x", "layer speed-up")]
    for name, value in evidence["metrics"].items():
        change = 100 * (value - evidence["final_metrics"][name])
        cards.append((f"{100 * value:.1f}", f"{name.replace('_', ' ')}, {change:+.1f} against the last exit"))
    details = report["details"]
    if details.get("risk_upper_bound") is not None:
        risk, level = str(details["risk"]).replace("_", " "), 100 * (1 - details["delta"])
        label = f"upper bound of {risk} on new data, with {level:.0f} % probability"
        cards.append((f"{100 * details['risk_upper_bound']:.2f} %", label))
    return cards


def _curve_table(curve: dict[str, Any] | None) -> Table | None:
    if curve is None:
        return None
    columns = [Column("one threshold for all exits", "text")]
    columns += [Column(f"accuracy at {speed}x", digits=1, unit=" %", factor=100) for speed in curve["accuracy_at"]]
    columns.append(Column("mean accuracy, 1x to 3x", digits=1))
    return Table(columns, [["this score", *curve["accuracy_at"].values(), curve["area"]]])


def _reliability_table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = [Column("expected calibration error (%)", "text")]
    columns += [Column(f"exit {row['exit']}", digits=1, factor=100) for row in rows]
    parts = ("before", "after") if rows[0]["after"] is not None else ("before",)
    return Table(columns, [[part, *(row[f"ece_{part}"] for row in rows)] for part in parts])


def _theory_table(theory: dict[str, Any]) -> Table:
    rate = partial(Column, digits=1, unit=" %", factor=100)
    columns = {"exit": Column("exit", digits=0), "error": rate("error q"), "a": Column("a"), "b": Column("b")}
    columns |= {"bound": rate("bound"), "holds": Column("q below it")}
    columns["leaving_error"] = rate("error of those that leave")
    columns["leaving_final_error"] = rate("last exit's on the same")
    columns["overthinking"] = rate("right here, wrong at the end")
    columns["underthinking"] = rate("wrong here, right at the end")
    table = Table(list(columns.values()))
    for entry in theory["exits"]:
        shown = {key: None if entry[key] is None else f"{entry[key]:.3g}" for key in ("a", "b")}
        row = {**entry, **shown, "holds": ANSWERS[entry["holds"]]}
        table.rows.append([row[key] for key in columns])
    return table
