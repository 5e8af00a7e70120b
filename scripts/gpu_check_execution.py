"""
Checks the engines on a GPU and measures them: a random model in BERT's shape, a BEEM policy whose thresholds are set
to a given share of samples leaving at each exit, sentences of SST-2's lengths.

    python scripts/gpu_check_execution.py [--shape base|small|tiny] [--device cuda|cpu] [--repeats 3] [--output F.json]

Prints whether every engine gives the reference's exits in three precisions, the times at batch size 1 and for a file of
20,000 sentences, and where the time goes. A case that fails prints its traceback; the others go on.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from benchmark_peers import peer_cases, print_rows

import beem_plugin.components  # noqa: F401
from beem_plugin.backbones import Backbone
from beem_plugin.common.registry import Params
from beem_plugin.execution.engine import Engine, gather_decisions
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policies import Beem
from beem_plugin.exits.replay import replay
from beem_plugin.exits.speed import depth_summary
from beem_plugin.exits.trace import ExitTrace
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder
from beem_plugin.reports.benchmark_cases import PLAIN, engine_cases, plain_case
from beem_plugin.reports.timing import measure, ratio

SHAPES = {
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 128},
}
# Leaving at exits 1, 2, ... of 12: about the shape that BEEM has on SST-2, a layer speed-up of 2.0.
SHARES = [0.0, 0.02, 0.08, 0.18, 0.25, 0.17, 0.10, 0.06, 0.04, 0.03, 0.02, 0.05]
EXACT = {
    "single": {"type": "single"},
    "single, no lookahead": {"type": "single", "lookahead": False},
    "single, not captured": {"type": "single", "capture": False},
    "compaction": {"type": "compaction"},
    "compaction, every 3": {"type": "compaction", "check_every": 3},
    "depth_pools": {"type": "depth_pools"},
    "depth_pools, small chunks": {"type": "depth_pools", "tokens_per_chunk": 1024, "window_tokens": 4096},
}
results: dict[str, Any] = {}


def case(name: str, work: Callable[[], Any]) -> None:
    """Runs one part; a failure is printed and remembered, and does not end the script."""
    print(f"\n== {name}", flush=True)
    start = time.perf_counter()
    try:
        results[name] = work()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        results[name] = {"failed": traceback.format_exc().splitlines()[-1]}
    print(f"   ({time.perf_counter() - start:.1f} s)", flush=True)


def make_network(shape: str, device: torch.device, dtype: str) -> MultiExitEncoder:
    torch.manual_seed(0)
    backbone = Backbone.from_params(Params({"config": {"model_type": "bert", "vocab_size": 30522, **SHAPES[shape]}}))
    network = MultiExitEncoder(2, backbone)
    with torch.no_grad():
        for head in network.exits:
            head.classifier.weight.mul_(20)
    cast_network(network.eval(), dtype)
    return network.to(device)


def sentence_lengths(count: int) -> Tensor:
    """Median 10 and mean 13 tokens, from 3 to 66, as SST-2's training sentences."""
    normal = torch.randn(count, generator=torch.Generator().manual_seed(1))
    return (10 * (0.72 * normal).exp()).round().clamp(3, 66).long()


def make_batches(lengths: Tensor, size: int) -> list[dict[str, Tensor]]:
    """Random tokens in batches of samples of about the same length, shuffled, as the loader makes them."""
    generator = torch.Generator().manual_seed(2)
    order = lengths.argsort(stable=True)
    starts = torch.arange(0, len(lengths), size)
    batches = []
    for start in starts[torch.randperm(len(starts), generator=generator)].tolist():
        index = order[start : start + size]
        width = int(lengths[index].max())
        mask = (torch.arange(width) < lengths[index, None]).long()
        # A sample's tokens depend on its index alone, so that every batch size has the same samples.
        tokens = 1000 + (index[:, None] * 7919 + torch.arange(width) * 104729) % 29000
        batches.append({"input_ids": tokens * mask, "attention_mask": mask, "index": index})
    return batches


@torch.inference_mode()
def make_trace(network: MultiExitEncoder, batches: list[dict[str, Tensor]]) -> ExitTrace:
    device = next(network.parameters()).device
    logits, index = [], []
    for batch in batches:
        logits.append(network({name: batch[name].to(device) for name in ("input_ids", "attention_mask")}).cpu())
        index.append(batch["index"])
    order = torch.cat(index).argsort()
    return ExitTrace(torch.cat(logits)[order], torch.full((len(order),), -1))


def make_policy(trace: ExitTrace) -> Beem:
    """BEEM with the thresholds at which the given shares leave."""
    exits = trace.num_exits
    shares = SHARES if exits == len(SHARES) else [1 / exits] * exits
    weights = [0.1 * number for number in range(1, exits + 1)]
    open_policy = Beem(thresholds="never", weights=weights)
    open_policy.bind(trace.exit_layers, trace.num_labels)
    scores = open_policy.score_table(trace).scores
    alive = torch.ones(len(trace), dtype=torch.bool)
    thresholds: list[float | str] = []
    for exit_number in range(1, exits):
        leaving = round(shares[exit_number - 1] * len(trace))
        present = scores[alive, exit_number - 1].sort(descending=True).values
        if leaving == 0 or leaving >= len(present):
            thresholds.append("never")
            continue
        threshold = float((present[leaving - 1] + present[leaving]) / 2)  # between two samples, clear of rounding
        thresholds.append(threshold)
        alive &= scores[:, exit_number - 1] < threshold
    policy = Beem(thresholds=thresholds, weights=weights)
    policy.bind(trace.exit_layers, trace.num_labels)
    return policy


def check_equality(shape: str, device: torch.device, dtype: str, samples: int) -> dict[str, Any]:
    """Exits, labels and log-probabilities of every engine against batches of one at full depth and replay."""
    network = make_network(shape, device, dtype)
    lengths = sentence_lengths(samples)
    ones, many = make_batches(lengths, 1), make_batches(lengths, 16)
    trace = make_trace(network, ones)
    policy = make_policy(trace)
    expected = replay(policy, trace)
    found: dict[str, Any] = {"layer_speedup": depth_summary(expected.exits, network.exit_layers)["layer_speedup"]}
    print(f"   reference: layer speed-up {found['layer_speedup']:.2f}")
    for name, config in EXACT.items():
        try:
            engine = Engine.from_params(dict(config))
            for turn in ("first", "again"):
                _, decisions = gather_decisions(engine.run(network, policy, many), 2, samples)
                other = decisions.exits != expected.exits
                same = ~other
                apart = (decisions.log_probabilities - expected.log_probabilities)[same].abs().max()
                labels = (decisions.predictions != expected.predictions)[same].sum()
                print(
                    f"   {name:28s} {turn:6s} other exits {int(other.sum()):4d} of {samples}, other labels "
                    f"{int(labels)}, log-probabilities apart {float(apart):.2e}"
                )
                found[f"{name}, {turn}"] = {"other_exits": int(other.sum()), "apart": float(apart)}
            lanes = getattr(engine, "_lanes", None)
            if lanes is not None:
                print(f"   {'':28s} captured lengths {[key[0] for key in lanes.lanes]}, failure {lanes.failure}")
        except Exception:
            traceback.print_exc(file=sys.stdout)
            found[name] = "failed"
    return found


def latency(shape: str, device: torch.device, dtype: str, tokens: int, samples: int, repeats: int) -> dict[str, Any]:
    """Batch size 1 at one length."""
    network = make_network(shape, device, dtype)
    batches = make_batches(torch.full((samples,), tokens), 1)
    trace = make_trace(network, batches)
    policy = make_policy(trace)
    speedup = depth_summary(replay(policy, trace).exits, network.exit_layers)["layer_speedup"]
    cases = {
        PLAIN: plain_case(network, batches),
        **peer_cases(network, policy, batches),
    }
    for kind, run in engine_cases({"type": "single"}, network, policy, batches).items():
        cases[f"single, {kind}"] = run
    for kind, run in engine_cases({"type": "single", "lookahead": False}, network, policy, batches).items():
        cases[f"single without lookahead, {kind}"] = run
    timings = measure(cases, repeats, device)
    print(f"   counted layer speed-up {speedup:.3f}")
    print_rows(timings, samples, PLAIN)
    found: dict[str, Any] = {"layer_speedup": speedup}
    found["milliseconds"] = {name: 1000 * timing.median / samples for name, timing in timings.items()}
    for name in ("single", "single without lookahead"):
        full, exits = timings[f"{name}, full_depth"], timings[f"{name}, exits"]
        found[f"{name}, measured over layer"] = ratio(full, exits) / speedup
        found[f"{name}, cost of exits"] = ratio(timings[f"{name}, nobody_leaves"], full) - 1
        print(
            f"   {name}: measured / layer {found[f'{name}, measured over layer']:.3f}, exits that nobody uses "
            f"{100 * found[f'{name}, cost of exits']:+.1f} %, {ratio(timings[PLAIN], exits):.1f}x transformers"
        )
    return found


def throughput(shape: str, device: torch.device, dtype: str, samples: int, repeats: int) -> dict[str, Any]:
    """A file of sentences."""
    network = make_network(shape, device, dtype)
    lengths = sentence_lengths(samples)
    batches = make_batches(lengths, 256)
    trace = make_trace(network, batches)
    policy = make_policy(trace)
    speedup = depth_summary(replay(policy, trace).exits, network.exit_layers)["layer_speedup"]
    sizes = (64, 256, 1024, 4096) if device.type == "cuda" else (16, 32, 64)
    cases = {f"{PLAIN}, batch {size}": plain_case(network, make_batches(lengths, size)) for size in sizes}
    middle = make_batches(lengths, sizes[1])
    for kind, run in engine_cases({"type": "compaction"}, network, policy, middle).items():
        cases[f"compaction {sizes[1]}, {kind}"] = run
    chunks = (8192, 32768, 65536, 131072) if device.type == "cuda" else (256, 512, 1024)
    for tokens in chunks:
        config = {"type": "depth_pools", "tokens_per_chunk": tokens, "window_tokens": 524288}
        for kind, run in engine_cases(config, network, policy, batches).items():
            cases[f"depth_pools {tokens}, {kind}"] = run
    timings = measure(cases, repeats, device)
    print(f"   counted layer speed-up {speedup:.3f}, mean {float(lengths.float().mean()):.1f} tokens")
    best_plain = min((name for name in timings if name.startswith(PLAIN)), key=lambda name: timings[name].median)
    print_rows(timings, samples, best_plain)
    full = min((name for name in timings if name.endswith("full_depth")), key=lambda name: timings[name].median)
    best = min((name for name in timings if name.endswith("exits")), key=lambda name: timings[name].median)
    over = ratio(timings[full], timings[best]) / speedup
    print(f"   best full depth: {full}; best with exits: {best}; measured / layer {over:.3f}")
    for tokens in chunks:
        own = ratio(timings[f"depth_pools {tokens}, full_depth"], timings[f"depth_pools {tokens}, exits"]) / speedup
        cost = ratio(timings[f"depth_pools {tokens}, nobody_leaves"], timings[f"depth_pools {tokens}, full_depth"]) - 1
        print(f"   depth_pools {tokens}: measured / layer {own:.3f}, exits that nobody uses {100 * cost:+.1f} %")
    sentences = {name: samples / timing.median for name, timing in timings.items()}
    return {"layer_speedup": speedup, "measured over layer": over, "sentences_per_second": sentences}


def profile(shape: str, device: torch.device, dtype: str, engine: str, samples: int) -> None:
    """Where the time goes, by kernel and by what the host does."""
    from torch.profiler import ProfilerActivity

    network = make_network(shape, device, dtype)
    lengths = sentence_lengths(samples) if engine == "depth_pools" else torch.full((samples,), 32)
    batches = make_batches(lengths, 256 if engine == "depth_pools" else 1)
    policy = make_policy(make_trace(network, batches))
    runner = Engine.from_params({"type": engine})
    list(runner.run(network, policy, batches))
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with torch.profiler.profile(activities=activities) as profiler:
        list(runner.run(network, policy, batches))
        if device.type == "cuda":
            torch.cuda.synchronize()
    averages = profiler.key_averages()
    by_device = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    for order in dict.fromkeys((by_device, "self_cpu_time_total")):
        print(averages.table(sort_by=order, row_limit=14, max_name_column_width=60))


def parts(args: argparse.Namespace, device: torch.device) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The cases in the order of their importance."""
    small = args.shape == "tiny"
    half = "float16" if device.type == "cuda" else "float32"
    for dtype in ("float32", "float16", "bfloat16") if device.type == "cuda" else ("float32",):
        yield f"equality, {dtype}", lambda dtype=dtype: check_equality(args.shape, device, dtype, 64 if small else 256)
    for tokens in (32, 128):
        yield (
            f"batch 1, {tokens} tokens, {half}",
            lambda tokens=tokens: latency(args.shape, device, half, tokens, args.samples, args.repeats),
        )
    yield f"file, {half}", lambda: throughput(args.shape, device, half, args.sentences, args.repeats)
    yield "profile, single", lambda: profile(args.shape, device, half, "single", 50)
    yield "profile, depth_pools", lambda: profile(args.shape, device, half, "depth_pools", args.sentences)


def main() -> None:
    parser = argparse.ArgumentParser(description="Check and measure the engines on one device.")
    parser.add_argument("--shape", choices=list(SHAPES), default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, default=100, help="at batch size 1")
    parser.add_argument("--sentences", type=int, default=20000, help="of the file")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--output", help="a JSON file for the figures")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    device = torch.device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, BERT shape {args.shape}, {torch.get_num_threads()} threads")
    results["device"] = name
    for title, work in parts(args, device):
        if args.only in title:
            case(title, work)
            if args.output:
                Path(args.output).write_text(json.dumps(results, indent=2))
    failed = [title for title, found in results.items() if isinstance(found, dict) and "failed" in found]
    print(f"\nfailed: {failed or 'nothing'}")


if __name__ == "__main__":
    main()
