"""
Checks the engines on a GPU and measures them. Without an archive: a random model in BERT's shape, a BEEM policy whose
thresholds are set to a given share of samples leaving at each exit, sentences of SST-2's lengths. With one: its
network, its policy, and the sentences of a file that its dataset reader reads, with the exits that they really take.

    python scripts/gpu_check_execution.py [--shape base|small|tiny] [--device cuda|cpu] [--output F.json]
    python scripts/gpu_check_execution.py --archive model.tar.gz --data dev.tsv [--output F.json]

Prints whether every engine gives the reference's exits in three precisions, the times at batch size 1 and for a whole
file in several variants of the engines, a table of both beside their targets, and where the time goes. A case that
fails prints its traceback; the others go on, and the figures are written after each.
"""

from __future__ import annotations

import argparse
import copy
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
from profile_execution import where_time_goes

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import load_archive
from beem_plugin.backbones import Backbone
from beem_plugin.calibration.replay import replay
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.registry import Params
from beem_plugin.data.ragged_batch import RaggedBatch, ragged_batches
from beem_plugin.evaluation.benchmark import batches_by_size
from beem_plugin.evaluation.benchmark_cases import PLAIN, Case, engine_cases, plain_case
from beem_plugin.evaluation.timing import Timing, measure, ratio
from beem_plugin.execution.engine import Engine, gather_decisions
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policies import Beem
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder

SHAPES = {
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 128},
}
# Leaving at exits 1, 2, ... of 12: about the shape that BEEM has on SST-2, a layer speed-up of 2.0.
SHARES = [0.0, 0.02, 0.08, 0.18, 0.25, 0.17, 0.10, 0.06, 0.04, 0.03, 0.02, 0.05]
EXACT = {
    "single": {"type": "single"},
    "single, every 3": {"type": "single", "check_every": 3},
    "single, plain heads": {"type": "single", "heads": "plain"},
    "single, no lookahead": {"type": "single", "lookahead": False},
    "compaction": {"type": "compaction"},
    "depth_pools": {"type": "depth_pools"},
    "depth_pools, small chunks": {"type": "depth_pools", "tokens_per_chunk": 1024, "window_tokens": 4096},
}
SINGLE = {
    "single": {},
    "single, every 2": {"check_every": 2},
    "single, every 3": {"check_every": 3},
    "single, every 4": {"check_every": 4},
    "single, plain heads": {"heads": "plain"},
    "single, no lookahead": {"lookahead": False},
}
SINGLE_CPU = {"single": {}, "single, tensors": {"plain_numbers": False}}
POOLS = {
    "depth_pools": {},
    "depth_pools, chunks 32768": {"tokens_per_chunk": 32768, "window_tokens": 524288},
    "depth_pools, 3 windows": {"windows_in_flight": 3},
    "depth_pools, calls of 4096": {"call_tokens": 4096},
    "depth_pools, min_leaving 0.1": {"min_leaving": 0.1},
}
POOLS_CPU = {
    "depth_pools": {},
    "depth_pools, chunks 256": {"tokens_per_chunk": 256},
    "depth_pools, chunks 1024": {"tokens_per_chunk": 1024},
}
OTHER_EXITS = {"float32": 0.0, "float16": 0.02, "bfloat16": 0.1}
"""The share of samples that rounding may send to another exit."""
TARGETS = {"batch 1": 0.97, "file": 0.95, "times transformers": 8.0}
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


class Subject:
    """
    The network and policy that are measured, and their inputs.

    # Parameters

    args : `argparse.Namespace`
    device : `torch.device`
    """

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.device = device
        self.policy: ExitPolicy | None = None
        self.samples: RaggedBatch | None = None
        if args.archive:
            archive = load_archive(args.archive)
            self.network = archive.model.encoder.eval()
            self.policy = archive.model.exit_policy
            read = batches_by_size(archive, args.data, args.sentences)
            self.samples = RaggedBatch.join(list(ragged_batches(read(256))))
            self.samples.pad_token_id = archive.validation_dataset_reader.tokenizer.pad_token_id
        else:
            torch.manual_seed(0)
            shape = {"model_type": "bert", "vocab_size": 30522, **SHAPES[args.shape]}
            self.network = MultiExitEncoder(2, Backbone.from_params(Params({"config": shape}))).eval()
            with torch.no_grad():
                for head in self.network.exits:
                    head.classifier.weight.mul_(20)

    def in_precision(self, dtype: str) -> MultiExitEncoder:
        """A copy of the network on the device."""
        network: MultiExitEncoder = cast_network(copy.deepcopy(self.network), dtype).to(self.device)
        return network

    def lengths(self, count: int) -> Tensor:
        return sentence_lengths(count) if self.samples is None else self.samples.lengths[:count]

    def batches(self, lengths: Tensor, size: int) -> list[dict[str, Tensor]]:
        """Made-up tokens of these lengths, or the archive's sentences, in batches of about one length."""
        if self.samples is None:
            return make_batches(lengths, size)
        chosen = self.samples.select(torch.arange(len(lengths)))
        order = chosen.lengths.argsort(stable=True)
        starts = range(0, len(order), size)
        shuffled = [starts[place] for place in torch.randperm(len(starts), generator=seeded(2)).tolist()]
        batches = []
        for start in shuffled:
            rows = order[start : start + size]
            part = chosen.select(rows).padded(always_mask=True)
            part["attention_mask"] = part["attention_mask"].long()
            batches.append({**part, "index": rows})
        return batches

    def policy_for(self, network: MultiExitEncoder, batches: list[dict[str, Tensor]]) -> tuple[ExitPolicy, ExitTrace]:
        """The archive's policy, or one under which the given shares leave; and the trace of `batches`."""
        trace = make_trace(network, batches)
        return (make_policy(trace) if self.policy is None else self.policy), trace


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
        inputs = {name: value.to(device) for name, value in batch.items() if name != "index"}
        logits.append(network(inputs).cpu())
        index.append(batch["index"])
    order = torch.cat(index).argsort()
    meta = {"exit_layers": list(network.exit_layers)}
    return ExitTrace(torch.cat(logits)[order], torch.full((len(order),), -1), meta=meta)


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


def check_equality(subject: Subject, dtype: str, samples: int) -> dict[str, Any]:
    """Exits, labels and log-probabilities of every engine against batches of one at full depth and replay."""
    network = subject.in_precision(dtype)
    lengths = subject.lengths(samples)
    samples = len(lengths)
    many = subject.batches(lengths, 16)
    policy, trace = subject.policy_for(network, subject.batches(lengths, 1))
    expected = replay(policy, trace)
    found: dict[str, Any] = {"layer_speedup": depth_summary(expected.exits, network.exit_layers)["layer_speedup"]}
    print(f"   reference: layer speed-up {found['layer_speedup']:.2f}")
    for name, config in EXACT.items():
        try:
            engine = Engine.from_params(dict(config))
            for turn in ("first", "again"):
                runs = engine.run(network, policy, ragged_batches(many))
                _, decisions = gather_decisions(runs, network.num_labels, samples)
                other = decisions.exits != expected.exits
                same = ~other
                apart = (decisions.log_probabilities - expected.log_probabilities)[same].abs().max()
                labels = (decisions.predictions != expected.predictions)[same].sum()
                print(
                    f"   {name:28s} {turn:6s} other exits {int(other.sum()):4d} of {samples}, other labels "
                    f"{int(labels)}, log-probabilities apart {float(apart):.2e}"
                )
                found[f"{name}, {turn}"] = {"other_exits": int(other.sum()), "apart": float(apart)}
                if int(other.sum()) > OTHER_EXITS[dtype] * samples or (dtype == "float32" and int(labels)):
                    found[name] = "failed"
            print_lanes(engine)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            found[name] = "failed"
    return found


def print_lanes(engine: Engine) -> None:
    """What an engine has captured."""
    lanes = getattr(engine, "_lanes", None)
    if lanes is None:
        return
    fused = [
        lane.fused is not None and ("to host" if lane.fused.is_direct else "copied")
        for held in lanes.lanes.values()
        for lane in held
    ]
    print(
        f"   {'':28s} captured lengths {[key[0] for key in lanes.lanes]}, failure {lanes.failure}, heads fused "
        f"{sorted(set(map(str, fused)))}"
    )


def add_cases(
    cases: dict[str, Case],
    name: str,
    config: dict[str, Any],
    network: MultiExitEncoder,
    policy: ExitPolicy,
    batches: Any,
) -> None:
    for kind, run in engine_cases(config, network, policy, batches).items():
        cases[f"{name}, {kind}"] = run


def ratios(name: str, timings: dict[str, Timing], speedup: float, plain: str) -> dict[str, float]:
    """What is promised of an engine, from the times of its three cases."""
    full, exits, never = (timings[f"{name}, {kind}"] for kind in ("full_depth", "exits", "nobody_leaves"))
    found = {
        "measured over layer": ratio(full, exits) / speedup,
        "cost of exits": ratio(never, full) - 1,
        "times transformers": ratio(timings[plain], exits),
    }
    print(
        f"   {name:30s} measured / layer {found['measured over layer']:.3f}, exits that nobody uses "
        f"{100 * found['cost of exits']:+.1f} %, {found['times transformers']:.2f}x transformers"
    )
    return found


def latency(subject: Subject, dtype: str, tokens: int | None, samples: int, repeats: int) -> dict[str, Any]:
    """Batch size 1, at one length or at the sentences' own."""
    network = subject.in_precision(dtype)
    lengths = subject.lengths(samples) if tokens is None else torch.full((samples,), tokens)
    samples = len(lengths)
    batches = subject.batches(lengths, 1)
    policy, trace = subject.policy_for(network, batches)
    exits = replay(policy, trace).exits
    speedup = depth_summary(exits, network.exit_layers)["layer_speedup"]
    cases: dict[str, Case] = {PLAIN: plain_case(network, batches), **peer_cases(network, policy, batches)}
    variants = SINGLE if subject.device.type == "cuda" else SINGLE_CPU
    for name, options in variants.items():
        add_cases(cases, name, {"type": "single", "max_lengths": 64, **options}, network, policy, batches)
    timings = measure(cases, repeats, subject.device)
    print(f"   counted layer speed-up {speedup:.3f}, exits {exits.bincount().tolist()[1:]}")
    print_rows(timings, samples, PLAIN)
    found: dict[str, Any] = {"layer_speedup": speedup}
    found["milliseconds"] = {name: 1000 * timing.median / samples for name, timing in timings.items()}
    found["variants"] = {name: ratios(name, timings, speedup, PLAIN) for name in variants}
    return found


def throughput(subject: Subject, dtype: str, samples: int, repeats: int) -> dict[str, Any]:
    """A file of sentences."""
    network = subject.in_precision(dtype)
    lengths = subject.lengths(samples)
    samples = len(lengths)
    batches = subject.batches(lengths, 256)
    policy, trace = subject.policy_for(network, batches)
    exits = replay(policy, trace).exits
    speedup = depth_summary(exits, network.exit_layers)["layer_speedup"]
    is_gpu = subject.device.type == "cuda"
    sizes = (64, 256, 1024, 4096) if is_gpu else (32,)
    cases: dict[str, Case] = {
        f"{PLAIN}, batch {size}": plain_case(network, subject.batches(lengths, size)) for size in sizes
    }
    add_cases(
        cases,
        "compaction",
        {"type": "compaction"},
        network,
        policy,
        subject.batches(lengths, sizes[min(1, len(sizes) - 1)]),
    )
    variants = POOLS if is_gpu else POOLS_CPU
    for name, options in variants.items():
        add_cases(cases, name, {"type": "depth_pools", **options}, network, policy, batches)
    timings = measure(cases, repeats, subject.device)
    weighted = float(network.exit_layers[-1] * lengths.sum() / (lengths * network_depth(network, exits)).sum())
    print(
        f"   counted layer speed-up {speedup:.3f}, by tokens {weighted:.3f}, mean {float(lengths.float().mean()):.1f} "
        "tokens"
    )
    best_plain = min((name for name in timings if name.startswith(PLAIN)), key=lambda name: timings[name].median)
    print_rows(timings, samples, best_plain)
    full = min((name for name in timings if name.endswith("full_depth")), key=lambda name: timings[name].median)
    best = min((name for name in timings if name.endswith("exits")), key=lambda name: timings[name].median)
    over = ratio(timings[full], timings[best]) / speedup
    print(f"   best full depth: {full}; best with exits: {best}; measured / layer {over:.3f}")
    return {
        "layer_speedup": speedup,
        "layer_speedup_by_tokens": weighted,
        "measured over layer": over,
        "sentences_per_second": {name: samples / timing.median for name, timing in timings.items()},
        "variants": {name: ratios(name, timings, speedup, best_plain) for name in ("compaction", *variants)},
    }


def network_depth(network: MultiExitEncoder, exits: Tensor) -> Tensor:
    """`(samples,)` the layers that each sample runs."""
    return torch.tensor(network.exit_layers)[exits - 1]


def compiled(subject: Subject, dtype: str, samples: int, repeats: int) -> dict[str, Any]:
    """Heads and policy steps through torch.compile instead of our kernels."""
    network = subject.in_precision(dtype)
    batches = subject.batches(torch.full((samples,), 32), 1)
    policy, _ = subject.policy_for(network, batches)
    ragged = list(ragged_batches(batches))
    runs = {name: Engine.from_params({"type": "single", "heads": name}) for name in ("fused", "plain", "compiled")}
    cases = {name: (lambda engine=engine: engine.run(network, policy, ragged)) for name, engine in runs.items()}
    timings = measure(cases, repeats, subject.device)
    for engine in runs.values():
        print_lanes(engine)
    found = {name: 1000 * timing.median / samples for name, timing in timings.items()}
    print(f"   milliseconds a sample with exits: {found}")
    return found


def summary() -> None:
    """One line a case beside its target."""
    print("\n== summary")
    for title, found in results.items():
        if not isinstance(found, dict) or "variants" not in found:
            continue
        target = next((value for name, value in TARGETS.items() if title.startswith(name)), None)
        for name, row in found["variants"].items():
            print(
                f"   {title:28s} {name:30s} layer {found['layer_speedup']:.2f}  measured / layer "
                f"{row['measured over layer']:.3f} (target {target})  nobody leaves "
                f"{100 * row['cost of exits']:+6.1f} %  {row['times transformers']:.2f}x transformers"
            )


def parts(args: argparse.Namespace, subject: Subject) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The cases in the order of their importance."""
    device = subject.device
    half = args.dtype or ("float16" if device.type == "cuda" else "float32")
    for dtype in ("float32", "float16", "bfloat16") if device.type == "cuda" else ("float32",):
        yield f"equality, {dtype}", lambda dtype=dtype: check_equality(subject, dtype, args.checked)
    for tokens in (None,) if args.archive else (32, 128):
        yield (
            f"batch 1, {tokens or 'own'} tokens, {half}",
            lambda tokens=tokens: latency(subject, half, tokens, args.samples, args.repeats),
        )
    yield f"file, {half}", lambda: throughput(subject, half, args.sentences, args.repeats)
    for engine in ("single", "depth_pools"):
        yield (
            f"profile, {engine}",
            lambda engine=engine: where_time_goes(
                subject.in_precision(half),
                subject,
                {"type": engine},
                args.samples if engine == "single" else args.sentences,
            ),
        )
    if args.compiled:
        yield "compiled heads", lambda: compiled(subject, half, args.samples, args.repeats)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and measure the engines on one device.")
    parser.add_argument("--shape", choices=list(SHAPES), default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--archive", help="a trained model to measure instead of a random one")
    parser.add_argument("--data", help="with --archive: what its dataset reader reads")
    parser.add_argument("--dtype", help="default: float16 on a GPU, float32 on a CPU")
    parser.add_argument("--checked", type=int, default=256, help="samples whose answers are compared")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--samples", type=int, default=100, help="at batch size 1")
    parser.add_argument("--sentences", type=int, default=20000, help="of the file")
    parser.add_argument("--compiled", action="store_true", help="also heads through torch.compile: minutes more")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--output", help="a JSON file for the figures")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    device = torch.device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    if bool(args.archive) != bool(args.data):
        parser.error("--archive and --data belong together")
    what = args.archive or f"BERT shape {args.shape}"
    print(f"{name}, torch {torch.__version__}, {what}, {torch.get_num_threads()} threads")
    subject = Subject(args, device)
    results["device"] = name
    for title, work in parts(args, subject):
        if args.only in title:
            case(title, work)
            if args.output:
                Path(args.output).write_text(json.dumps(results, indent=2))
    summary()
    failed = [title for title, found in results.items() if isinstance(found, dict) and has_failed(found)]
    print(f"\nfailed: {failed or 'nothing'}")
    return 1 if failed else 0


def has_failed(found: dict[str, Any]) -> bool:
    """Whether the case itself ended in an error, or one of the engines that it tried."""
    return "failed" in found or "failed" in [value for value in found.values() if isinstance(value, str)]


if __name__ == "__main__":
    sys.exit(main())
