"""Results as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_results_table(results: Sequence[dict[str, Any]], title: str | None = None, sort: bool = False) -> None:
    """
    One row a policy: the task's metrics with early exit, their difference to the last exit, the layer speed-up, and
    how many samples left at each exit.

    # Parameters

    results : `Sequence[dict[str, Any]]`
        As `reports.replay.replay_policy` gives them, each with a `name`.
    title : `str`, optional
    sort : `bool`, optional (default = `False`)
        By the first metric, the best first.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    names = list(results[0]["metrics"]) if results else []
    if sort and names:
        results = sorted(results, key=lambda result: result["metrics"][names[0]], reverse=True)
    table = Table(title=title)
    table.add_column("policy")
    for name in names:
        table.add_column(name, justify="right")
        table.add_column("vs last exit", justify="right")
    table.add_column("layer speed-up", justify="right")
    table.add_column("left at exit 1, 2, ...", overflow="fold")
    for result in results:
        cells = [str(result["name"])]
        for name in names:
            value, final = result["metrics"][name], result["final_metrics"][name]
            cells += [f"{100 * value:.2f}", f"{100 * (value - final):+.2f}"]
        cells.append(f"{result['layer_speedup']:.2f}x")
        cells.append(" ".join(map(str, result["exit_histogram"])))
        table.add_row(*cells)
    console.print(table)
    for result in results:
        for warning in result.get("warnings", []):
            console.print(f"{result['name']}: {warning}", style="yellow", highlight=False)
