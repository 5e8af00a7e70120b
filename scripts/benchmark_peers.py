"""
The public way of running early exit, measured in the same run as the engines, on the same weights and policy.

Public implementations run one sample at a time in eager mode and ask `if` of a tensor on the device after every layer;
with batches they go on until the whole batch is sure. Both are written here as plainly as they write it, and stepped by
the same policy object, so that only the way of running differs.

    python scripts/benchmark_peers.py --archive model.tar.gz --data dev.tsv [--max-instances 500] [--cuda-device 0]
        [--dtype float16] [--output F.json]

DATA is what the archive's dataset reader reads, so the exits are those that real sentences take.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.common.files import write_json
from beem_plugin.execution.metering.timing import Timing, measure, percentiles, ratio
from beem_plugin.execution.precision import cast_network
from beem_plugin.execution.stepped_network import SteppedNetwork, device_of
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.tasks.engine_cases import PLAIN, batches_by_size, engine_cases


@torch.inference_mode()
def layer_by_layer(
    network: SteppedNetwork, policy: ExitPolicy, batches: Iterable[dict[str, Tensor]]
) -> Iterator[tuple[int, Tensor]]:
    """A batch leaves when all of it is sure: at batch size 1 the sample, otherwise its slowest member."""
    device = device_of(network)
    policy.bind(network.exit_layers, network.num_labels)
    for batch in batches:
        inputs = {name: value.to(device) for name, value in batch.items() if name not in ("index", "label")}
        state = network.embed(inputs)
        memory = policy.start(len(inputs["input_ids"]), network.num_exits, device)
        for exit_number in range(1, network.num_exits + 1):
            state = network.advance(exit_number, state)
            signals = network.exit_signals(exit_number, state)
            leaves, memory = policy.step(exit_number, signals, memory)
            if exit_number == network.num_exits or torch.all(leaves):  # the device is waited for, at every exit
                break
        yield exit_number, policy.output(exit_number, signals, memory).argmax(-1).cpu()


def peer_cases(
    network: SteppedNetwork, policy: ExitPolicy, batches: Sequence[dict[str, Tensor]]
) -> dict[str, Callable[[], Iterable[Any]]]:
    """The public way at full depth and with the policy, to be timed."""
    return {
        "layer by layer, no sample exits": lambda: layer_by_layer(network, Final(), batches),
        "layer by layer, exits": lambda: layer_by_layer(network, policy, batches),
    }


def print_rows(timings: dict[str, Timing], samples: int, slow: str) -> None:
    """A line a case, with its speed relative to the case `slow`."""
    for name, timing in timings.items():
        latency = percentiles(timing.latencies)["latency_ms_p50"]
        print(
            f"{name:42s} {1000 * timing.median / samples:9.3f} ms a sample   p50 {latency:8.3f} ms a call   "
            f"{samples / timing.median:10.0f} sentences/s   {ratio(timings[slow], timing):6.2f}x {slow}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time the public way of running early exit beside the engines.")
    parser.add_argument("archive_file", nargs="?")
    parser.add_argument("input_file", nargs="?")
    parser.add_argument("--archive", help="the archive, in place of the first argument")
    parser.add_argument("--data", help="the sentences, in place of the second argument")
    parser.add_argument("--output", help="a JSON file for the figures")
    parser.add_argument("--max-instances", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cuda-device", type=int, default=-1)
    args = parser.parse_args(arguments)
    source, data = args.archive or args.archive_file, args.data or args.input_file
    if source is None or data is None:
        parser.error("an archive and data are needed")
    archive = load_archive(source, cuda_device=args.cuda_device)
    network, policy = archive.model.encoder, archive.model.exit_policy
    cast_network(network, args.dtype)
    make_batches = batches_by_size(archive, data, args.max_instances)
    device = device_of(network)
    found: dict[str, Any] = {"archive": str(source), "data": str(data), "dtype": args.dtype}
    for size, engine in ((1, "single"), (args.batch_size, "depth_pools")):
        batches = make_batches(size)
        plain, *own = engine_cases(network, policy, batches, [engine])
        counted = next(case for case in own if case.case == "exits").counts()
        cases = {PLAIN: plain.run, **peer_cases(network, policy, [one.padded(always_mask=True) for one in batches])}
        cases |= {f"{engine}, {case.case}": case.run for case in own}
        print(
            f"batch size {size}, {args.dtype}, measured, median of {args.repeats}; counted layer speed-up "
            f"{counted['layer_speedup']:.3f}, left at exit 1, 2, ...: {' '.join(map(str, counted['exit_histogram']))}"
        )
        timings = measure(cases, args.repeats, device)
        print_rows(timings, counted["samples"], PLAIN)
        full, exits, never = (timings[f"{engine}, {kind}"] for kind in ("full_depth", "exits", "no_sample_exits"))
        over = ratio(full, exits) / counted["layer_speedup"]
        cost = ratio(never, full) - 1
        print(f"{engine}: measured / layer speed-up {over:.3f}, exits that nobody uses {100 * cost:+.1f} %")
        found[f"batch {size}"] = {
            **counted,
            "seconds": {name: timing.median for name, timing in timings.items()},
            "measured_over_layer_speedup": over,
            "measured_cost_of_exits": cost,
        }
    if args.output:
        write_json(args.output, found)


if __name__ == "__main__":
    main()
