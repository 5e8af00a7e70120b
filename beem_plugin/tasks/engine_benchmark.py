"""Engines on the clock: each with its exits, at full depth and with unused exits, beside transformers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.metering.macs import count_macs
from beem_plugin.execution.metering.timing import Timing, measure, percentiles, ratio
from beem_plugin.execution.stepped_network import SteppedNetwork, device_of
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.rendering.tables import Column, Table, text
from beem_plugin.tasks.engine_cases import PLAIN, Batches, answers_of, engine_cases, lengths_in_order, plain_case
from beem_plugin.tasks.task import evaluation_loader

ONE_BY_ONE = ("single",)
"""Engines that take batches apart: timed at batch size 1 only."""

WHOLE_WINDOWS = ("depth_pools",)
"""Engines that give the results of many batches at once: the latency of one batch is not defined."""

CASES = {"full_depth": "full depth", "nobody_leaves": "exits, none used", "exits": "exits"}


def batches_by_size(archive: Archive, source: str, max_instances: int | None) -> Callable[[int], Batches]:
    """Makes the data's batches of any size, outside the time that is taken."""
    instances = archive.validation_dataset_reader.read(source)[:max_instances]
    if not instances:
        raise ConfigurationError(f"{source}: found no sample to measure on")
    return lambda size: list(evaluation_loader(archive, instances, size))


def run_benchmark(
    network: SteppedNetwork,
    policy: ExitPolicy,
    make_batches: Callable[[int], Batches],
    batch_sizes: Sequence[int],
    engines: Sequence[str],
    repeats: int,
    time_budget: float | None = None,
) -> dict[str, Any]:
    """
    # Parameters

    network : `SteppedNetwork`
        On its device, in its precision.
    policy : `ExitPolicy`
    make_batches : `Callable[[int], Sequence[dict[str, Tensor]]]`
        The same samples in batches of a given size.
    batch_sizes : `Sequence[int]`
    engines : `Sequence[str]`
        Registered names.
    repeats : `int`
    time_budget : `float`, optional
        Seconds of each batch size, see `timing.measure`.

    # Returns

    `dict[str, Any]`
        `counted` (`layer_speedup`, `mac_speedup`, both from the exits that were taken), `measured` (a row an engine
        and batch size).
    """
    if repeats < 1:
        raise ConfigurationError(f"--repeats: found {repeats}, allowed: 1 or more")
    rows = []
    sizes = sorted(set(batch_sizes))
    counted: dict[str, Any] = {}
    for size in sizes if not set(engines) & set(ONE_BY_ONE) else sorted({1, *sizes}):
        chosen = [name for name in engines if (size == 1 if name in ONE_BY_ONE else size in sizes)]
        if not chosen:
            continue
        batches = make_batches(size)
        rows += _measure_size(network, policy, batches, size, chosen, repeats, counted, time_budget)
    if not rows:
        raise ConfigurationError("--engines: found nothing to measure, allowed: names of engines")
    return {"counted": counted, "measured": rows}


def _measure_size(
    network: SteppedNetwork,
    policy: ExitPolicy,
    batches: Batches,
    size: int,
    engines: Sequence[str],
    repeats: int,
    counted: dict[str, Any],
    time_budget: float | None,
) -> list[dict[str, Any]]:
    cases = {PLAIN: plain_case(network, batches)}
    computed = {}
    for name in engines:
        decisions, computed[name] = answers_of({"type": name}, network, policy, batches)
        if not counted:
            counted.update(count(network, decisions.exits, batches))
        for kind, case in engine_cases({"type": name}, network, policy, batches).items():
            cases[f"{name} {kind}"] = case
    timings = measure(cases, repeats, device_of(network), time_budget=time_budget, description=f"batch size {size}")
    samples = counted["samples"]
    rows = [_row(PLAIN, "full_depth", size, timings[PLAIN], samples, latency=True)]
    for name in engines:
        exits, full, never = (timings[f"{name} {kind}"] for kind in ("exits", "full_depth", "nobody_leaves"))
        latency = name not in WHOLE_WINDOWS
        rows.append(_row(name, "full_depth", size, full, samples, latency))
        rows.append(_row(name, "nobody_leaves", size, never, samples, latency))
        row = _row(name, "exits", size, exits, samples, latency)
        row["measured_speedup"] = ratio(full, exits)
        row["measured_over_layer_speedup"] = row["measured_speedup"] / counted["layer_speedup"]
        row["measured_speedup_over_transformers"] = ratio(timings[PLAIN], exits)
        row["measured_cost_of_exits"] = ratio(never, full) - 1
        row["computed_layer_speedup"] = computed[name]
        rows.append(row)
    return rows


def count(network: SteppedNetwork, exits: Tensor, batches: Batches) -> dict[str, Any]:
    """`layer_speedup` and `mac_speedup` of the exits that were taken. Counts, not seconds."""
    lengths = lengths_in_order(batches)
    depth: dict[str, Any] = depth_summary(exits, network.exit_layers)
    depth["mac_speedup"] = count_macs(network).speedup(exits, lengths)
    if hasattr(network, "depth_of_tokens"):
        depth.update(network.depth_of_tokens(tokens_of(batches)))
    return {
        "samples": len(exits),
        "mean_tokens": float(lengths.double().mean()),
        "layer_speedup": depth["layer_speedup"],
        "mac_speedup": depth["mac_speedup"],
        "average_layer": depth["average_layer"],
        "exit_histogram": depth["exit_histogram"],
    }


def tokens_of(batches: Batches) -> Iterator[list[int]]:
    """Each sample's token ids, without padding."""
    for batch in batches:
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            yield ids[mask.bool()].tolist()


def _row(engine: str, case: str, size: int, timing: Timing, samples: int, latency: bool) -> dict[str, Any]:
    row = {"engine": engine, "case": case, "batch_size": size, **timing.summary()}
    row["sentences_per_second"] = samples / statistics.median(timing.seconds)
    if latency:
        row.update(percentiles(timing.latencies))
    return row


def benchmark_table(report: dict[str, Any]) -> Table:
    """The report of `run_benchmark`, with what it ran on, as a table."""
    counted = report["counted"]
    columns = [Column("batch", digits=0), *text("engine", "case", "seconds"), Column("sentences/s", digits=0)]
    columns += [*text("ms p50 / p95 / p99"), Column("peak MiB", digits=0), Column("speed-up", digits=3, unit="x")]
    columns += [Column("/ layer", digits=3), Column("vs transformers", unit="x")]
    table = Table(columns, title=timing_title(report))
    for row in report["measured"]:
        latency = [row.get(f"latency_ms_{name}") for name in ("p50", "p95", "p99")]
        shown = None if latency[0] is None else " / ".join(f"{value:.2f}" for value in latency)
        cells = [row["batch_size"], row["engine"], CASES[row["case"]], seconds_with_range(row)]
        cells += [row["sentences_per_second"], shown, row["peak_memory_mib"]]
        names = ("measured_speedup", "measured_over_layer_speedup", "measured_speedup_over_transformers")
        table.rows.append([*cells, *(row.get(name) for name in names)])
    histogram = " ".join(map(str, counted["exit_histogram"]))
    table.notes = [
        f"{report['device']}, {report['threads']} threads, {counted['samples']} samples",
        f"counted: layer speed-up {counted['layer_speedup']:.3f}x, multiply-accumulates (heads included) "
        f"{counted['mac_speedup']:.3f}x; left at exit 1, 2, ...: {histogram}",
        *(
            f"batch {row['batch_size']}, {row['engine']}: unused exits cost "
            f"{100 * row['measured_cost_of_exits']:+.1f} %"
            for row in report["measured"]
            if row["case"] == "exits"
        ),
    ]
    return table


def timing_title(report: dict[str, Any]) -> str:
    return f"measured, median of {report['repeats']} (fastest - slowest); ratios: median of repeats"


def seconds_with_range(row: dict[str, Any]) -> str:
    return f"{row['seconds']:.3f} ({row['seconds_min']:.3f} - {row['seconds_max']:.3f})"
