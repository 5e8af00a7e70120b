"""A benchmark on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

CASES = {"full_depth": "full depth", "nobody_leaves": "exits, nobody leaves", "exits": "exits"}


def print_benchmark_table(report: dict[str, Any]) -> None:
    """
    # Parameters

    report : `dict[str, Any]`
        As `evaluation.benchmark.run_benchmark` gives it.
    """
    counted = report["counted"]
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    console.print(f"{report['device']}, {report['threads']} threads, {counted['samples']} samples", highlight=False)
    console.print(
        f"counted: layer speed-up {counted['layer_speedup']:.3f}x, multiply-accumulates (heads included) "
        f"{counted['mac_speedup']:.3f}x; left at exit 1, 2, ...: {' '.join(map(str, counted['exit_histogram']))}",
        highlight=False,
    )
    table = Table(title=f"measured, median of {report['repeats']} (fastest - slowest); ratios: median of repeats")
    for name in ("batch", "engine", "case"):
        table.add_column(name)
    names = ("seconds", "sentences/s", "ms p50 / p95 / p99", "peak MiB", "speed-up", "/ layer", "vs transformers")
    for name in names:
        table.add_column(name, justify="right")
    for row in report["measured"]:
        cells = [str(row["batch_size"]), row["engine"], CASES[row["case"]]]
        cells.append(f"{row['seconds']:.3f} ({row['seconds_min']:.3f} - {row['seconds_max']:.3f})")
        cells.append(f"{row['sentences_per_second']:,.0f}")
        latency = [row.get(f"latency_ms_{name}") for name in ("p50", "p95", "p99")]
        cells.append("" if latency[0] is None else " / ".join(f"{value:.2f}" for value in latency))
        cells.append("" if row["peak_memory_mib"] is None else f"{row['peak_memory_mib']:,.0f}")
        if row["case"] == "exits":
            cells += [f"{row['measured_speedup']:.3f}x", f"{row['measured_over_layer_speedup']:.3f}"]
            cells.append(f"{row['measured_speedup_over_transformers']:.2f}x")
        table.add_row(*cells)
    console.print(table)
    for row in report["measured"]:
        if row["case"] == "exits":
            console.print(
                f"batch {row['batch_size']}, {row['engine']}: exits that nobody uses cost "
                f"{100 * row['measured_cost_of_exits']:+.1f} %",
                highlight=False,
            )
