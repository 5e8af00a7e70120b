"""A calibration report as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from typing import Any

from beem_plugin.comparison.calibration_evidence import evidence_row
from beem_plugin.rendering.plots import curve_plot, histogram_plot, plots_available, reliability_plot

CSS = """
:root { color-scheme: light; --ink: #2b3440; --soft: #66717e; --line: #e3e7ec; --blue: #1f6f9f; --orange: #b85c14; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 900px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0 0 10px; }
p { margin: 0 0 10px; }
.soft { color: var(--soft); }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px; margin-top: 18px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 18px; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.card b { display: block; font-size: 24px; font-weight: 600; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 9px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
img { display: block; width: 100%; height: auto; }
.warning { border-color: #efc9a5; background: #fff7ef; }
.warning h2 { color: var(--orange); }
ul { margin: 0; padding-left: 20px; }
pre { background: #f6f7f9; border-radius: 6px; padding: 12px; overflow-x: auto; font-size: 12.5px; margin: 8px 0 0; }
summary { cursor: pointer; font-weight: 600; }
@media print { body { background: #fff; } section, .card { break-inside: avoid; } }
"""


def calibration_page(evidence: dict[str, Any]) -> str:
    """
    # Parameters

    evidence : `dict[str, Any]`
        As `calibration_evidence` gives it, or as read from `report.json`.

    # Returns

    `str`
        HTML with style and plots inside. Without matplotlib it has the tables and says what is missing.
    """
    report = evidence["calibration"]
    plots = plots_available()
    parts = [_head(report), _cards(evidence)]
    if report["warnings"]:
        said = "".join(f"<li>{escape(warning)}</li>" for warning in report["warnings"])
        parts.append(f'<section class="warning"><h2>Warnings</h2><ul>{said}</ul></section>')
    if not plots:
        parts.append(
            '<section class="warning"><h2>No plots</h2><p>matplotlib is not installed: '
            "<code>pip install 'beem_plugin[plots]'</code> and run the command again.</p></section>"
        )
    parts.append(_curve(evidence, plots))
    parts.append(_thresholds(report, plots, evidence))
    parts += [_reliability(evidence["reliability"], plots), _theory(evidence["theory"]), _details(report)]
    title = f"Calibration of {policy_name(report['policy'])}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{CSS}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def policy_name(policy: dict[str, Any]) -> str:
    """The policy's registered name, with that of the policy inside if there is one."""
    inner = policy.get("policy")
    name = str(policy.get("type", "policy"))
    return f"{name} {policy_name(inner)}" if isinstance(inner, dict) else name


def _head(report: dict[str, Any]) -> str:
    source = f" from <code>{escape(report['source'])}</code>" if report["source"] else ""
    return (
        f"<h1>Calibration of {escape(policy_name(report['policy']))}</h1>"
        f'<p class="soft">Fitted on {report["samples"]} samples{source}. Every figure on this page is of these '
        "calibration data, unless it says that it is a bound; it is no test result.</p>"
    )


def _cards(evidence: dict[str, Any]) -> str:
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
    shown = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in cards
    )
    return f'<div class="cards">{shown}</div>'


def _curve(evidence: dict[str, Any], plots: bool) -> str:
    if evidence["fixed_exits"] is None:
        reason = "The calibration data have no labels, or their labels are values, which are not right or wrong."
        return _section("Accuracy against speed", f"<p>{reason}</p>")
    body = _image(curve_plot(evidence), "Accuracy against layer speed-up, with the chosen point") if plots else ""
    curve = evidence["curve"]
    if curve is not None:
        row = [_percent(value) for value in curve["accuracy_at"].values()]
        names = [f"accuracy at {speed}x" for speed in curve["accuracy_at"]]
        area = "-" if curve["area"] is None else f"{curve['area']:.1f}"
        body += _table(["one threshold for all exits", *names, "mean accuracy, 1x to 3x"], [["this score", *row, area]])
    else:
        body += "<p>This rule has no threshold to sweep.</p>"
    return _section("Accuracy against speed", body)


def _thresholds(report: dict[str, Any], plots: bool, evidence: dict[str, Any]) -> str:
    names = [
        "exit",
        "threshold",
        "left here",
        "errors",
        "error rate",
        "95 % interval",
        "last exit's errors on the same",
    ]
    body = _image(histogram_plot(evidence), "Share of the samples that leave at each exit") if plots else ""
    body += _table(names, [evidence_row(entry) for entry in report["evidence"]])
    return _section("Who leaves where", body)


def _reliability(rows: Sequence[dict[str, Any]] | None, plots: bool) -> str:
    if not rows:
        return ""
    calibrated = rows[0]["after"] is not None
    text = "An exit on the diagonal is right as often as it says. Larger dots stand for more samples."
    if calibrated:
        text += " Grey: as trained; blue: after confidence calibration."
    body = f'<p class="soft">{text}</p>'
    if plots:
        body += _image(reliability_plot(rows), "Reliability diagram of each exit")
    names = ["expected calibration error (%)", *(f"exit {row['exit']}" for row in rows)]
    lines = [["before", *(f"{100 * row['ece_before']:.1f}" for row in rows)]]
    if calibrated:
        lines.append(["after", *(f"{100 * row['ece_after']:.1f}" for row in rows)])
    return _section("Can the confidences be taken at their word?", body + _table(names, lines))


def _theory(theory: dict[str, Any] | None) -> str:
    if theory is None:
        return ""
    holds = {True: "holds at every exit", False: "is broken", None: "cannot be estimated at every exit"}
    verdict = (
        f"The condition of Theorem 3.1 {holds[theory['condition_holds']]}. The policy's error is "
        f"{_percent(theory['error'])}, the last exit's {_percent(theory['final_error'])}."
    )
    names = ["exit", "error q", "a", "b", "bound", "q below it", "error of those who leave", "last exit's on the same"]
    names += ["right here, wrong at the end", "wrong here, right at the end"]
    answer = {True: "yes", False: "no", None: "-"}
    rows = [
        [
            str(entry["exit"]),
            _percent(entry["error"]),
            _number(entry["a"]),
            _number(entry["b"]),
            _percent(entry["bound"]),
            answer[entry["holds"]],
            _percent(entry["leaving_error"]),
            _percent(entry["leaving_final_error"]),
            _percent(entry["overthinking"]),
            _percent(entry["underthinking"]),
        ]
        for entry in theory["exits"]
    ]
    note = (
        '<p class="soft">C<sub>t</sub> is read as the number of label changes; the paper defines it as the number of '
        "agreements and then calls it the former. The theorem takes exits to err independently, so its condition and "
        "what really happens can differ.</p>"
    )
    return _section("Theory", f"<p>{escape(verdict)}</p>{note}{_table(names, rows)}")


def _details(report: dict[str, Any]) -> str:
    policy = escape(json.dumps(report["policy"], indent=2))
    details = escape(json.dumps(report["details"], indent=2))
    return (
        f"<section><details><summary>The calibrated policy</summary><pre>{policy}</pre></details></section>"
        f"<section><details><summary>What the strategy reports</summary><pre>{details}</pre></details></section>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _image(svg: str, description: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(description)}" src="data:image/svg+xml;base64,{data}">'


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
