"""
Where the time goes when samples leave early, at batch size 1 and in a file.

    python scripts/profile_execution.py [--shape base|small|tiny] [--device cuda|cpu]
    python scripts/profile_execution.py --archive model.tar.gz --data dev.tsv
    ... --single '{"heads": "plain", "check_every": 1, "plain_numbers": false}'   one optimisation off at a time
    ... --pools '{"min_leaving": 0.02, "tokens_per_chunk": 65536}'

For each engine: seconds of the run as it is; the same run with every part timed by itself (layers, heads, policy,
regrouping; on a GPU the parts are waited for, so their sum says what they cost, not how long the run is); and on a GPU
how long its kernels kept the card busy, by kind of kernel, and how long it stood idle.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from beem_plugin.data.ragged_batch import ragged_batches
from beem_plugin.execution import depth_pools, fused_window, pooling, sample_runner, single
from beem_plugin.execution.engine import Engine
from beem_plugin.exits.policy import ExitPolicy

KINDS = {
    "decision kernels": ("mean_vector", "dense_tanh", "decide"),
    "matrix products": ("gemm", "cutlass", "nvjet", "sm90_", "sm80_", "cublas", "splitK"),
    "attention": ("flash", "fmha", "attention", "softmax_warp"),
    "copies": ("Memcpy", "memcpy", "index_select", "indexSelect", "gather", "CatArray", "Memset"),
    "normalisation": ("layer_norm", "LayerNorm"),
    "float64": ("double",),
}


@contextmanager
def timed_parts(network: Any, policy: ExitPolicy, device: torch.device) -> Iterator[dict[str, float]]:
    """Seconds in layers, heads, policy and regrouping while the context lasts; engines must not capture."""
    seconds: dict[str, float] = defaultdict(float)
    nested = [0.0]

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            before, nested[0] = nested[0], 0.0
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                took = time.perf_counter() - start
                seconds[part] += took - nested[0]  # what a timed part called is counted there
                nested[0] = before + took

        return run

    runner = sample_runner.SampleRunner
    with (
        mock.patch.object(network, "embed", timed("embeddings", network.embed)),
        mock.patch.object(network, "advance", timed("layers", network.advance)),
        mock.patch.object(network, "exit_signals", timed("heads", network.exit_signals)),
        mock.patch.object(runner, "_signals", timed("heads", runner._signals)),
        mock.patch.object(pooling.BatchHeads, "__call__", timed("heads", pooling.BatchHeads.__call__)),
        mock.patch.object(policy, "step", timed("policy", policy.step)),
        mock.patch.object(policy, "output", timed("policy", policy.output)),
        mock.patch.object(pooling, "form_anew", item_by_item(timed("regrouping", next), pooling.form_anew)),
        mock.patch.object(pooling.Ledger, "step", timed("ledger", pooling.Ledger.step)),
        mock.patch.object(pooling.Ledger, "take_out", timed("ledger", pooling.Ledger.take_out)),
        mock.patch.object(
            fused_window.FusedWindow,
            "form_anew",
            item_by_item(timed("regrouping", next), fused_window.FusedWindow.form_anew),
        ),
        mock.patch.object(fused_window.WindowKernels, "logits", timed("heads", fused_window.WindowKernels.logits)),
        mock.patch.object(fused_window.pool_kernels, "decide", timed("policy", fused_window.pool_kernels.decide)),
        mock.patch.object(
            depth_pools, "sorted_windows", item_by_item(timed("input", next), depth_pools.sorted_windows)
        ),
        mock.patch.object(single, "one_by_one", timed("input", single.one_by_one)),
        mock.patch.object(single, "as_decisions", timed("answers", single.as_decisions)),
    ):
        yield seconds


def item_by_item(step: Callable[..., Any], function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """The generator `function`, whose items are asked for with `step` in place of `next`."""

    def run(*args: Any, **kwargs: Any) -> Iterator[Any]:
        items = function(*args, **kwargs)
        while (item := step(items, None)) is not None:
            yield item

    return run


def where_time_goes(network: Any, subject: Any, config: dict[str, Any], samples: int) -> dict[str, Any]:
    """
    # Parameters

    network : `MultiExitEncoder`
        On its device, in its precision.
    subject : `Subject`
        Of `gpu_check_execution.py`: makes inputs and a policy.
    config : `dict[str, Any]`
        An engine's.
    samples : `int`
    """
    device = subject.device
    is_single = config["type"] == "single"
    lengths = subject.lengths(samples)
    batches = subject.batches(lengths, 1 if is_single else 256)
    policy, _ = subject.policy_for(network, batches)
    engine = Engine.from_params(dict(config))
    ragged = list(ragged_batches(batches))

    def run(runner: Engine) -> float:
        start = time.perf_counter()
        for _ in runner.run(network, policy, ragged):
            pass
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    run(engine)
    total = min(run(engine) for _ in range(3))
    found: dict[str, Any] = {"ms a sample": 1000 * total / len(lengths)}
    print(f"   {config}: {found['ms a sample']:.4f} ms a sample")
    uncaptured = Engine.from_params({**config, "capture": False} if is_single else dict(config))
    run(uncaptured)
    with timed_parts(network, policy, device) as seconds:
        whole = run(uncaptured)
    seconds["rest"] = whole - sum(seconds.values())
    found["parts"] = {part: 1000 * value / len(lengths) for part, value in seconds.items()}
    found["parts, whole"] = 1000 * whole / len(lengths)
    for part, value in sorted(found["parts"].items(), key=lambda pair: -pair[1]):
        print(f"      {part:12s} {value:9.5f} ms a sample  {100 * value / found['parts, whole']:5.1f} %")
    if device.type == "cuda":
        found["kernels"] = kernels(lambda: run(engine), len(lengths))
    return found


def kernels(work: Callable[[], float], samples: int) -> dict[str, float]:
    """Milliseconds a sample in which the card was busy, by kind of kernel, and the span from first to last kernel."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        work()
    spans = []
    busy: dict[str, float] = defaultdict(float)
    for event in profiler.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        start, end = event.time_range.start, event.time_range.end
        spans.append((start, end))
        kind = next((kind for kind, names in KINDS.items() if any(name in event.name for name in names)), "other")
        busy[kind] += end - start
    if not spans:
        print("      the profiler saw no kernel")
        return {}
    spans.sort()
    covered, reached = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole = reached - spans[0][0]
    found = {f"kernels, {kind}": value / 1000 / samples for kind, value in busy.items()}
    found |= {"card busy": covered / 1000 / samples, "card idle": (whole - covered) / 1000 / samples}
    for name, value in sorted(found.items(), key=lambda pair: -pair[1]):
        print(f"      {name:28s} {value:9.5f} ms a sample")
    return found


def main() -> None:
    from gpu_check_execution import SHAPES, Subject

    parser = argparse.ArgumentParser(description="Show where the time goes at batch size 1 and in a file.")
    parser.add_argument("--shape", choices=list(SHAPES), default="base")
    parser.add_argument("--archive")
    parser.add_argument("--data")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--samples", type=int, default=100, help="at batch size 1")
    parser.add_argument("--sentences", type=int, default=20000, help="of the file")
    parser.add_argument("--single", default="{}", help="options of the engine single, as JSON")
    parser.add_argument("--pools", default="{}", help="options of the engine depth_pools, as JSON")
    parser.add_argument("--output", help="a JSON file for the figures")
    args = parser.parse_args()
    device = torch.device(args.device)
    subject = Subject(args, device)
    network = subject.in_precision(args.dtype or ("float16" if device.type == "cuda" else "float32"))
    found = {
        "single": where_time_goes(network, subject, {"type": "single", **json.loads(args.single)}, args.samples),
        "depth_pools": where_time_goes(
            network, subject, {"type": "depth_pools", **json.loads(args.pools)}, args.sentences
        ),
    }
    if args.output:
        Path(args.output).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
