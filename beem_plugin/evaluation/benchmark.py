"""`allennlp benchmark`: measured seconds beside the counts of layers and multiply-accumulates."""

import argparse
import math
import platform
import resource
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from beem_plugin.archival import Archive, archive_of
from beem_plugin.common.errors import ConfigurationError, check_least
from beem_plugin.common.files import write_json
from beem_plugin.common.outputs import check_outputs, check_writable
from beem_plugin.execution.engine import check_engine
from beem_plugin.execution.metering.timing import PERCENTILES, measure, percentiles, ratio
from beem_plugin.rendering.plots import plots_available, rates_plot, save_figure
from beem_plugin.rendering.tables import Column, Table, write_csv
from beem_plugin.tasks.task import BenchmarkOptions, Case, task_of_archive, warn_without_exits

PLAIN = "transformers, full_depth"
OPTIONAL = ("engines", "skipped_blocks", "num_beams", "max_length")
CASES = {"exits": "exits", "full_depth": "full depth", "no_sample_exits": "exits, none used"}
"""The cases, in the order of the plot's colours, and their names in the table."""

PROBED, ROUNDS = 8, 3
"""Samples that are timed first to see how many fit into a time budget, in a warm-up and two repeats."""

FORMER_NAMES = {"no_sample_exits": "nobody_leaves"}
"""What `case` is called in the JSON of earlier releases; `condition` has the present name."""

COUNTED = (
    "samples", "words", "mean_tokens", "layer_speedup", "encoder_layer_speedup", "average_layer", "exit_histogram",
    "mac_speedup",
)  # fmt: skip
"""What is counted once, of the first case with exits."""


def benchmark_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/benchmark.py` parses them."""
    if args.output_file:
        check_benchmark_files(args)
    sizes = numbers(args.batch_sizes, "--batch-sizes")
    check_least(args, 1, "repeats", "max_instances", "num_beams", "max_length")
    archive = archive_of(args)
    model: Any = archive.model
    task = task_of_archive(archive)
    for name in OPTIONAL:
        if getattr(args, name) is not None and name not in task.benchmark_options:
            own = ", ".join(f"--{other.replace('_', '-')}" for other in task.benchmark_options) or "none of its own"
            raise ConfigurationError(
                f"--{name.replace('_', '-')}: found {getattr(args, name)}, allowed: not with this kind of model, which "
                f"has {own}"
            )
    warn_without_exits(model)
    chosen = {name: getattr(args, name) for name in OPTIONAL}
    chosen |= {name: names(chosen[name]) for name in OPTIONAL[:2] if chosen[name] is not None}
    for name in chosen["engines"] or ():
        check_engine(name, "--engines")
    options = BenchmarkOptions(args.input_file, sizes, args.dtype, args.max_instances, **chosen)
    found = benchmark(archive, options, args.repeats, args.time_budget)
    report = {"archive": str(args.archive_file), "data": args.input_file, **found}
    benchmark_table(report, task.benchmark_note(report["counted"])).print(150)
    if args.output_file:
        path = Path(args.output_file)
        write_json(path, report)
        rows = [{key: value for key, value in row.items() if key != "seconds_all"} for row in report["measured"]]
        write_csv(path.with_suffix(".csv"), rows)
        if plots_available():
            save_figure(benchmark_figure(report), path.with_suffix(".svg"))
    return report


def benchmark(archive: Archive, options: BenchmarkOptions, repeats: int, time_budget: float) -> dict[str, Any]:
    """
    The report: dtype, policy and machine, what `run_benchmark` finds, and a `summary`, a line a size and engine. If
    `max_instances` is not given, as many of the first samples are measured as fit into `time_budget`, in seconds for a
    batch size, in `ROUNDS` rounds; `available_samples` is how many there are.
    """
    model: Any = archive.model
    model.exit_policy.check_calibrated()
    task = task_of_archive(archive)
    given = options.instances or task.benchmark_instances(archive, options.source)
    options = replace(options, instances=given)
    if options.max_instances is None and len(given) > PROBED and time_budget < math.inf:
        _, cases = next(iter(task.benchmark_cases(archive, replace(options, max_instances=PROBED))))
        timings = measure({f"{case.engine}, {case.case}": case.run for case in cases}, 1, model.device)
        round_of_one = sum(timing.median for timing in timings.values()) / PROBED
        options.max_instances = max(PROBED, int(min(len(given), time_budget / (ROUNDS * round_of_one))))
    found = run_benchmark(task.benchmark_cases(archive, options), repeats, model.device, time_budget)
    about = {"dtype": options.dtype, "exit_policy": model.exit_policy.to_config(), "available_samples": len(given)}
    summary = [
        f"batch {row['batch_size']}, {row['engine']}: {row['measured_speedup']:.2f}x full depth, "
        f"{row['measured_speedup_over_transformers']:.2f}x transformers; counted in layers {row['layer_speedup']:.2f}x"
        for row in found["measured"]
        if row["case"] == "exits"
    ]
    return {**about, **machine(model.device, repeats), "summary": summary, **found}


def run_benchmark(
    cases_by_size: Iterable[tuple[int, list[Case]]],
    repeats: int,
    device: torch.device,
    time_budget: float = math.inf,
) -> dict[str, Any]:
    """
    Times the cases of `Task.benchmark_cases`; `time_budget` is that of each batch size. Gives `counted` of the first
    case with exits, and `measured`: a row a batch size and case (its name in `condition`, and in `case` that of release
    0.1) with its `seconds`, rates, latency of a batch, `measured_speedup` (over full depth of the same engine),
    `measured_speedup_over_transformers`, `measured_over_layer_speedup`, `measured_cost_of_exits` (of unused exits over
    full depth, less 1), and the numbers that the case counts.
    """
    rows: list[dict[str, Any]] = []
    counted: dict[str, Any] = {}
    for size, cases in cases_by_size:
        runs = {f"{case.engine}, {case.case}": case.run for case in cases}
        timings = measure(runs, repeats, device, time_budget=time_budget, description=f"batch size {size}")
        for case, timing in zip(cases, timings.values(), strict=True):
            counts = case.counts()
            former = FORMER_NAMES.get(case.case, case.case)
            row: dict[str, Any] = {"engine": case.engine, "case": former, "condition": case.case, "batch_size": size}
            row |= timing.summary()
            row |= {f"{unit}_per_second": counts[name] / timing.median for unit, name in case.rates.items()}
            row |= percentiles(timing.latencies) if case.has_latency else {}
            row |= {name: value for name, value in counts.items() if not isinstance(value, dict | list)}
            rows.append(row)
            if case.reference is not None:
                full = timings[f"{case.reference}, full_depth"]
                row["measured_speedup"] = ratio(full, timing)
                row["measured_speedup_over_transformers"] = ratio(timings[PLAIN], timing)
            if case.case == "exits":
                counted = counted or {name: counts[name] for name in COUNTED if name in counts}
                if (never := timings.get(f"{case.engine}, no_sample_exits")) is not None:
                    row["measured_cost_of_exits"] = ratio(never, full) - 1
                row["measured_over_layer_speedup"] = row["measured_speedup"] / row["layer_speedup"]
    if not rows:
        raise ConfigurationError("--engines: found nothing to measure, allowed: names of engines")
    return {"counted": counted, "measured": rows}


def benchmark_table(report: dict[str, Any], note: str) -> Table:
    """One row a batch size and case; columns without a value are left out. A column is added here."""
    rows, counted = report["measured"], report["counted"]
    columns = {
        "batch_size": Column("batch", digits=0),
        **{name: Column(name, "text") for name in ("engine", "case", "seconds")},
        "sentences_per_second": Column("sentences/s", digits=0),
        "words_per_second": Column("words/s", digits=0),
        "images_per_second": Column("images/s", digits=1),
        "latency": Column("ms p50 / p95 / p99 a batch", "text"),
        "peak_memory_mib": Column("peak MiB", digits=0),
        "mac_speedup": Column("MACs", digits=3, unit="x"),
        "measured_speedup": Column("speed-up", digits=3, unit="x"),
        "measured_over_layer_speedup": Column("/ layer", digits=3),
        "measured_speedup_over_transformers": Column("vs transformers", unit="x"),
        "same_as_full_depth": Column("same", digits=0, unit=" %", factor=100),
    }
    shown = [row | {"case": CASES[row["condition"]]} for row in rows]
    for row in shown:
        row["seconds"] = f"{row['seconds']:.3f} ({row['seconds_min']:.3f} - {row['seconds_max']:.3f})"
        if "latency_ms_p50" in row:
            row["latency"] = " / ".join(f"{row[f'latency_ms_p{percent}']:.2f}" for percent in PERCENTILES)
    repeats = sorted({len(row["seconds_all"]) for row in rows})
    title = f"measured, median of {' to '.join(map(str, repeats[:: len(repeats) - 1 or 1]))} repeats"
    table = Table.of_records(shown, columns, f"{title} (fastest - slowest); ratios: median of repeats")
    available = report["available_samples"]
    kind = "images" if "images_per_second" in rows[0] else "samples"
    table.notes = [
        f"{report['device']}, {report['threads']} threads, {counted['samples']} {kind}"
        + f" of {available}; --time-budget SECONDS measures more" * (counted["samples"] < available),
        f"counted: {note}; left at exit 1, 2, ...: {' '.join(map(str, counted['exit_histogram']))}",
        *(
            f"batch {row['batch_size']}, {row['engine']}: unused exits cost "
            f"{100 * row['measured_cost_of_exits']:+.1f} %"
            for row in rows
            if "measured_cost_of_exits" in row
        ),
    ]
    return table


def check_benchmark_files(args: argparse.Namespace) -> None:
    """Before anything is measured: the JSON file, and those beside it, can be written and are no inputs."""
    beside = {f"--output-file ({end} beside it)": Path(args.output_file).with_suffix(end) for end in (".csv", ".svg")}
    outputs = {"--output-file": args.output_file, **{flag: str(path) for flag, path in beside.items()}}
    check_writable(outputs)
    check_outputs(outputs, [args.archive_file, args.input_file, args.weights_file])


def names(text: str) -> list[str]:
    """A list of names, separated by commas; each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def numbers(text: str, flag: str) -> list[int]:
    """A list of positive whole numbers, separated by commas."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise ConfigurationError(f"{flag}: found {text!r}, allowed: whole numbers from 1, separated by commas")
    return values


def machine(device: torch.device, repeats: int) -> dict[str, Any]:
    """The device and the libraries."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "repeats": repeats,
        "process_peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def processor_name() -> str:
    """The CPU's name as the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
    return found or platform.processor() or platform.machine()


def benchmark_figure(report: dict[str, Any]) -> Any:
    """Sentences or images a second with their range; marks are full depth times the layer speed-up."""
    rows, counted = report["measured"], report["counted"]
    what = "images" if "images_per_second" in rows[0] else "sentences"
    labels = [f"{row['engine']}, {row['condition'].replace('_', ' ')}, batch {row['batch_size']}" for row in rows]
    bars = [
        {
            "value": row[f"{what}_per_second"],
            "look": list(CASES).index(row["condition"]),
            "low": counted["samples"] / row["seconds_max"],
            "high": counted["samples"] / row["seconds_min"],
            "mark": counted["layer_speedup"] * row[f"{what}_per_second"] if row["case"] == "full_depth" else None,
        }
        for row in rows
    ]
    label = f"{what} a second, measured on {report['device']}; marks: times the layer speed-up, counted"
    return rates_plot(labels, bars, label)
