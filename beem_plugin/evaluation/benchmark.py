"""`allennlp benchmark`: real seconds beside what the layer and the multiply-accumulate counts promise."""

from __future__ import annotations

import argparse
import csv
import platform
import resource
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beem_plugin.archival import Archive, load_archive
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write, write_json
from beem_plugin.evaluation.benchmark_cases import (
    PLAIN,
    Batches,
    answers_of,
    engine_cases,
    lengths_in_order,
    plain_case,
)
from beem_plugin.evaluation.caption_benchmark import benchmark_captions, image_batches_by_size, print_caption_table
from beem_plugin.evaluation.evaluate import evaluation_loader
from beem_plugin.evaluation.timing import Timing, measure, percentiles, ratio
from beem_plugin.execution.metering.macs import count_macs
from beem_plugin.execution.precision import cast_network
from beem_plugin.execution.stepped_network import SteppedNetwork, device_of
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner, MultiExitModel
from beem_plugin.rendering.benchmark_table import print_benchmark_table
from beem_plugin.rendering.plots import plots_available

ENGINES = "single,compaction,depth_pools"
"""What is measured of a classifier unless one says otherwise."""

ONE_BY_ONE = ("single",)
"""Engines that take batches apart: timed at batch size 1 alone, whatever the others are timed at."""

WHOLE_WINDOWS = ("depth_pools",)
"""Engines that answer many batches at once: no latency of one batch can be told."""


def benchmark_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/benchmark.py` parses them."""
    archive = load_archive(
        args.archive_file, cuda_device=args.cuda_device, overrides=args.overrides, weights_file=args.weights_file
    )
    model = archive.model
    sizes = numbers(args.batch_sizes, "--batch-sizes")
    for flag, value in (("--repeats", args.repeats), ("--max-instances", args.max_instances)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{flag}: found {value}, allowed: 1 or more")
    if isinstance(model, MultiExitCaptioner):
        if args.engines is not None:
            raise ConfigurationError("--engines: a captioning model decodes by itself, allowed: none")
        cast_network(model, args.dtype)
        found = benchmark_captions(
            model,
            model.exit_policy,
            image_batches_by_size(archive, args.input_file, args.max_instances),
            sizes,
            names(args.skipped_blocks or ""),
            args.repeats,
            args.num_beams,
            args.max_length,
        )
    elif isinstance(model, MultiExitModel):
        for flag in ("skipped_blocks", "num_beams", "max_length"):
            if getattr(args, flag) is not None:
                name = flag.replace("_", "-")
                raise ConfigurationError(f"--{name}: found {getattr(args, flag)}, allowed: of captioning models alone")
        cast_network(model.encoder, args.dtype)
        found = run_benchmark(
            model.encoder,
            model.exit_policy,
            batches_by_size(archive, args.input_file, args.max_instances),
            sizes,
            names(args.engines if args.engines is not None else ENGINES),
            args.repeats,
        )
    else:
        raise ConfigurationError(
            f"benchmark: found a model {type(model).__name__}, allowed: multi_exit_classifier, multi_exit_regressor, "
            "multi_exit_captioner"
        )
    report = {
        "archive": str(args.archive_file),
        "data": args.input_file,
        "dtype": args.dtype,
        "exit_policy": model.exit_policy.to_config(),
        **machine(model.device, args.repeats),
        **found,
    }
    (print_caption_table if isinstance(model, MultiExitCaptioner) else print_benchmark_table)(report)
    if args.output_file:
        write_benchmark(report, Path(args.output_file))
    return report


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

    # Returns

    `dict[str, Any]`
        `counted` (`layer_speedup`, `mac_speedup`, both from the exits that were taken), `measured` (a row an engine
        and batch size), and what it ran on.
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
        rows += _measure_size(network, policy, batches, size, chosen, repeats, counted)
    if not rows:
        raise ConfigurationError("--engines: found nothing to measure, allowed: names of engines")
    return {**machine(device_of(network), repeats), "counted": counted, "measured": rows}


def machine(device: torch.device, repeats: int) -> dict[str, Any]:
    """What was measured on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "repeats": repeats,
        "process_peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _measure_size(
    network: SteppedNetwork,
    policy: ExitPolicy,
    batches: Batches,
    size: int,
    engines: Sequence[str],
    repeats: int,
    counted: dict[str, Any],
) -> list[dict[str, Any]]:
    cases = {PLAIN: plain_case(network, batches)}
    computed = {}
    for name in engines:
        decisions, computed[name] = answers_of({"type": name}, network, policy, batches)
        if not counted:
            counted.update(count(network, decisions.exits, batches))
        for kind, case in engine_cases({"type": name}, network, policy, batches).items():
            cases[f"{name} {kind}"] = case
    timings = measure(cases, repeats, device_of(network))
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


def processor_name() -> str:
    """The CPU's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write_benchmark(report: dict[str, Any], path: Path) -> None:
    """JSON to `path`, the rows as CSV beside it, and a plot if matplotlib is installed."""
    write_json(path, report)
    rows = [{key: value for key, value in row.items() if key != "seconds_all"} for row in report["measured"]]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with atomic_write(path.with_suffix(".csv")) as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    if plots_available():
        from beem_plugin.rendering.benchmark_plot import benchmark_plot

        with atomic_write(path.with_suffix(".svg")) as file:
            file.write(benchmark_plot(report))
