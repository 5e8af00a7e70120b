"""`allennlp benchmark`: measured seconds beside the counts of layers and multiply-accumulates."""

from __future__ import annotations

import argparse
import logging
import platform
import resource
from pathlib import Path
from typing import Any

import torch

from beem_plugin.archival import load_archive
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import write_json
from beem_plugin.common.outputs import check_outputs, check_writable
from beem_plugin.rendering.plots import plots_available, rates_plot, save_figure
from beem_plugin.rendering.tables import write_csv
from beem_plugin.tasks.task import BenchmarkOptions, task_of_archive

logger = logging.getLogger(__name__)

OPTIONAL = ("engines", "skipped_blocks", "num_beams", "max_length")
LOOKS = {"exits": 0, "full_depth": 1, "nobody_leaves": 2}


def benchmark_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; `args` as `commands/benchmark.py` parses them."""
    if args.output_file:
        check_benchmark_files(args)
    sizes = numbers(args.batch_sizes, "--batch-sizes")
    for flag, value in (("repeats", args.repeats), ("max-instances", args.max_instances)):
        if value is not None and value < 1:
            raise ConfigurationError(f"--{flag}: found {value}, allowed: 1 or more")
    archive = load_archive(
        args.archive_file, cuda_device=args.cuda_device, overrides=args.overrides, weights_file=args.weights_file
    )
    model: Any = archive.model
    task = task_of_archive(archive)
    for name in OPTIONAL:
        if getattr(args, name) is not None and name not in task.benchmark_options:
            flag = name.replace("_", "-")
            allowed = "not with this kind of model, which has " + (
                ", ".join(f"--{other.replace('_', '-')}" for other in task.benchmark_options) or "none of its own"
            )
            raise ConfigurationError(f"--{flag}: found {getattr(args, name)}, allowed: {allowed}")
    if not model.exit_policy.leaves_early:
        logger.warning(
            "the archive's policy is %s: no sample exits early, so no speed-up is measured; give a policy with -o "
            "'{\"model.exit_policy\": {..}}', or write one into a new archive with `allennlp calibrate ARCHIVE "
            "--policy P --output-archive NEW.tar.gz`",
            model.exit_policy.registered_name,
        )
    lists = {name: names(getattr(args, name)) for name in OPTIONAL[:2] if getattr(args, name) is not None}
    options = BenchmarkOptions(
        args.input_file,
        sizes,
        args.repeats,
        args.dtype,
        args.max_instances,
        **lists,
        num_beams=args.num_beams,
        max_length=args.max_length,
        time_budget=args.time_budget,
    )
    found = task.benchmark(archive, options)
    report = {
        "archive": str(args.archive_file),
        "data": args.input_file,
        "dtype": args.dtype,
        "exit_policy": model.exit_policy.to_config(),
        **machine(model.device, args.repeats),
        **found,
    }
    task.benchmark_table(report).print(150)
    if args.output_file:
        write_benchmark(report, Path(args.output_file))
    return report


def check_benchmark_files(args: argparse.Namespace) -> None:
    """Before anything is measured: the JSON file, and those beside it, can be written and are no inputs."""
    path = Path(args.output_file)
    check_writable({"--output-file": args.output_file})
    outputs = {"--output-file": str(path)}
    outputs |= {f"--output-file ({end} beside it)": str(path.with_suffix(end)) for end in (".csv", ".svg")}
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
    rows = report["measured"]
    write_csv(path.with_suffix(".csv"), [{k: v for k, v in row.items() if k != "seconds_all"} for row in rows])
    if plots_available():
        save_figure(benchmark_figure(report), path.with_suffix(".svg"))


def benchmark_figure(report: dict[str, Any]) -> Any:
    """Sentences or images a second with their range; marks are full depth times the layer speed-up."""
    rows, counted = report["measured"], report["counted"]
    what = "images" if "images_per_second" in rows[0] else "sentences"
    labels = [f"{row['engine']}, {row['case'].replace('_', ' ')}, batch {row['batch_size']}" for row in rows]
    bars = []
    for row in rows:
        rate = row[f"{what}_per_second"]
        bar = {"value": rate, "look": LOOKS[row["case"]], "mark": None}
        bar |= {"low": counted["samples"] / row["seconds_max"], "high": counted["samples"] / row["seconds_min"]}
        if row["case"] == "full_depth":
            bar["mark"] = counted["layer_speedup"] * rate
        bars.append(bar)
    label = f"{what} a second, measured on {report['device']}; marks: times the layer speed-up, counted"
    return rates_plot(labels, bars, label)
